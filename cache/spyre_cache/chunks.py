"""Large blobs as content-defined chunks, for transfers and remote tiers: a change in one place moves few bytes.

Cut before compression and encryption, so that equal parts of different blobs are equal chunks. On disk a blob stays one
file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from blake3 import blake3

from spyre_cache.codec import Record
from spyre_cache.digest import Digest, hash_threads
from spyre_cache.errors import CorruptBlobError, InvalidRecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from spyre_cache.stores.base import Buffer

THRESHOLD_BYTES = 2 << 20
MIN_BYTES = 128 << 10
AVERAGE_BYTES = 512 << 10
MAX_BYTES = 2 << 20
_WINDOW_BYTES = 4 * MAX_BYTES


class ChunkList(Record, frozen=True, kw_only=True):
    """How a blob is put together again. Whoever reads it checks every chunk, then the whole."""

    schema: Literal["chunks/1"] = "chunks/1"
    blob: Digest
    chunks: tuple[Digest, ...]

    def __post_init__(self) -> None:
        if sum(chunk.size for chunk in self.chunks) != self.blob.size:
            raise InvalidRecordError(f"chunks make up their blob's {self.blob.size} bytes, and these do not")
        if any(not 0 < chunk.size <= MAX_BYTES for chunk in self.chunks):
            raise InvalidRecordError(f"a chunk has 1 to {MAX_BYTES} bytes, and one of these has not")


def is_chunked(size: int) -> bool:
    """Whether a blob of this many bytes travels in chunks."""
    return size > THRESHOLD_BYTES


def cut(data: Buffer) -> Iterator[memoryview]:
    """Pieces of the data, whose ends depend on the bytes near them only; together they are the data."""
    from pyfastcdc import FastCDC

    view = memoryview(data).cast("B")
    cutter = FastCDC(avg_size=AVERAGE_BYTES, min_size=MIN_BYTES, max_size=MAX_BYTES)
    for chunk in cutter.cut_buf(view):
        yield view[chunk.offset : chunk.offset + chunk.length]


def cut_stream(blocks: Iterable[Buffer]) -> Iterator[bytes]:
    """The pieces that `cut` makes of all blocks joined, with no more than a few of them in memory."""
    pending = bytearray()
    for block in blocks:
        pending += block
        if len(pending) >= _WINDOW_BYTES:
            done = 0
            # Where a piece ends depends on at most `MAX_BYTES` from its beginning: what has as many behind it is sure.
            for piece in cut(bytes(pending)):
                if done + MAX_BYTES > len(pending):
                    break
                yield bytes(piece)
                done += len(piece)
            del pending[:done]
    yield from map(bytes, cut(bytes(pending)))


def split(data: Buffer, put: Callable[[memoryview], Digest]) -> ChunkList:
    """Hands every piece to `put`, which gives its digest; the list says how to join them."""
    chunks = tuple(put(piece) for piece in cut(data))
    return ChunkList(blob=Digest.of(memoryview(data).cast("B")), chunks=chunks)


def join(chunks: ChunkList, get: Callable[[Digest], Buffer]) -> Iterator[Buffer]:
    """The blob's bytes, piece by piece; do not believe them before the last one came.

    Raises:
        CorruptBlobError: a piece, or the whole, has another digest than the list says.
    """
    whole = blake3(max_threads=hash_threads(chunks.blob.size))
    for chunk in chunks.chunks:
        piece = get(chunk)
        if Digest.of(memoryview(piece).cast("B")) != chunk:
            raise CorruptBlobError(f"the chunk {chunk} of {chunks.blob} came damaged; fetch it again")
        whole.update(piece)
        yield piece
    if whole.hexdigest() != chunks.blob.hash:
        raise CorruptBlobError(f"the chunks listed do not make up {chunks.blob}; fetch or build it again")
