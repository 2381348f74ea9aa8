"""Documents in several places at once. The most durable tier decides; what lies elsewhere are copies.

What is written once is the same whoever writes it: written to the local disk at once and to the tiers with the next
blobs, read from the nearest. Action results are decided by the durable tier and read from the nearest. Releases, pins
and builds are read from where they are decided; the local copies serve while that is away.
"""

# ruff: noqa: D102  the methods' contract is DocumentStore's

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from spyre_cache.errors import CacheUnavailableError
from spyre_cache.stores.documents import IMMUTABLE, Document, DocumentStore, Kind
from spyre_cache.stores.outbox import Outbox, each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from spyre_cache.root import Root
    from spyre_cache.stores.copies import Copies
    from spyre_cache.stores.disk import DiskStore
    from spyre_cache.stores.disk_documents import DiskDocuments
    from spyre_cache.stores.tiers import Stores, Tier

_T = TypeVar("_T")
_DECIDED: Final[frozenset[Kind]] = frozenset({"refs", "pins", "builds"})
"""Kinds that change, and of which only what the deciding tier says is true."""

_NAMES: Final[frozenset[Kind]] = frozenset({"refs", "builds", "manifests"})
"""Kinds that people name: not to find one is an answer to them."""


class TieredDocuments(DocumentStore):
    """Documents of the local disk and of tiers.

    Args:
        root: the local directory.
        local: its documents.
        blobs: its blobs.
        tiers: the others, nearest first.
        outbox: what is still to be written to them.
        copies: what is made of what comes from them.
    """

    def __init__(
        self,
        root: Root,
        local: DiskDocuments,
        blobs: DiskStore,
        tiers: Sequence[Tier],
        outbox: Outbox,
        copies: Copies,
    ) -> None:
        self._root, self._local, self._blobs = root, local, blobs
        self._tiers = tuple(tiers)
        self._outbox = outbox
        self._copies = copies
        self._deciding = next((tier for tier in reversed(self._tiers) if tier.durable), None)
        self._lock = threading.Lock()
        self._unsent: set[str] = set()  # builds written while the deciding tier was away

    def keeps(self, kind: Kind) -> bool:
        return self._local.keeps(kind)

    # --- reading ---

    def get_many(self, kind: Kind, keys: Iterable[str]) -> dict[str, Document]:
        wanted = list(dict.fromkeys(keys))
        if kind in _DECIDED:
            return self._decided(kind, wanted)
        found = self._local.get_many(kind, wanted)
        for tier in self._tiers:
            rest = [key for key in wanted if key not in found]
            if not rest:
                return found
            if not tier.keeps(kind):
                continue
            more: dict[str, Document] = {}
            if tier.durable:
                more = tier.call(lambda stores: stores.documents.get_many(kind, rest))  # noqa: B023  called at once
            else:
                more = tier.attempt(lambda stores: stores.documents.get_many(kind, rest), more)  # noqa: B023
            tier.count("hits", len(more))
            self._copies.make(kind, more, source=tier)
            found |= more
        return {key: found[key] for key in wanted if key in found}

    def latest(self, kind: Kind, keys: Iterable[str]) -> dict[str, Document]:
        wanted = list(dict.fromkeys(keys))
        tier = self._deciding
        if tier is None or kind in _DECIDED or not wanted:
            return self._local.get_many(kind, wanted) if tier is None else self.get_many(kind, wanted)
        found = tier.call(lambda stores: stores.documents.get_many(kind, wanted))
        self._copies.make(kind, found, source=tier, over=True)
        return found

    def _decided(self, kind: Kind, wanted: list[str]) -> dict[str, Document]:
        local = self._local.get_many(kind, wanted)
        tier = self._deciding
        if tier is None or not wanted:
            return local
        try:
            self._send_builds(tier)
            found = tier.call(lambda stores: stores.documents.get_many(kind, wanted))
        except CacheUnavailableError:
            if len(local) < len(wanted):
                raise  # that something is not there, only the tier could say
            return local
        changed = {key: there for key, there in found.items() if key not in local or local[key].data != there.data}
        self._copies.make(kind, changed, source=tier, over=True)
        unsent = {key: local[key] for key in self._unsent_of(kind) if key in local}
        return found | unsent

    def keys(self, kind: Kind, prefix: str = "") -> Iterator[str]:
        here = set(self._local.keys(kind, prefix))
        there = self._listed(kind, lambda stores: set(stores.documents.keys(kind, prefix)), or_else=here)
        if there is not None:
            here = there | self._unsent_of(kind) if kind in _DECIDED else there | here
        yield from sorted(here)

    def _listed(self, kind: Kind, ask: Callable[[Stores], _T], *, or_else: object) -> _T | None:
        """What the deciding tier lists; None when there is no such tier, or it is away and something is here."""
        if self._deciding is None:
            return None
        try:
            return self._deciding.call(ask)
        except CacheUnavailableError:
            if kind in _NAMES and not or_else:
                raise  # that there is nothing, only the tier could say
            return None

    def ages(self, kind: Kind, prefix: str = "") -> dict[str, float]:
        here = self._local.ages(kind, prefix)
        there = self._listed(kind, lambda stores: stores.documents.ages(kind, prefix), or_else=here)
        if there is None:
            return here
        if kind in _DECIDED:
            return there | {key: here[key] for key in self._unsent_of(kind) if key in here}
        return here | {key: min(age, here.get(key, age)) for key, age in there.items()}

    def _refresh(self, tier: Tier, kind: Kind, key: str) -> None:
        """Makes copies what the deciding tier has: what was read from them turned out to be old."""
        there = tier.call(lambda stores: stores.documents.get(kind, key))
        self._copies.drop(kind, key)
        if there is not None:
            self._copies.make(kind, {key: there}, source=tier, over=True)

    # --- writing ---

    def create(self, kind: Kind, key: str, data: bytes) -> bool:
        self._root.writable("storing")
        if kind in IMMUTABLE:
            made = self._local.create(kind, key, data)
            self._outbox.add_document(kind, key)
            self._outbox.settle()
            return made
        return self._write(
            kind,
            key,
            lambda tier: tier.call(lambda stores: stores.documents.create(kind, key, data)),
            lambda: self._local.create(kind, key, data),
            data,
        )

    def replace(self, kind: Kind, key: str, data: bytes, *, expected: Document | None = None) -> bool:
        self._root.writable("storing")

        def decide(tier: Tier) -> bool:
            theirs = expected and self._theirs(tier, kind, key, expected)
            if expected is not None and theirs is None:
                return False
            return tier.call(lambda stores: stores.documents.replace(kind, key, data, expected=theirs))

        def here() -> bool:
            mine = expected and self._mine(kind, key, expected)
            if expected is not None and mine is None:
                return False
            return self._local.replace(kind, key, data, expected=mine)

        return self._write(kind, key, decide, here, data)

    def _write(
        self, kind: Kind, key: str, decide: Callable[[Tier], bool], here: Callable[[], bool], data: bytes
    ) -> bool:
        """Has a write decided where it is to be, and the copies follow."""
        tier = self._deciding
        if tier is None:
            made = here()
            if made:
                self._copies.make_hot(kind, key, data)
            return made
        if kind != "builds":
            self._outbox.drain()  # what it refers to is there before it
        try:
            made = decide(tier)
        except CacheUnavailableError:
            if kind != "builds":
                raise
            return self._write_unsent(key, here)
        if kind == "builds":
            with self._lock:
                self._unsent.discard(key)
            with suppress(CacheUnavailableError):
                self._send_builds(tier)
        if made:
            tier.count("puts")
            self._copies.make(kind, {key: Document(data, 0.0, "")}, source=tier, over=True)
        else:
            self._refresh(tier, kind, key)
        return made

    def _theirs(self, tier: Tier, kind: Kind, key: str, expected: Document) -> Document | None:
        """What a tier has, if it is what was read, there or in a copy."""
        there = tier.call(lambda stores: stores.documents.get(kind, key))
        return there if there is not None and _same(there, expected) else None

    def _mine(self, kind: Kind, key: str, expected: Document) -> Document | None:
        there = self._local.get(kind, key)
        return there if there is not None and _same(there, expected) else None

    # --- builds while the deciding tier is away ---

    def _write_unsent(self, key: str, here: Callable[[], bool]) -> bool:
        if not here():
            return False
        with self._lock:
            self._unsent.add(key)
        return True

    def _unsent_of(self, kind: Kind) -> set[str]:
        with self._lock:
            return set(self._unsent) if kind == "builds" else set()

    def _send_builds(self, tier: Tier) -> None:
        """Writes what was kept here meanwhile."""
        for key in self._unsent_of("builds"):
            document = self._local.get("builds", key)
            if document is not None:
                tier.call(lambda stores: stores.documents.replace("builds", key, document.data))  # noqa: B023  called at once
            with self._lock:
                self._unsent.discard(key)

    def settle(self) -> None:
        """Writes what was kept here while the deciding tier was away.

        Raises:
            CacheUnavailableError: it still is.
        """
        if self._deciding is not None:
            self._send_builds(self._deciding)

    # --- use and removal ---

    def touch(self, kind: Kind, key: str) -> None:
        self.touch_many(kind, [key])

    def touch_many(self, kind: Kind, keys: Iterable[str]) -> None:
        self._copies.touch(kind, keys)

    def remove(self, kind: Kind, key: str, *, expected: Document | None = None) -> bool:
        self._root.writable("removing")
        tier = self._deciding
        if tier is None:
            mine = expected and self._mine(kind, key, expected)
            if expected is not None and mine is None:
                return False
            removed = self._local.remove(kind, key, expected=mine)
            self._copies.drop(kind, key)
            return removed
        self._outbox.drain()
        theirs = expected and self._theirs(tier, kind, key, expected)
        if expected is not None and theirs is None:
            return False
        removed = tier.call(lambda stores: stores.documents.remove(kind, key, expected=theirs))
        if removed or expected is None:
            self._copies.drop(kind, key)
        return removed

    def set_aside(self, kind: Kind, key: str, document: Document) -> None:
        mine = self._local.get(kind, key)
        if mine is not None and mine.data == document.data:
            self._local.set_aside(kind, key, mine)
        for tier in self._tiers:
            if not tier.keeps(kind):
                continue
            there = tier.attempt(lambda stores: stores.documents.get(kind, key), None)
            if there is not None and there.data == document.data:
                tier.count("corrupt")
                tier.attempt(lambda stores: stores.documents.set_aside(kind, key, there), None)  # noqa: B023

    # --- collection ---

    def share(self, kind: Kind, keys: Iterable[str]) -> None:
        tier = self._deciding
        if tier is None:
            return
        # What is only read from the tier itself is there; copies say nothing of it.
        here = self._local.get_many(kind, keys)
        if not here:
            return
        there = tier.call(lambda stores: stores.documents.present(kind, here))
        absent = [key for key in here if key not in there]
        pointed_at = {digest for key in absent for digest in self._copies.needs(kind, key, here[key].data) or ()}
        self._outbox.add(pointed_at - self._blobs.missing(pointed_at))
        self._outbox.drain()

        def send(key: str) -> None:
            tier.call(lambda stores: stores.documents.create(kind, key, here[key].data))

        each(send, absent)

    def hold(self, hashes: Iterable[str]) -> None:
        self._local.hold(hashes)

    @contextmanager
    def steady(self) -> Iterator[None]:
        with self._local.steady():
            yield


def _same(there: Document, expected: Document) -> bool:
    # By content where a copy was read: its version is of another store.
    return there.version == expected.version or there.data == expected.data
