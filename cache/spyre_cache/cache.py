"""One cache: its blobs, and everything that is said with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Self

from spyre_cache.actions import ActionCache
from spyre_cache.builds import Builds
from spyre_cache.codec import Record, decode
from spyre_cache.errors import CacheUnavailableError
from spyre_cache.leases import Lease
from spyre_cache.objects.manifest import Manifest
from spyre_cache.refs import Pins, Refs, Statements
from spyre_cache.root import Root
from spyre_cache.stores.disk import DiskStore
from spyre_cache.stores.disk_documents import DiskDocuments

if TYPE_CHECKING:
    from spyre_cache.digest import Digest
    from spyre_cache.fs import FileSystem
    from spyre_cache.gc import Collected
    from spyre_cache.verify import Finding

GRACE_SECONDS = 24 * 3600.0
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(//)?")


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
    """A cache directory, opened.

    Attributes:
        path: the directory.
        blobs: bytes by digest.
        documents: small documents by kind and key; what follows is made of them.
        actions: results by action key.
        refs: releases and the registry of manifests.
        statements: what is said about manifests.
        pins: manifests kept from collection.
        builds: documents about builds.
    """

    def __init__(self, root: Root) -> None:
        self.root = root
        self.path = root.path
        self.read_only = root.read_only
        self.blobs = DiskStore(root)
        self.documents = DiskDocuments(root)
        self.actions = ActionCache(self.documents, self.blobs)
        self.refs = Refs(self.documents, self.blobs)
        self.statements = Statements(self.documents, self.blobs)
        self.pins = Pins(self.documents, self.blobs)
        self.builds = Builds(self.documents)

    @classmethod
    def open(cls, url: str | Path, *, read_only: bool = False, fs: FileSystem | None = None) -> Self:
        """Opens the cache in a directory; one that may be written to is made when absent.

        Raises:
            CacheUnavailableError: not a path, not a cache, or of a newer format.
            ReadOnlyCacheError: it would have to be made, and may not be.
        """
        return cls(Root(_local(url), read_only=read_only, fs=fs))

    @property
    def is_shared(self) -> bool:
        """Whether other machines may share it: it has a durable tier beyond this directory."""
        return False

    def put_manifest(self, manifest: Manifest) -> Digest:
        """Stores and registers a manifest, after everything put before it is durable."""
        self.blobs.flush()
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
            actions=sum(1 for _ in self.actions.stored_keys()),
            manifests=len(self.refs.manifests()),
            releases=len(self.refs.releases()),
            pins=len(self.pins.list()),
            builds=len(self.builds.list()),
            nondeterminism_events=len(self.actions.events()),
            quarantined=len(self.root.names(self.path / "quarantine")),
            corrupt_met=self.root.corrupt,
        )

    def collect(self, *, grace: float = GRACE_SECONDS, dry_run: bool = False) -> Collected:
        """Removes what neither a release, a pin, a lease nor anything younger than `grace` seconds needs."""
        from spyre_cache.gc import collect

        return collect(self, grace=grace, dry_run=dry_run)

    def verify(self, *, repair: bool = False) -> list[Finding]:
        """Reads and checks every file; `repair` sets aside what is damaged and forgets what points nowhere."""
        from spyre_cache.verify import verify

        return verify(self, repair=repair)

    def close(self) -> None:
        """Makes everything durable and lets collection have what only this process held."""
        self.root.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _local(url: str | Path) -> Path:
    if isinstance(url, Path):
        return url.expanduser()
    if "," in url or _SCHEME.match(url):
        raise CacheUnavailableError(
            f"a cache is the path of a directory, and {url[:200]!r} is none: URLs and lists of tiers are not built yet"
        )
    if not url or "\0" in url:
        raise CacheUnavailableError("a cache is a directory's path, but an empty one came")
    return Path(url).expanduser()
