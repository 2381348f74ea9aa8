"""Blobs in several places at once: the local disk, and tiers that machines share."""

# ruff: noqa: D102  the methods' contract is LocalBlobStore's

from __future__ import annotations

import io
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from spyre_cache.errors import (
    BlobNotFoundError,
    CacheError,
    CacheUnavailableError,
    CorruptBlobError,
    ReadOnlyCacheError,
)
from spyre_cache.stores.base import Buffer, LocalBlobStore, Source
from spyre_cache.stores.outbox import WHOLE_BYTES, Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from spyre_cache.digest import Digest
    from spyre_cache.stores.disk import DiskStore
    from spyre_cache.stores.tiers import Stores, Tier

_T = TypeVar("_T")


class TieredStore(LocalBlobStore):
    """Reads from the nearest tier that has a blob, and keeps a copy on the local disk. Writes to all.

    * What a tier gives is verified before it is used or copied. A damaged copy is removed where it lies, the next tier
      is asked, and the damaged one is written anew.
    * Presence is asked tier by tier, and never remembered: any tier but the local disk may forget.
    * That a blob is nowhere can only be said when every durable tier answered; else `CacheUnavailableError`. A tier
      that is not durable may be away without anybody noticing but by the time it takes.
    """

    def __init__(self, local: DiskStore, tiers: Sequence[Tier], outbox: Outbox) -> None:
        self._local = local
        self._tiers = tuple(tiers)
        self._outbox = outbox

    # --- presence ---

    def missing(self, digests: Iterable[Digest]) -> set[Digest]:
        absent = self._local.missing(digests)
        for tier in self._tiers:
            if absent:
                absent -= self._present(tier, absent)
        return absent

    def _present(self, tier: Tier, digests: set[Digest]) -> set[Digest]:
        """Those that a tier has; of one that is not durable and away, none."""
        fitting = {digest for digest in digests if tier.accepts(digest.size)}
        if not fitting:
            return set()

        def ask(stores: Stores) -> set[Digest]:
            return fitting - stores.blobs.missing(fitting)

        return tier.call(ask) if tier.durable else tier.attempt(ask, set())

    def share(self, digests: Iterable[Digest]) -> set[Digest]:
        wanted = set(digests)
        durable = [tier for tier in self._tiers if tier.durable]
        if not durable:
            return self.missing(wanted)
        gone: set[Digest] = set()
        for tier in durable:
            absent = wanted - gone - self._present(tier, wanted - gone)
            elsewhere = self._local.missing(absent)
            self._outbox.add(absent - elsewhere)
            for digest in elsewhere:
                try:
                    self._fetch(digest, raw=False)
                    self._outbox.add([digest])
                except BlobNotFoundError:
                    gone.add(digest)
        self._outbox.drain()
        return gone

    # --- reading ---

    def get(self, digest: Digest) -> bytes:
        try:
            return self._local.get(digest)
        except BlobNotFoundError as error:
            damaged = error if isinstance(error, CorruptBlobError) else None
        search = _Search(damaged)
        data = search.through(self._tiers, digest, lambda tier: tier.call(lambda stores: stores.blobs.get(digest)))
        with suppress(CacheUnavailableError):  # no room, or no permission
            self._local.put(data)
            self._heal(digest, search.bad)
        return data

    def _heal(self, digest: Digest, bad: list[Tier]) -> None:
        """Writes tiers anew whose copy was damaged; where that fails, whoever misses the blob next does."""
        for tier in bad:
            with suppress(CacheError):
                self._outbox.send(tier, digest)

    def _fetch(self, digest: Digest, *, raw: bool) -> None:
        """Brings a blob to the local disk.

        Raises:
            BlobNotFoundError: it is nowhere.
            CacheUnavailableError: a tier that may have it is away, or the local disk cannot be written.
        """

        def copy(tier: Tier) -> None:
            feed = tier.feed(digest)
            try:
                self._local.put_stream(iter(feed), raw=raw)
            except CacheUnavailableError as error:
                if feed.error is None:
                    raise _NoRoomError(error) from None
                raise

        search = _Search()
        try:
            search.through(self._tiers, digest, copy)
        except _NoRoomError as error:
            raise error.reason from None
        self._heal(digest, search.bad)

    def open(self, digest: Digest) -> BinaryIO:
        try:
            return self._local.open(digest)
        except BlobNotFoundError:
            if digest.size <= WHOLE_BYTES:
                return io.BytesIO(self.get(digest))
        try:
            self._fetch(digest, raw=False)
        except ReadOnlyCacheError:
            return _Search().through(
                self._tiers, digest, lambda tier: tier.call(lambda stores: stores.blobs.open(digest))
            )
        return self._local.open(digest)

    def map(self, digest: Digest) -> memoryview:
        try:
            return self._local.map(digest)
        except BlobNotFoundError:
            pass
        try:
            self._fetch(digest, raw=True)
        except ReadOnlyCacheError:
            return memoryview(bytearray(self.get(digest)))
        return self._local.map(digest)

    def path(self, digest: Digest) -> Path:
        try:
            return self._local.path(digest)
        except BlobNotFoundError:
            self._fetch(digest, raw=True)
        return self._local.path(digest)

    def iter(self) -> Iterator[Digest]:
        seen = set()
        for digest in self._local.iter():
            seen.add(digest)
            yield digest
        for tier in self._tiers:
            for digest in tier.call(lambda stores: list(stores.blobs.iter())):
                if digest not in seen:
                    seen.add(digest)
                    yield digest

    # --- writing ---

    def put(self, data: Buffer, *, raw: bool = False) -> Digest:
        return self._sent(self._local.put(data, raw=raw))

    def put_stream(self, source: Source, *, raw: bool = False) -> Digest:
        return self._sent(self._local.put_stream(source, raw=raw))

    def _sent(self, digest: Digest) -> Digest:
        # Also what was here before: that says nothing of the other tiers.
        self._outbox.add([digest])
        self._outbox.settle()
        return digest

    def delete(self, digest: Digest) -> bool:
        self._outbox.forget(digest)
        found = self._local.delete(digest)
        for tier in self._tiers:
            if tier.durable:
                found |= tier.call(lambda stores: stores.blobs.delete(digest))
            else:
                found |= tier.attempt(lambda stores: stores.blobs.delete(digest), otherwise=False)
        return found

    def flush(self) -> None:
        self._local.flush()
        self._outbox.drain()

    @contextmanager
    def batch(self) -> Iterator[None]:
        # After an error, what was put is sent with what comes next: the error shall be seen, and soon.
        with self._local.batch(), self._outbox.batch():
            yield
        self._outbox.settle()


class _Search:
    """One search for a blob through the tiers.

    Attributes:
        bad: tiers whose copy was damaged.
    """

    def __init__(self, damaged: CorruptBlobError | None = None) -> None:
        self.bad: list[Tier] = []
        self._damaged = damaged
        self._away: CacheUnavailableError | None = None

    def through(self, tiers: Iterable[Tier], digest: Digest, read: Callable[[Tier], _T]) -> _T:
        """What the nearest tier with a sound copy gives."""
        for tier in tiers:
            if not tier.accepts(digest.size):
                continue
            try:
                found = read(tier)
            except CorruptBlobError as error:
                self._damaged = error
                self.bad.append(tier)
            except BlobNotFoundError:
                continue
            except CacheUnavailableError as error:
                self._away = error if tier.durable else self._away
            else:
                tier.count("hits")
                return found
        if self._away is not None:
            raise CacheUnavailableError(f"the blob {digest} is in no tier that answers, and {self._away}")
        if self._damaged is not None:
            raise self._damaged
        raise BlobNotFoundError(f"the blob {digest} of {digest.size} bytes is in no tier of this cache")


class _NoRoomError(Exception):
    """The local disk, not a tier, cannot take a copy."""

    def __init__(self, reason: CacheUnavailableError) -> None:
        super().__init__(str(reason))
        self.reason = reason
