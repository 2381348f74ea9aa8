"""The tiers beyond a cache's directory, put together."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from spyre_cache.actions import Documented, read_result
from spyre_cache.codec import decode
from spyre_cache.errors import CacheError, CacheUnavailableError, InvalidRecordError
from spyre_cache.refs import Attached, Known, RefEntry
from spyre_cache.stores.copies import Copies
from spyre_cache.stores.disk import DiskStore
from spyre_cache.stores.disk_documents import DiskDocuments
from spyre_cache.stores.outbox import Outbox, WriteMode
from spyre_cache.stores.tiered import TieredStore
from spyre_cache.stores.tiered_documents import TieredDocuments
from spyre_cache.stores.tiers import Notes, Tier, TierState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spyre_cache.digest import Digest
    from spyre_cache.objects.manifest import Manifest
    from spyre_cache.root import Root
    from spyre_cache.stores.documents import Kind
    from spyre_cache.stores.urls import Remote


class Sharing:
    """What a cache with tiers beyond its directory is made of.

    Attributes:
        tiers: those tiers, nearest first.
        urls: of the tiers, perhaps with passwords.
        blobs: blobs everywhere.
        documents: documents everywhere.
        notes: what goes on with the tiers.
    """

    def __init__(self, root: Root, remotes: Iterable[Remote], *, write: WriteMode = "through") -> None:
        """Opens nothing yet."""
        self.notes = Notes()
        given = tuple(remotes)
        self.urls = tuple(remote.url for remote in given)
        self.tiers = tuple(Tier(remote, notes=self.notes) for remote in given)
        self._root = root
        disk, documents = DiskStore(root), DiskDocuments(root)
        self._outbox = Outbox(disk, documents, self.tiers, write=write)
        self.blobs = TieredStore(disk, self.tiers, self._outbox)
        copies = Copies(root, documents, disk, self.tiers, self.blobs.get, needs)
        self.documents = TieredDocuments(root, documents, disk, self.tiers, self._outbox, copies)

    def open(self) -> None:
        """Reaches every tier now.

        Raises:
            CacheUnavailableError: one cannot be.
        """
        for tier in self.tiers:
            tier.open()

    def share_contents(self, manifest: Manifest) -> None:
        """Sees to it that what a manifest names is in the durable tiers, as far as it is anywhere.

        Hits come from the nearest tier, and what was built before the others were there is in none of them.
        """
        digests = set(manifest.fragments)
        digests.update(output.digest for artifact in manifest.artifacts for output in artifact.outputs)
        digests.update(weight.digest for weight in manifest.weights if weight.digest is not None)
        self.blobs.share(digests)
        keys = [artifact.action for artifact in manifest.artifacts]
        self.documents.share("documents", keys)
        self.documents.share("actions", keys)

    def close(self) -> None:
        """Sends what is still to be sent, and lets go.

        Raises:
            CacheUnavailableError: a durable tier cannot be written.
        """
        try:
            if not self._root.read_only:
                self._outbox.drain()
                with suppress(CacheUnavailableError):  # a build is picked up from what was written before
                    self.documents.settle()
        finally:
            for tier in self.tiers:
                with suppress(CacheError):
                    tier.close()


def needs(kind: Kind, key: str, data: bytes) -> list[Digest] | None:
    """Blobs that a document points at; None for one that is not to be copied: a failure's age must stay what it is."""
    try:
        match kind:
            case "actions":
                result = read_result(data, key)
                return [output.digest for output in result.outputs] if result.status == "ok" else None
            case "documents":
                return [decode(data, Documented).document]
            case "manifests" | "pins":
                return [decode(data, Known).manifest]
            case "refs":
                entry = decode(data, RefEntry)
                return [entry.manifest, entry.statement]
            case "statements":
                return [decode(data, Attached).blob]
            case _:
                return []
    except InvalidRecordError:
        return None


def state_of_disk(root: Root) -> TierState:
    """How the directory does."""
    return TierState(name=str(root.path), kind="disk", durable=True, state="up", corrupt=root.corrupt)
