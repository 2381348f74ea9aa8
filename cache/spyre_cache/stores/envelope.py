"""How a compressed blob lies at rest: zstd frames of 1 MiB of plain bytes, with a table of their sizes at the end.

    magic 8 · version u16 · codec u16 · frame bytes u32         header, 16 bytes
    frames                                                      each a zstd frame that states its content size
    compressed size u32, per frame                              table
    plain size u64 · frame count u32 · magic 4                  footer, 16 bytes

Little-endian. The table comes last so that a stream is written once, forwards. Blobs that do not shrink have no
envelope: their file is their bytes.
"""

# ruff: noqa: D102  the reader's contract is RawIOBase's
from __future__ import annotations

import io
import os
import struct
from itertools import accumulate
from typing import TYPE_CHECKING

from spyre_cache.errors import InvalidRecordError, LimitExceededError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spyre_cache.stores.base import Buffer

FRAME_BYTES = 1 << 20
MAX_PLAIN_BYTES = 1 << 42
_MAGIC = b"SPYREBLB"
_END = b"BLBE"
_HEADER = struct.Struct("<8sHHI")
_FOOTER = struct.Struct("<QI4s")
_VERSION = 1
_ZSTD = 1
_LEVEL = 3
_SMALL = 4096  # less than this occupies a block of the file system either way
_SAMPLE = 64 << 10
_WORTH = 0.8  # a blob that keeps more than this of its size is more useful mapped than compressed


def shrinks(data: memoryview) -> bool:
    """Whether compression is worth it, judged on samples from the beginning, middle and end."""
    if len(data) <= _SMALL:
        return False
    import zstandard

    starts = {0, max(0, len(data) // 2 - _SAMPLE // 2), max(0, len(data) - _SAMPLE)}
    samples = [data[start : start + _SAMPLE] for start in sorted(starts)]
    compressor = zstandard.ZstdCompressor(level=1)
    packed = sum(len(compressor.compress(sample)) for sample in samples)
    return packed < _WORTH * sum(len(sample) for sample in samples)


class Packer:
    """Turns plain bytes, fed in any portions, into the bytes of an envelope."""

    def __init__(self) -> None:
        import zstandard

        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
        self._pending = bytearray()
        self._sizes: list[int] = []
        self._plain = 0

    def start(self) -> bytes:
        """What an envelope begins with."""
        return _HEADER.pack(_MAGIC, _VERSION, _ZSTD, FRAME_BYTES)

    def feed(self, data: Buffer) -> Iterator[bytes]:
        """Frames that these bytes complete."""
        view = memoryview(data).cast("B")
        self._plain += len(view)
        while len(self._pending) + len(view) >= FRAME_BYTES:
            room = FRAME_BYTES - len(self._pending)
            self._pending += view[:room]
            view = view[room:]
            yield self._frame()
        self._pending += view

    def finish(self) -> Iterator[bytes]:
        """The last frame and the tables."""
        if self._pending:
            yield self._frame()
        yield struct.pack(f"<{len(self._sizes)}I", *self._sizes)
        yield _FOOTER.pack(self._plain, len(self._sizes), _END)

    def _frame(self) -> bytes:
        packed = self._compressor.compress(self._pending)
        self._pending.clear()
        self._sizes.append(len(packed))
        return packed


def pack(data: Buffer) -> bytes:
    """The whole envelope of plain bytes in memory."""
    packer = Packer()
    return b"".join((packer.start(), *packer.feed(data), *packer.finish()))


def unpack(envelope: Buffer, size: int) -> bytes:
    """The plain bytes of a whole envelope in memory.

    Args:
        envelope: its bytes.
        size: how many plain bytes there must be; nothing larger is ever allocated.

    Raises:
        InvalidRecordError: not an envelope of that many bytes.
    """
    with EnvelopeReader(memoryview(envelope).cast("B")) as reader:
        if reader.plain_size != size:
            raise InvalidRecordError(f"an envelope of {size} plain bytes was expected, this states {reader.plain_size}")
        return b"".join(reader.blocks())


class EnvelopeReader(io.RawIOBase):
    """Random access to the plain bytes of an envelope, in memory or in a file whose descriptor it then owns.

    Raises:
        InvalidRecordError: not an envelope, another version, or one that contradicts itself; also while reading.
        LimitExceededError: states more plain bytes than `MAX_PLAIN_BYTES`.
    """

    def __init__(self, source: int | memoryview) -> None:
        super().__init__()
        self._source = source
        self.plain_size = 0
        self._position = 0
        self._cached: tuple[int, bytes] = (-1, b"")
        try:
            self._read_tables()
        except BaseException:
            self.close()
            raise
        import zstandard

        self._zstandard = zstandard
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=8 << 20)

    def _read_tables(self) -> None:
        length = os.fstat(self._source).st_size if isinstance(self._source, int) else len(self._source)
        if length < _HEADER.size + _FOOTER.size:
            raise InvalidRecordError(f"an envelope has at least {_HEADER.size + _FOOTER.size} bytes, not {length}")
        magic, version, codec, frame_bytes = _HEADER.unpack(self._exactly(_HEADER.size, 0))
        if (magic, version, codec, frame_bytes) != (_MAGIC, _VERSION, _ZSTD, FRAME_BYTES):
            raise InvalidRecordError(f"this is no envelope of version {_VERSION} with zstd frames of 1 MiB")
        size, count, end = _FOOTER.unpack(self._exactly(_FOOTER.size, length - _FOOTER.size))
        if size > MAX_PLAIN_BYTES:
            raise LimitExceededError(f"a blob has at most {MAX_PLAIN_BYTES} bytes, this states {size}")
        table = 4 * count
        room = length - _HEADER.size - _FOOTER.size - table
        if end != _END or count != -(-size // FRAME_BYTES) or room < 0:
            raise InvalidRecordError("an envelope's footer contradicts its length")
        sizes = struct.unpack(f"<{count}I", self._exactly(table, length - _FOOTER.size - table))
        if sum(sizes) != room:
            raise InvalidRecordError("an envelope's frames do not fill it")
        self.plain_size = int(size)
        self._offsets = list(accumulate(sizes, initial=_HEADER.size))

    def _exactly(self, count: int, offset: int) -> bytes:
        if isinstance(self._source, int):
            data = os.pread(self._source, count, offset)
        else:
            data = bytes(self._source[offset : offset + count])
        if len(data) != count:
            raise InvalidRecordError("an envelope ends too early")
        return data

    def _frame(self, index: int) -> bytes:
        if self._cached[0] == index:
            return self._cached[1]
        start, end = self._offsets[index], self._offsets[index + 1]
        expected = min(FRAME_BYTES, self.plain_size - index * FRAME_BYTES)
        # Compressed input never exceeds the plain bytes by more than zstd's own bound; the stated content size is
        # checked first, because the decompressor allocates what a frame claims.
        if end - start > expected + (expected >> 7) + 1024:
            raise LimitExceededError(f"frame {index} of an envelope is larger than zstd makes them")
        packed = self._exactly(end - start, start)
        try:
            if self._zstandard.frame_content_size(packed) != expected:
                raise InvalidRecordError(f"frame {index} of an envelope does not hold {expected} bytes")
            plain = self._decompressor.decompress(packed, max_output_size=expected)
        except self._zstandard.ZstdError as error:
            raise InvalidRecordError(f"frame {index} of an envelope is damaged: {error}") from None
        if len(plain) != expected:
            raise InvalidRecordError(f"frame {index} of an envelope does not hold {expected} bytes")
        self._cached = (index, plain)
        return plain

    def blocks(self) -> Iterator[bytes]:
        """The plain bytes in order, a frame at a time."""
        for index in range(len(self._offsets) - 1):
            yield self._frame(index)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.plain_size}[whence]
        if base + offset < 0:
            raise ValueError("a position is not negative")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # a Buffer, spelled for Python 3.11
        if self._position >= self.plain_size:
            return 0
        index, within = divmod(self._position, FRAME_BYTES)
        part = self._frame(index)[within : within + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        if not self.closed and isinstance(self._source, int):
            os.close(self._source)
        super().close()
