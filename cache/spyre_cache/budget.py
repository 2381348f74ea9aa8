"""Making room in a cache directory: what was not used for longest goes, as far as nothing is lost by it.

With a durable tier behind it, a directory is a copy: whatever that tier has can go, in use or not, and comes back when
it is asked for. Without one, only what no root needs can go (`spyre_cache.gc`), and not within an hour of its making.
What a living process holds stays in either case. Names of what goes, go first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spyre_cache.codec import Record
from spyre_cache.digest import Digest
from spyre_cache.errors import CacheError, InvalidRecordError
from spyre_cache.fs import translated
from spyre_cache.gc import Marks
from spyre_cache.leases import held_by, is_live
from spyre_cache.mentions import mentions
from spyre_cache.root import GC_LOCK
from spyre_cache.stores.disk_documents import DiskDocuments
from spyre_cache.stores.files import PACKED, plain_size, restore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spyre_cache.cache import Cache
    from spyre_cache.stores.base import BlobStore
    from spyre_cache.stores.documents import DocumentStore, Kind

GRACE_SECONDS = 3600.0
# In the order in which they are dropped; of all but the first, the records that they name are read as well.
_NAMED: Final[tuple[Kind, ...]] = ("actions", "refs", "pins", "manifests", "statements", "documents")
_BATCH = 256


class Shrunk(Record, frozen=True, kw_only=True):
    """What went, or would have; bytes as they lie on disk.

    Attributes:
        path: of the cache.
        dry_run: whether it was only counted.
        max_bytes: the budget.
        blobs: blobs that went.
        blob_bytes: of those.
        kept_bytes: of the blobs that stay; above the budget when nothing more may go.
        names: documents that went with them.
    """

    path: str
    dry_run: bool
    max_bytes: int
    blobs: int
    blob_bytes: int
    kept_bytes: int
    names: int


class _File(NamedTuple):
    path: Path
    hash: str
    bytes: int
    used: float


def shrink(
    cache: Cache, max_bytes: int, *, durable: tuple[BlobStore, DocumentStore] | None = None, dry_run: bool = False
) -> Shrunk:
    """Removes the least recently used blobs until the rest fits.

    Args:
        cache: the cache of a directory alone, which may be written to.
        max_bytes: what its blobs may take.
        durable: the tier that has what this directory has, if there is one.
        dry_run: only count.

    Raises:
        ReadOnlyCacheError: the cache is read-only.
        CacheUnavailableError: the file system refuses, or the durable tier cannot be reached.
    """
    with cache.root.lock(GC_LOCK), translated("making room", cache.path):
        return _Shrinking(cache, max_bytes, durable, dry_run=dry_run).run()


class _Shrinking:
    def __init__(
        self, cache: Cache, max_bytes: int, durable: tuple[BlobStore, DocumentStore] | None, *, dry_run: bool
    ) -> None:
        self._cache = cache
        self._root = cache.root
        self._documents = DiskDocuments(cache.root)
        self._max_bytes = max_bytes
        self._durable = durable
        self._dry_run = dry_run

    def run(self) -> Shrunk:
        self._root.flush()
        files = sorted(self._files(), key=lambda file: (file.used, file.hash))
        total = sum(file.bytes for file in files)
        needs = self._needs()
        kept = self._kept(needs)
        spare = [file for file in files if file.hash not in kept]
        chosen = list(self._choose(spare, total - self._max_bytes))
        names = [name for name, hashes in needs.items() if not hashes.isdisjoint(file.hash for file in chosen)]
        if not self._dry_run:
            self._drop(names)
            chosen = self._remove(chosen)
        freed = sum(file.bytes for file in chosen)
        return Shrunk(
            path=str(self._cache.path),
            dry_run=self._dry_run,
            max_bytes=self._max_bytes,
            blobs=len(chosen),
            blob_bytes=freed,
            kept_bytes=total - freed,
            names=len(names),
        )

    def _files(self) -> Iterator[_File]:
        blobs = self._cache.path / "blobs"
        for fan in self._root.names(blobs):
            for name in self._root.names(blobs / fan):
                path = blobs / fan / name
                try:
                    status = path.stat()
                except OSError:
                    continue
                used = max(status.st_atime, status.st_mtime)
                yield _File(path, name.removesuffix(PACKED), status.st_blocks * 512, used)

    def _needs(self) -> dict[tuple[Kind, str], set[str]]:
        """Blobs without which a document says nothing, by document."""
        needs = {}
        for kind in _NAMED:
            for key, document in self._documents.get_many(kind, self._documents.keys(kind)).items():
                found = mentions(document.data)
                needed = {digest.hash for digest in found.digests}
                for digest in found.digests if kind != "actions" else ():
                    needed |= self._mentioned(digest)
                needs[kind, key] = needed
        return needs

    def _mentioned(self, digest: Digest) -> set[str]:
        try:
            return {each.hash for each in mentions(self._cache.blobs.get(digest)).digests}
        except CacheError:
            return set()

    def _kept(self, needs: dict[tuple[Kind, str], set[str]]) -> set[str]:
        """Hashes of what may not go, whatever it weighs."""
        if self._durable is None:
            return Marks(self._cache, GRACE_SECONDS).hashes
        kept = self._held()
        for kind in _NAMED:
            there = set(self._durable[1].keys(kind))
            # Said here and not there yet: this copy is the only one.
            for (its, key), hashes in needs.items():
                if its == kind and key not in there:
                    kept |= hashes
        return kept

    def _held(self) -> set[str]:
        leases = self._cache.path / "leases"
        live = [leases / name for name in self._root.names(leases) if is_live(leases / name, 0)]
        return {hash_ for lease in live for hash_ in held_by(lease)}

    def _choose(self, spare: list[_File], excess: int) -> Iterator[_File]:
        for start in range(0, len(spare), _BATCH):
            part = spare[start : start + _BATCH]
            elsewhere = self._elsewhere(part)
            for file in part:
                if excess <= 0:
                    return
                if file.hash in elsewhere:
                    excess -= file.bytes
                    yield file

    def _elsewhere(self, files: list[_File]) -> set[str]:
        """Those that the durable tier has; all of them when there is none and nobody needs them."""
        if self._durable is None:
            return {file.hash for file in files}
        digests = []
        for file in files:
            try:
                digests.append(Digest(file.hash, plain_size(file.path)))
            except (OSError, InvalidRecordError):
                continue
        return {digest.hash for digest in set(digests) - self._durable[0].missing(digests)}

    def _drop(self, names: list[tuple[Kind, str]]) -> None:
        for kind, key in names:
            self._documents.remove(kind, key)
        self._root.flush()

    def _remove(self, files: list[_File]) -> list[_File]:
        """Sets aside first, then looks who has come to hold something: see `spyre_cache.leases`."""
        trash = self._cache.path / "trash"
        self._root.ensure(trash)
        for file in files:
            self._root.fs.rename(file.path, trash / file.path.name)
        held = self._held()
        gone = []
        for file in files:
            if file.hash in held:
                restore(self._root, file.path)
                self._root.fs.fsync_dir(file.path.parent)
                continue
            self._root.fs.unlink(trash / file.path.name)
            self._root.fs.unlink(self._cache.path / "memo" / file.path.name[:2] / file.path.name)
            gone.append(file)
        self._root.fs.fsync_dir(trash)
        return gone
