"""What is in use in a bucket or shared directory, at one moment.

Roots are releases, pins, living leases with the builds they are of, builds and results younger than the grace, and what
anybody holds (`spyre_cache.stores.object_holds`). From there, documents and records are followed: whatever a manifest,
a result, a plan or a statement mentions is in use. Everything is read in batches, level by level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spyre_cache.errors import BlobNotFoundError, LimitExceededError
from spyre_cache.mentions import NOTHING, Mentions, digest_in, mentions
from spyre_cache.stores.documents import IMMUTABLE, Kind
from spyre_cache.stores.object_holds import read_holds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spyre_cache.digest import Digest
    from spyre_cache.stores.object import ObjectStore
    from spyre_cache.stores.object_documents import ObjectDocuments

LEASE_SECONDS = 120.0  # a lease not renewed for so long has died
_KINDS: Final[tuple[Kind, ...]] = (
    "refs", "pins", "leases", "builds", "manifests", "actions", "documents", "statements", "events",
)  # fmt: skip
# Documents of these kinds name records, which are read on; what an action's result names is not.
_NAMING: Final[frozenset[Kind]] = frozenset({"refs", "pins", "manifests", "documents", "statements"})
_RECORD_BYTES = 256 << 20


class Memory:
    """What was read before and cannot have changed: shared by all marks of one collection."""

    def __init__(self) -> None:
        self.documents: dict[tuple[Kind, str], tuple[Mentions, tuple[Digest, ...]]] = {}
        self.blobs: dict[str, Mentions] = {}
        self.holds: dict[str, set[str]] = {}


class Marks:
    """Everything in use.

    Attributes:
        ages: seconds since each document was stored or touched, by kind and key.
        hashes: of blobs, and action keys.
    """

    def __init__(self, blobs: ObjectStore, documents: ObjectDocuments, *, grace: float, memory: Memory) -> None:
        self.hashes: set[str] = set()
        self._blobs = blobs
        self._documents = documents
        self._grace = grace
        self._memory = memory
        # Holds after the rest is listed, and read once more before anything is removed.
        self.ages = {kind: documents.ages(kind) for kind in _KINDS}
        self._statements: dict[str, list[str]] = {}
        for key in self.ages["statements"]:
            self._statements.setdefault(key.partition("/")[0], []).append(key)
        self._mark()

    def names(self, key: str) -> bool:
        """Whether the document of a key is of something in use."""
        return key.partition("/")[0] in self.hashes

    def _mark(self) -> None:
        held = read_holds(self._blobs.objects, self._memory.holds)
        roots: list[tuple[Kind, str]] = [(kind, key) for kind in ("refs", "pins") for key in self.ages[kind]]
        leases = [key for key, age in self.ages["leases"].items() if age < LEASE_SECONDS]
        roots += [("leases", key) for key in leases]
        roots += [("builds", key) for key in leases if key in self.ages["builds"]]
        roots += [("builds", key) for key, age in self.ages["builds"].items() if age < self._grace]
        reached = {path.rpartition("/")[2].partition("-")[0] for path in held}
        for kind in ("manifests", "actions", "documents"):
            reached.update(key for key, age in self.ages[kind].items() if age < self._grace)
        reached |= self._read_documents(roots)
        self._follow(reached)

    def _follow(self, reached: set[str]) -> None:
        """Marks hashes and everything that is said of them, level by level."""
        while fresh := reached - self.hashes:
            self.hashes |= fresh
            wanted: list[tuple[Kind, str]] = []
            for item in fresh:
                wanted += [(kind, item) for kind in ("manifests", "actions", "documents") if item in self.ages[kind]]
                wanted += [("statements", key) for key in self._statements.get(item, ())]
            reached = self._read_documents(wanted)

    def _read_documents(self, wanted: Iterable[tuple[Kind, str]]) -> set[str]:
        """Hashes that documents mention, and those that the records they name mention in turn."""
        reached: set[str] = set()
        records: dict[str, Digest] = {}
        by_kind: dict[Kind, list[str]] = {}
        for kind, key in wanted:
            known = self._memory.documents.get((kind, key))
            if known is None:
                by_kind.setdefault(kind, []).append(key)
            else:
                reached |= known[0].hashes
                records.update((digest.hash, digest) for digest in known[1])
        for kind, keys in by_kind.items():
            for key, document in self._documents.get_many(kind, keys).items():
                found, named = _content(kind, document.data)
                if kind in IMMUTABLE:
                    self._memory.documents[kind, key] = (found, named)
                reached |= found.hashes
                records.update((digest.hash, digest) for digest in named)
        return reached | self._read_records(records)

    def _read_records(self, records: dict[str, Digest]) -> set[str]:
        return set().union(*(found.hashes for found in self.records(records.values()).values()))

    def records(self, digests: Iterable[Digest]) -> dict[str, Mentions]:
        """What records mention, by their hash; nothing for those that are damaged or absent."""
        records = {digest.hash: digest for digest in digests}
        unknown = [digest for hash_, digest in records.items() if hash_ not in self._memory.blobs]
        for digest, found in zip(unknown, self._blobs.objects.each(self._record, unknown), strict=True):
            self._memory.blobs[digest.hash] = found
        return {hash_: self._memory.blobs[hash_] for hash_ in records}

    def _record(self, digest: Digest) -> Mentions:
        if digest.size > _RECORD_BYTES:
            return NOTHING
        try:
            # Damaged or absent: nothing behind it could be found by anybody.
            return mentions(self._blobs.get_alone(digest))
        except (BlobNotFoundError, LimitExceededError):
            return NOTHING


def _content(kind: Kind, data: bytes) -> tuple[Mentions, tuple[Digest, ...]]:
    """What a document mentions, and the records among it that are to be read on."""
    found = mentions(data)
    if kind in _NAMING:
        return found, tuple(found.digests)
    if kind == "builds":
        plan = digest_in(data, "plan")
        return found, () if plan is None else (plan,)
    return found, ()
