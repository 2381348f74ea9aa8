"""Copies of documents nearer than where they were decided: on the local disk, and in tiers that may forget.

A copy is never younger than what it is a copy of was at that moment, give or take an hour: use is noted in the durable
tier at least that often, so that what is used from copies alone is not collected there. A copy that points at blobs
which are not beside it is not made on the disk: the directory stays sound by itself.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from spyre_cache.errors import CacheError, CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spyre_cache.digest import Digest
    from spyre_cache.root import Root
    from spyre_cache.stores.disk import DiskStore
    from spyre_cache.stores.disk_documents import DiskDocuments
    from spyre_cache.stores.documents import Document, Kind
    from spyre_cache.stores.tiers import Tier

    Needs = Callable[[Kind, str, bytes], list[Digest] | None]

TOUCH_SECONDS = 3600.0
_ON_DISK = 256  # copies made on disk at a time: each costs a flush
_MEMO = 100_000


class Copies:
    """Makes and drops copies, and knows how young what they are copies of must be.

    Args:
        root: the local directory.
        local: its documents.
        blobs: its blobs.
        tiers: the others, nearest first.
        fetch: brings a small blob to the local disk.
        needs: the blobs without which a copy of a document would point at nothing, or None for a document of which no
            copies are made.
    """

    def __init__(
        self,
        root: Root,
        local: DiskDocuments,
        blobs: DiskStore,
        tiers: Sequence[Tier],
        fetch: Callable[[Digest], object],
        needs: Needs,
    ) -> None:
        self._root, self._local, self._blobs = root, local, blobs
        self._tiers = tuple(tiers)
        self._fetch = fetch
        self.needs = needs
        self._lock = threading.Lock()
        self._young: dict[tuple[Kind, str], float] = {}  # until when, by our own steps, a touch can wait

    # --- making and dropping ---

    def make(self, kind: Kind, documents: Mapping[str, Document], *, source: Tier, over: bool = False) -> None:
        """Copies what the source has to the local disk and to the tiers before it, as far as it is of use there.

        With `over`, in place of others, which go in any case: what was decided a moment ago. A copy that cannot be made
        is no loss.
        """
        self._note(kind, documents)
        hot = [tier for tier in self._tiers[: self._tiers.index(source)] if not tier.durable and tier.keeps(kind)]
        few = dict(documents if hot else islice(documents.items(), _ON_DISK))
        needs = {key: self.needs(kind, key, document.data) for key, document in few.items()}
        here = self._with_blobs(kind, dict(islice(needs.items(), _ON_DISK)))
        for key, wanted in needs.items():
            if over and key not in here:
                self.drop(kind, key)
            if wanted is not None:
                for tier in hot:
                    self._make_hot(tier, kind, key, few[key].data, over=over)
            if key in here:
                self._make_here(kind, key, few[key], over=over)

    def make_hot(self, kind: Kind, key: str, data: bytes) -> None:
        """Copies what was decided on the local disk."""
        if self.needs(kind, key, data) is not None:
            for tier in self._tiers:
                if tier.keeps(kind):
                    self._make_hot(tier, kind, key, data, over=True)

    def drop(self, kind: Kind, key: str) -> None:
        """Removes every copy."""
        if not self._root.read_only:
            self._local.remove(kind, key)
        for tier in self._tiers:
            if not tier.durable and tier.keeps(kind):
                tier.attempt(lambda stores: stores.documents.remove(kind, key), otherwise=False)

    def _with_blobs(self, kind: Kind, needs: dict[str, list[Digest] | None]) -> set[str]:
        """Keys whose documents may lie on this disk, for what they point at does."""
        if self._root.read_only:
            return set()
        pointed_at = {digest for wanted in needs.values() for digest in wanted or ()}
        absent = self._blobs.missing(pointed_at) if pointed_at else set()
        if kind == "refs":
            absent -= self._fetched([wanted for wanted in needs.values() if wanted], absent)
        return {key for key, wanted in needs.items() if wanted is not None and absent.isdisjoint(wanted)}

    def _fetched(self, pointed_at: list[list[Digest]], absent: set[Digest]) -> set[Digest]:
        """Statements of releases whose manifests are here, brought here: nobody else would."""
        found = set()
        for manifest, statement in pointed_at:
            if manifest not in absent and statement in absent:
                with suppress(CacheError):
                    self._fetch(statement)
                    found.add(statement)
        return found

    def _make_here(self, kind: Kind, key: str, document: Document, *, over: bool) -> None:
        with suppress(CacheUnavailableError):
            if over:
                self._local.adopt(kind, key, document)
            else:
                self._root.create(self._local.path(kind, key), document.data, age=document.age)

    def _make_hot(self, tier: Tier, kind: Kind, key: str, data: bytes, *, over: bool) -> None:
        if tier.is_away:
            return
        if over:
            tier.attempt(lambda stores: stores.documents.replace(kind, key, data), otherwise=False)
        else:
            tier.attempt(lambda stores: stores.documents.create(kind, key, data), otherwise=False)

    # --- use ---

    def _note(self, kind: Kind, documents: Mapping[str, Document]) -> None:
        now = time.monotonic()
        with self._lock:
            if len(self._young) > _MEMO:
                self._young.clear()
            self._young.update({(kind, key): now + TOUCH_SECONDS - there.age for key, there in documents.items()})

    def touch(self, kind: Kind, keys: Iterable[str]) -> None:
        """Makes documents young everywhere, unless all of them are.

        Were copies alone made young, nobody would see that the original grows old.
        """
        old = [key for key in keys if self._is_old(kind, key)]
        if not old:
            return
        # The original first: a copy that is younger would hide it.
        for tier in reversed(self._tiers):
            if tier.keeps(kind):
                tier.attempt(lambda stores: stores.documents.touch_many(kind, old), None, proof=False)
        self._local.touch_many(kind, old)
        with self._lock:
            self._young.update(dict.fromkeys([(kind, key) for key in old], time.monotonic() + TOUCH_SECONDS))

    def _is_old(self, kind: Kind, key: str) -> bool:
        with self._lock:
            if self._young.get((kind, key), 0.0) > time.monotonic():
                return False
        age = self._local.age(kind, key)
        return age is None or age >= TOUCH_SECONDS
