"""Garbage collection of a bucket or shared directory, while builds run anywhere.

Two phases. What nothing in use mentions (`spyre_cache.remote_marks`) and is older than the grace loses its names first:
results, action documents, registrations of manifests, statements. Then everything is marked *again*; names that came
into use meanwhile are put back, and blobs and chunks that are still not mentioned are swept, a batch at a time: the
batch is announced, holds are read once more, whatever was written or held since stays, the rest is removed. All ages
are the store's.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from spyre_cache.chunks import is_chunked
from spyre_cache.codec import Record
from spyre_cache.errors import CacheUnavailableError
from spyre_cache.mentions import mentions
from spyre_cache.remote_marks import Marks, Memory
from spyre_cache.stores.object import chunk_path, chunks_of, digest_of
from spyre_cache.stores.object_documents import REMOVED, document_path
from spyre_cache.stores.object_holds import (
    HOLD_SECONDS,
    HOLDS,
    REFRESH_SECONDS,
    SWEEP,
    SWEEP_SECONDS,
    read_holds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spyre_cache.digest import Digest
    from spyre_cache.stores.documents import Kind
    from spyre_cache.stores.object import ObjectStore
    from spyre_cache.stores.object_client import Meta
    from spyre_cache.stores.object_documents import ObjectDocuments

GRACE_SECONDS = 24 * 3600.0
BUDGET_GRACE_SECONDS = 3 * REFRESH_SECONDS  # what is found within the first third of it is not held
_NAMED: Final[tuple[Kind, ...]] = ("actions", "documents", "manifests", "statements", "events")  # in this order
_BATCH = 500
_T = TypeVar("_T")
_RUNNING = "gc/running"
_RUNNING_SECONDS = 900.0  # a collection shows life more often than that


class RemoteCollected(Record, frozen=True, kw_only=True):
    """What a collection removed, or would have; bytes as they lie in the store.

    Attributes:
        url: of the tier.
        dry_run: whether it only counted.
        blobs: blobs and chunks of large ones.
        blob_bytes: of those.
        kept_blobs: blobs and chunks that stay.
        kept_bytes: of those.
        actions: results.
        manifests: registrations of manifests.
        evicted: results among `actions` that went for the budget alone.
        rescued: objects found in use, or written anew, at the last look.
    """

    url: str
    dry_run: bool
    blobs: int
    blob_bytes: int
    kept_blobs: int
    kept_bytes: int
    actions: int
    manifests: int
    evicted: int = 0
    rescued: int = 0


def collect_objects(
    blobs: ObjectStore,
    documents: ObjectDocuments,
    *,
    grace: float = GRACE_SECONDS,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> RemoteCollected:
    """Removes what nothing in use mentions, then, over a budget, the results that were not used for longest.

    Args:
        blobs: the tier's blobs.
        documents: its documents.
        grace: seconds for which anything new stays; longer than the longest build.
        max_bytes: what may stay, as far as it is no root, not held and older than three hours; None for no
            bound.
        dry_run: only count.

    Raises:
        CacheUnavailableError: the store cannot be reached, or another collection is under way there.
        ReadOnlyCacheError: it may not be written to.
    """
    if dry_run:
        return _Collection(blobs, documents, grace, max_bytes, dry_run=True).run()
    with _alone(blobs):
        return _Collection(blobs, documents, grace, max_bytes, dry_run=False).run()


@contextmanager
def _alone(blobs: ObjectStore) -> Iterator[None]:
    """One collection at a time; one that died is succeeded after a while."""
    objects = blobs.objects
    mark = os.urandom(12).hex().encode()
    if not objects.create(_RUNNING, mark):
        there = objects.head(_RUNNING)
        if there is not None and objects.now() - there.modified < _RUNNING_SECONDS:
            raise CacheUnavailableError(
                f"another garbage collection is under way in {objects.shown}; if it has died, the next can begin "
                f"{_RUNNING_SECONDS / 60:.0f} minutes after its last sign of life"
            )
        objects.put(_RUNNING, mark)
        found = objects.get(_RUNNING)
        if found is None or found.data != mark:
            raise CacheUnavailableError(f"another garbage collection has just begun in {objects.shown}")
    try:
        yield
    finally:
        objects.delete([_RUNNING])


class _Collection:
    def __init__(
        self, blobs: ObjectStore, documents: ObjectDocuments, grace: float, max_bytes: int | None, *, dry_run: bool
    ) -> None:
        self._blobs = blobs
        self._objects = blobs.objects
        self._documents = documents
        self._grace = grace
        self._max_bytes = max_bytes
        self._dry_run = dry_run
        self._memory = Memory()
        self._count = dict.fromkeys(("blobs", "blob_bytes", "actions", "manifests", "evicted", "rescued"), 0)

    def run(self) -> RemoteCollected:
        self._now = self._objects.now()
        # Listed before anything is marked: what comes later is not among it.
        self._listed = {meta.path: meta for folder in ("blobs", "chunks") for meta in self._objects.list(folder)}
        marks = self._mark(self._grace)
        dropped = self._drop(self._unused(marks), self._grace)
        if not self._dry_run:
            marks = self._put_back(dropped, self._grace)
        self._clear(marks.hashes, self._grace)
        if self._max_bytes is not None:
            self._shrink(self._max_bytes)
        if not self._dry_run:
            self._tidy(marks)
        return RemoteCollected(
            url=self._objects.shown,
            dry_run=self._dry_run,
            kept_blobs=len(self._listed),
            kept_bytes=sum(meta.size for meta in self._listed.values()),
            **self._count,
        )

    def _mark(self, grace: float) -> Marks:
        if not self._dry_run:
            self._objects.put(_RUNNING, b"")  # a sign of life
        return Marks(self._blobs, self._documents, grace=grace, memory=self._memory)

    # --- names ---

    def _unused(self, marks: Marks) -> list[tuple[Kind, str]]:
        return [
            (kind, key)
            for kind in _NAMED
            for key, age in marks.ages[kind].items()
            if age >= self._grace and not marks.names(key)
        ]

    def _drop(self, names: list[tuple[Kind, str]], grace: float) -> list[tuple[Kind, str, bytes]]:
        """Removes documents, remembering them."""
        if self._dry_run:
            self._counted((kind for kind, _ in names), 1)
            return []
        dropped: list[tuple[Kind, str, bytes]] = []
        for kind in _NAMED:
            contents = self._documents.get_many(kind, [key for its, key in names if its == kind])
            keys = {document_path(kind, key): key for key in contents}
            for batch in _batches(list(keys)):
                found = self._drop_batch(batch, grace)
                dropped += [(kind, keys[path], contents[keys[path]].data) for path in found]
        self._counted((kind for kind, _, _ in dropped), 1)
        return dropped

    def _counted(self, kinds: Iterable[Kind], step: int) -> None:
        for kind in kinds:
            if kind in ("actions", "manifests"):
                self._count[kind] += step

    def _drop_batch(self, paths: list[str], grace: float) -> list[str]:
        with self._announced(paths) as held:
            now = self._objects.now()
            there = self._objects.each(self._objects.head, paths)
            gone = [
                meta.path
                for meta in there
                if meta is not None and meta.path not in held and now - meta.modified >= grace
            ]
            self._erase(gone)
        return gone

    def _put_back(self, dropped: list[tuple[Kind, str, bytes]], grace: float) -> Marks:
        """Marks until no name that was dropped turns out to be in use after all."""
        while True:
            marks = self._mark(grace)
            back = [item for item in dropped if marks.names(item[1])]
            if not back:
                return marks
            for item in back:
                kind, key, data = item
                self._documents.create(kind, key, data)
                dropped.remove(item)
            self._counted((kind for kind, _, _ in back), -1)

    # --- blobs and chunks ---

    def _clear(self, used: set[str], grace: float) -> None:
        """Removes blobs that nothing mentions, then chunks that no blob consists of that is still there."""
        self._sweep(self._unmentioned(used, grace))
        self._sweep(self._loose(used, grace))

    def _unmentioned(self, used: set[str], grace: float) -> list[Meta]:
        return [
            meta
            for meta in self._listed.values()
            if meta.path.startswith("blobs/") and self._is_old(meta, grace) and _hash(meta.path) not in used
        ]

    def _loose(self, used: set[str], grace: float) -> list[Meta]:
        large = []
        for meta in self._listed.values():
            digest = digest_of(meta.path)
            if digest is not None and is_chunked(digest.size):
                large.append((meta, digest))
        needed = {chunk_path(chunk) for chunks in self._objects.each(self._chunks, large) for chunk in chunks}
        return [
            meta
            for meta in self._listed.values()
            if meta.path.startswith("chunks/")
            and meta.path not in needed
            and self._is_old(meta, grace)
            and _hash(meta.path) not in used
        ]

    def _is_old(self, meta: Meta, grace: float) -> bool:
        return digest_of(meta.path) is not None and self._now - meta.modified >= grace

    def _chunks(self, item: tuple[Meta, Digest]) -> tuple[Digest, ...]:
        stored = self._objects.get(item[0].path)
        return () if stored is None else chunks_of(stored.data, item[1])

    def _sweep(self, doomed: list[Meta]) -> None:
        for batch in _batches(doomed):
            gone = batch if self._dry_run else self._sweep_batch(batch)
            for meta in gone:
                self._listed.pop(meta.path, None)
                self._count["blobs"] += 1
                self._count["blob_bytes"] += meta.size

    def _sweep_batch(self, batch: list[Meta]) -> list[Meta]:
        """Removes those of a batch that nobody has come to need."""
        with self._announced([meta.path for meta in batch]) as held:
            now = self._objects.each(self._objects.head, [meta.path for meta in batch])
            gone = [
                meta
                for meta, there in zip(batch, now, strict=True)
                if there is not None and meta.path not in held and _is_same(meta, there)
            ]
            self._erase([meta.path for meta in gone])
        self._count["rescued"] += len(batch) - len(gone)
        return gone

    @contextmanager
    def _announced(self, paths: list[str]) -> Iterator[set[str]]:
        """Within, these paths may be removed, but for those given, which somebody holds. Announced, then looked at."""
        self._began = time.monotonic()
        self._objects.put(SWEEP, "".join(f"{path}\n" for path in paths).encode())
        try:
            yield read_holds(self._objects, self._memory.holds)
        finally:
            self._objects.delete([SWEEP])

    def _erase(self, paths: list[str]) -> None:
        """Removes what was announced, unless that is so long ago that nobody believes it any more."""
        if time.monotonic() - self._began > SWEEP_SECONDS / 2:
            raise CacheUnavailableError(f"{self._objects.shown} is too slow to collect garbage in; try again later")
        self._objects.delete(paths)

    # --- budget ---

    def _shrink(self, max_bytes: int) -> None:
        """Drops results, the least recently used first, until what stays fits; roots stay whatever they weigh."""
        excess = sum(meta.size for meta in self._listed.values()) - max_bytes
        if excess <= 0:
            return
        grace = min(self._grace, BUDGET_GRACE_SECONDS)
        marks = self._mark(grace)
        spare = sorted(((age, key) for key, age in marks.ages["actions"].items() if not marks.names(key)), reverse=True)
        needs = self._needs(marks, [key for _, key in spare])
        users = Counter(item for some in needs.values() for item in some)
        sizes = self._sizes()
        loose = self._unmentioned(marks.hashes | users.keys(), grace)
        excess -= sum(sizes.get(_hash(meta.path), 0) for meta in loose)
        victims: list[tuple[Kind, str]] = []
        released: set[str] = set()
        for _, key in spare:
            if excess <= 0:
                break
            victims.append(("actions", key))
            for item in needs.get(key, ()):
                users[item] -= 1
                if users[item] == 0 and item not in marks.hashes:
                    released.add(item)
                    excess -= sizes.get(item, 0)
        self._count["evicted"] = len(victims)
        dropped = self._drop(victims, grace)
        if not self._dry_run:
            marks = self._put_back(dropped, grace)
        self._clear(marks.hashes | (users.keys() - released), grace)

    def _needs(self, marks: Marks, keys: list[str]) -> dict[str, set[str]]:
        """What only stays for a result: its outputs and log, its action and fragment."""
        found = {key: set(mentions(doc.data).hashes) for key, doc in self._documents.get_many("actions", keys).items()}
        actions = {
            key: digest
            for key, doc in self._documents.get_many("documents", keys).items()
            for digest in mentions(doc.data).digests
        }
        contents = marks.records(actions.values())
        for key, digest in actions.items():
            found.setdefault(key, set()).update({digest.hash, *contents[digest.hash].hashes})
        return found

    def _sizes(self) -> dict[str, int]:
        """Bytes that removing a blob would free; chunks that others share are not counted."""
        sizes: dict[str, int] = {}
        for meta in self._listed.values():
            digest = digest_of(meta.path)
            if digest is not None and meta.path.startswith("blobs/"):
                sizes[digest.hash] = digest.size if is_chunked(digest.size) else meta.size
        return sizes

    # --- the rest ---

    def _tidy(self, marks: Marks) -> None:
        """Holds that are over, leases of the dead, and what stands for removed documents."""
        over = [meta.path for meta in self._objects.list(HOLDS) if self._now - meta.modified >= HOLD_SECONDS]
        for kind in marks.ages:
            over += [
                meta.path
                for meta in self._objects.list(kind)
                if self._now - meta.modified >= HOLD_SECONDS and (kind == "leases" or meta.size <= len(REMOVED))
            ]
        self._objects.delete(over)
        self._objects.remove_unfinished(HOLD_SECONDS)


def _batches(items: list[_T]) -> Iterator[list[_T]]:
    return (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))


def _hash(path: str) -> str:
    return path.rpartition("/")[2].partition("-")[0]


def _is_same(before: Meta, now: Meta) -> bool:
    return (before.modified, before.etag, before.size) == (now.modified, now.etag, now.size)
