"""What every store of blobs promises; `tests/cache/store_conformance.py` holds each one to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spyre_cache.digest import Digest

Buffer = bytes | bytearray | memoryview
Source = IO[bytes] | Iterable[Buffer]
BLOCK_BYTES = 1 << 20


class BlobStore(ABC):
    """Bytes under the BLAKE3 of their plain form.

    * A blob is there whole or not at all. Absence is an answer, not a state: whoever asks again may get another one.
    * What `get`, `open` and the like give has the digest asked for. Bytes that do not are set aside, counted, and
      reported as `CorruptBlobError`, which is a `BlobNotFoundError`: callers treat both as a miss.
    * A digest of the right hash and another size names no blob.
    * `put` of what is there writes nothing, and heals a damaged copy.
    * After `flush`, or outside `batch`, what was put survives a power cut.
    * Every method may raise `CacheUnavailableError` (full, unreachable), and those that write `ReadOnlyCacheError`.
    * Safe among threads and processes.
    """

    @abstractmethod
    def missing(self, digests: Iterable[Digest]) -> set[Digest]:
        """Those that are not here, in one round trip. Contents are not read: presence is not soundness.

        What is found here is kept from garbage collection for as long as this process lives.
        """

    @abstractmethod
    def get(self, digest: Digest) -> bytes:
        """The plain bytes, verified.

        Raises:
            BlobNotFoundError: not here.
            CorruptBlobError: here, but damaged.
        """

    @abstractmethod
    def put(self, data: Buffer, *, raw: bool = False) -> Digest:
        """Stores bytes; `raw` keeps them uncompressed at rest, so that they can be mapped."""

    @abstractmethod
    def put_stream(self, source: Source, *, raw: bool = False) -> Digest:
        """Stores what a binary file or an iterable of buffers yields, never holding all of it."""

    @abstractmethod
    def open(self, digest: Digest) -> BinaryIO:
        """A seekable reader of the plain bytes, verified before the first is given.

        Raises:
            BlobNotFoundError: not here.
            CorruptBlobError: here, but damaged.
        """

    def blocks(self, digest: Digest) -> Iterator[bytes]:
        """The plain bytes, piece by piece; not to be believed before the last one came.

        Raises:
            BlobNotFoundError: not here.
            CorruptBlobError: here, but damaged; perhaps only after some pieces.
        """
        with self.open(digest) as reader:
            while block := reader.read(BLOCK_BYTES):
                yield block

    @abstractmethod
    def delete(self, digest: Digest) -> bool:
        """Removes a blob; True when there was one."""

    @abstractmethod
    def iter(self) -> Iterator[Digest]:
        """Every blob, in no order; those that come or go meanwhile may or may not be seen."""

    def accepts(self, size: int) -> bool:  # noqa: ARG002  for those that keep only small ones
        """Whether this store takes blobs of so many bytes; what it does not take is never in it."""
        return True

    def flush(self) -> None:
        """Makes everything put so far durable and visible to others."""
        return

    def share(self, digests: Iterable[Digest]) -> set[Digest]:
        """As `missing`, and sees to it that the others are where everybody who uses this cache finds them.

        Ask it before saying to somebody on another machine that something is done.
        """
        return self.missing(digests)

    def close(self) -> None:
        """Lets go of connections and threads, if there are any."""
        return

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Within, durability may wait for the end: many blobs then cost few disk flushes.

        This process sees what it put at once, others perhaps only at the end. Nests.
        """
        yield
        self.flush()

    def __contains__(self, digest: Digest) -> bool:
        return not self.missing([digest])


class LocalBlobStore(BlobStore):
    """A store whose blobs are files on this machine."""

    @abstractmethod
    def map(self, digest: Digest) -> memoryview:
        """The plain bytes as memory, verified; writable, and writes stay private to the caller.

        Raw blobs are mapped from their file without a copy, others unpacked. The memory lives as long as the view or
        anything made from it, whatever becomes of the file.

        Raises:
            BlobNotFoundError: not here.
            CorruptBlobError: here, but damaged.
        """

    @abstractmethod
    def path(self, digest: Digest) -> Path:
        """A file of exactly the plain bytes, verified: for the dynamic linker. Never write to it.

        Raises:
            BlobNotFoundError: not here.
            CorruptBlobError: here, but damaged.
            ReadOnlyCacheError: it lies compressed, and this cache may not be written to.
        """
