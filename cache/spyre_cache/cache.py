"""One cache: its blobs, and everything that is said with them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from spyre_cache.actions import ActionCache
from spyre_cache.builds import Builds
from spyre_cache.codec import Record, decode
from spyre_cache.errors import CacheError
from spyre_cache.leases import Lease
from spyre_cache.objects.manifest import Manifest
from spyre_cache.refs import Pins, Refs, Statements
from spyre_cache.root import Root
from spyre_cache.stores.disk import DiskStore
from spyre_cache.stores.disk_documents import DiskDocuments
from spyre_cache.stores.urls import parse_tiers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spyre_cache.digest import Digest
    from spyre_cache.fs import FileSystem
    from spyre_cache.gc import Collected
    from spyre_cache.sharing import Sharing
    from spyre_cache.stores.base import LocalBlobStore
    from spyre_cache.stores.documents import DocumentStore
    from spyre_cache.stores.outbox import WriteMode
    from spyre_cache.stores.tiers import Tier, TierState
    from spyre_cache.verify import Finding

GRACE_SECONDS = 24 * 3600.0


class Stats(Record, frozen=True, kw_only=True):
    """Numbers of a cache: counts of things, and bytes as they lie on disk."""

    path: str
    blobs: int
    blob_bytes: int
    raw_blobs: int
    compressed_blobs: int
    actions: int
    manifests: int
    releases: int
    pins: int
    builds: int
    nondeterminism_events: int
    quarantined: int
    corrupt_met: int


class Cache:
    """A cache, opened: a directory of this machine, and perhaps tiers beyond it that machines share.

    Attributes:
        path: the directory.
        url: opens this cache again, in any process of this machine; may hold passwords.
        blobs: bytes by digest.
        documents: small documents by kind and key; what follows is made of them.
        actions: results by action key.
        refs: releases and the registry of manifests.
        statements: what is said about manifests.
        pins: manifests kept from collection.
        builds: documents about builds.
        local: this very cache without the tiers beyond its directory, which collection and checking are about.
    """

    def __init__(self, root: Root, sharing: Sharing | None = None) -> None:
        self.root = root
        self.path = root.path
        self.url = ",".join((str(root.path), *(() if sharing is None else sharing.urls)))
        self.read_only = root.read_only
        self._sharing = sharing
        self.disk = DiskStore(root)
        self.blobs: LocalBlobStore = self.disk if sharing is None else sharing.blobs
        self.documents: DocumentStore = DiskDocuments(root) if sharing is None else sharing.documents
        self.actions = ActionCache(self.documents, self.blobs)
        self.refs = Refs(self.documents, self.blobs)
        self.statements = Statements(self.documents, self.blobs)
        self.pins = Pins(self.documents, self.blobs)
        self.builds = Builds(self.documents)
        self.local: Cache = self if sharing is None else Cache(root)

    @classmethod
    def open(
        cls,
        url: str | Path,
        *,
        read_only: bool = False,
        fs: FileSystem | None = None,
        write: WriteMode = "through",
        wait_for_tiers: bool = True,
    ) -> Self:
        """Opens a cache by its URL: a directory, or a list of tiers (`spyre_cache.stores.urls`).

        A directory that may be written to is made when absent.

        Args:
            url: where; a `Path` is a directory.
            read_only: neither the directory nor any tier is written to.
            fs: how files are made, for tests.
            write: whether what is put outside a batch reaches durable tiers before the call returns (`through`) or
                with the next flush at the latest (`back`).
            wait_for_tiers: whether every tier must answer now. If not, those that are away are done without for as
                long as that is possible.

        Raises:
            CacheUnavailableError: no such URL, not a cache, of a newer format, or a tier cannot be reached.
            ReadOnlyCacheError: the directory would have to be made, and may not be.
        """
        directory, remotes = parse_tiers(url)
        root = Root(directory, read_only=read_only, fs=fs)
        if not remotes:
            return cls(root)
        from spyre_cache.sharing import Sharing

        sharing = Sharing(root, remotes, write=write)
        if wait_for_tiers:
            sharing.open()
        return cls(root, sharing)

    # --- tiers ---

    @property
    def is_shared(self) -> bool:
        """Whether other machines may share it: it has a durable tier beyond its directory."""
        return any(tier.durable for tier in self.tiers)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Those beyond the directory, nearest first."""
        return () if self._sharing is None else self._sharing.tiers

    def tier_states(self) -> list[TierState]:
        """How every tier does, the directory first."""
        from spyre_cache.sharing import state_of_disk

        return [state_of_disk(self.root), *(tier.state() for tier in self.tiers)]

    def on_note(self, hears: Callable[[str], None] | None) -> None:
        """Who is told when a tier goes away or is back; with None they are kept for `notes`."""
        if self._sharing is not None:
            self._sharing.notes.hears = hears

    def notes(self) -> list[str]:
        """What went on with the tiers and nobody was told yet; each is given once."""
        return [] if self._sharing is None else self._sharing.notes.taken()

    # --- manifests ---

    def put_manifest(self, manifest: Manifest) -> Digest:
        """Stores and registers a manifest, after everything that it names, as far as it is here, and all put before
        is durable.
        """
        self.blobs.flush()
        if self._sharing is not None:
            self._sharing.share_contents(manifest)
        digest = self.blobs.put(manifest.encoded())
        self.refs.register(digest)
        return digest

    def manifest(self, digest: Digest) -> Manifest:
        """A stored manifest.

        Raises:
            BlobNotFoundError: not here, or damaged.
            InvalidRecordError: the blob is no manifest.
        """
        return decode(self.blobs.get(digest), Manifest)

    def lease(self, lease_id: str) -> Lease:
        """A named lease: what it holds is not collected while any holder lives. Use it as a context manager."""
        self.root.writable("a lease")
        self.root.ensure(self.path / "leases")
        return Lease(self.root.fs, self.path / "leases", lease_id)

    def renew_shared_lease(self, build: str) -> None:
        """Tells the collections of durable tiers that a build is at work; good for two minutes, where they answer."""
        if not self.read_only:
            for tier in self.tiers:
                if tier.durable:
                    tier.attempt(lambda stores: stores.documents.replace("leases", build, b"{}"), otherwise=False)

    def end_shared_lease(self, build: str) -> None:
        """The build is at work no more."""
        if not self.read_only:
            for tier in self.tiers:
                if tier.durable:
                    tier.attempt(lambda stores: stores.documents.remove("leases", build), otherwise=False)

    def stats(self) -> Stats:
        """Counts by walking the directory: I/O proportional to the number of files."""
        raw = compressed = size = 0
        for fan in self.root.names(self.path / "blobs"):
            for name in self.root.names(self.path / "blobs" / fan):
                try:
                    size += (self.path / "blobs" / fan / name).stat().st_blocks * 512
                except OSError:
                    continue
                if name.endswith(".z"):
                    compressed += 1
                else:
                    raw += 1
        return Stats(
            path=str(self.path),
            blobs=raw + compressed,
            blob_bytes=size,
            raw_blobs=raw,
            compressed_blobs=compressed,
            actions=sum(1 for _ in self.local.actions.stored_keys()),
            manifests=len(self.local.refs.manifests()),
            releases=len(self.local.refs.releases()),
            pins=len(self.local.pins.list()),
            builds=len(self.local.builds.list()),
            nondeterminism_events=len(self.local.actions.events()),
            quarantined=len(self.root.names(self.path / "quarantine")),
            corrupt_met=self.root.corrupt,
        )

    def collect(self, *, grace: float = GRACE_SECONDS, dry_run: bool = False) -> Collected:
        """Removes what neither a release, a pin, a lease nor anything younger than `grace` seconds needs."""
        from spyre_cache.gc import collect

        return collect(self.local, grace=grace, dry_run=dry_run)

    def verify(self, *, repair: bool = False) -> list[Finding]:
        """Reads and checks every file of the directory; `repair` sets aside what is damaged and forgets what points at
        what no tier has.
        """
        from spyre_cache.verify import verify

        return verify(self, repair=repair)

    def close(self) -> None:
        """Makes everything durable and lets collection have what only this process held.

        Raises:
            CacheUnavailableError: the directory, or a durable tier that something is still to be written to, cannot
                be written.
            BlobNotFoundError: something still to be written was damaged meanwhile.
        """
        try:
            if self._sharing is not None:
                self._sharing.close()
        finally:
            self.root.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        # What went wrong first is what the caller shall hear of.
        with suppress(CacheError):
            self.close()
