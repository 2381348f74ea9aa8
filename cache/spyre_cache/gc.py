"""Garbage collection from roots, while builds run.

Roots are releases, pins, live leases, and whatever is younger than the grace. Two phases: what is not reachable is set
aside in `trash/`, then everything is marked *again*, and only what is still not reachable is removed. Whoever relies on
a blob holds it before looking for it (`spyre_cache.leases`), so either the second marking sees the hold or the look
finds nothing. Names go before what they name: results before outputs, manifests before pieces.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spyre_cache.codec import Record
from spyre_cache.errors import CacheError, InvalidRecordError
from spyre_cache.fs import translated
from spyre_cache.leases import held_by, is_live, remove_if_unheld
from spyre_cache.mentions import mentions
from spyre_cache.root import GC_LOCK
from spyre_cache.stores.files import restore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest

_NAMED = ("actions", "documents", "manifests", "statements", "events")  # in the order in which they are dropped


class Collected(Record, frozen=True, kw_only=True):
    """What a collection removed, or would have. `blob_bytes` counts the disk's, not the plain ones."""

    dry_run: bool
    blobs: int
    blob_bytes: int
    kept_blobs: int
    actions: int
    manifests: int


def collect(cache: Cache, *, grace: float, dry_run: bool = False) -> Collected:
    """Removes what nothing refers to.

    Args:
        cache: an opened cache that may be written to.
        grace: seconds for which anything new is kept; longer than the longest build.
        dry_run: only count.

    Raises:
        ReadOnlyCacheError: the cache is read-only.
        CacheUnavailableError: the file system refuses.
    """
    with cache.root.lock(GC_LOCK), translated("collecting garbage", cache.path):
        return _Collection(cache, grace, dry_run=dry_run).run()


class Marks:
    """Everything reachable at one moment."""

    def __init__(self, cache: Cache, grace: float) -> None:
        self._cache = cache
        self._grace = grace
        self.hashes: set[str] = set()
        self.actions: set[str] = set()
        self.manifests: set[str] = set()
        self.described: set[str] = set()
        self._registered = {digest.hash: digest for digest in cache.refs.manifests()}
        self._mark()

    def _mark(self) -> None:
        cache = self._cache
        for entry in cache.refs.releases():
            self._manifest(entry.manifest)
            self.hashes.add(entry.statement.hash)
        for digest in cache.pins.list():
            self._manifest(digest)
        for digest in self._registered.values():
            if self._is_young(cache.path / "manifests" / digest.hash[:2] / digest.hash):
                self._manifest(digest)
        self._at_work()
        for key in cache.actions.stored_keys():
            if key in self.hashes or self._is_young(cache.path / "actions" / key[:2] / key):
                self._action(key)
        for key in cache.actions.described():
            if key in self.hashes or self._is_young(cache.path / "documents" / key[:2] / key):
                self._action(key)

    def _at_work(self) -> None:
        """What live leases hold and recent builds mention."""
        cache = self._cache
        for name in cache.root.names(cache.path / "leases"):
            lease = cache.path / "leases" / name
            if is_live(lease, self._grace):
                self._hashes(held_by(lease))
        for build in cache.builds.list():
            if self._is_young(cache.path / "builds" / build):
                self._hashes(mentions(cache.builds.get(build) or b"").hashes)

    def _hashes(self, hashes: Iterable[str]) -> None:
        for item in hashes:
            if item in self._registered:
                self._manifest(self._registered[item])
            self.hashes.add(item)

    def _manifest(self, digest: Digest) -> None:
        if digest.hash in self.manifests:
            return
        self.manifests.add(digest.hash)
        self.hashes.add(digest.hash)
        self._statements(digest)
        try:
            manifest = self._cache.manifest(digest)
        except CacheError:
            # Damaged or absent: there is nothing behind it that could be found.
            return
        for fragment in manifest.fragments:
            self.hashes.add(fragment.hash)
            self._statements(fragment)
        self.hashes.update(o.digest.hash for artifact in manifest.artifacts for o in artifact.outputs)
        self.hashes.update(w.digest.hash for w in manifest.weights if w.digest is not None)
        for artifact in manifest.artifacts:
            self._action(artifact.action)

    def _action(self, key: str) -> None:
        """An action's result, document and fragment; what is stored under the key stays."""
        self.actions.add(key)
        try:
            result = self._cache.actions.peek(key)
            document = self._cache.actions.document_digest(key)
            action = self._cache.actions.document(key)
        except InvalidRecordError:
            return
        if result is not None:
            self.hashes.update(output.digest.hash for output in result.outputs)
            if result.log is not None:
                self.hashes.add(result.log.hash)
        if document is not None:
            self.hashes.add(document.hash)
        if action is not None:
            self.hashes.add(action.fragment.hash)
            self._statements(action.fragment)

    def _statements(self, subject: Digest) -> None:
        self.described.add(subject.hash)
        for attached in self._cache.statements.list(subject):
            self.hashes.add(attached.blob.hash)
            try:
                data = self._cache.blobs.get(attached.blob)
            except CacheError:
                continue
            self._hashes(mentions(data).hashes)

    def names(self, kind: str, path: Path) -> bool:
        """Whether a file under `actions/`, `manifests/` and so on is of something reachable."""
        if kind in {"actions", "documents"}:
            return path.name in self.actions or path.name in self.hashes
        if kind == "manifests":
            return path.name in self.manifests or path.name in self.hashes
        return path.parent.name in (self.actions if kind == "events" else self.described)

    def _is_young(self, path: Path) -> bool:
        return _age(path) < self._grace


class _Collection:
    def __init__(self, cache: Cache, grace: float, *, dry_run: bool) -> None:
        self._cache = cache
        self._root = cache.root
        self._grace = grace
        self._dry_run = dry_run
        self._dropped: list[tuple[str, Path, bytes]] = []
        self._actions = self._manifests = self._blobs = self._bytes = self._kept = 0

    def run(self) -> Collected:
        self._root.flush()
        self._restore_all()
        marks = Marks(self._cache, self._grace)
        self._names(marks)
        aside = self._set_aside(marks)
        if not self._dry_run:
            self._remove(aside)
            self._tidy()
        return Collected(
            dry_run=self._dry_run,
            blobs=self._blobs,
            blob_bytes=self._bytes,
            kept_blobs=self._kept,
            actions=self._actions,
            manifests=self._manifests,
        )

    def _restore_all(self) -> None:
        """What an interrupted collection left aside goes back first."""
        for name in self._root.names(self._cache.path / "trash"):
            home = self._cache.path / "blobs" / name[:2]
            self._root.ensure(home)
            restore(self._root, home / name)

    def _names(self, marks: Marks) -> None:
        """Removes results, then registrations and statements, of what is not reachable, durably, before any blob."""
        for kind in _NAMED:
            for path in self._below(kind):
                if marks.names(kind, path) or _age(path) < self._grace or path.is_dir():
                    continue
                self._actions += kind == "actions"
                self._manifests += kind == "manifests"
                if not self._dry_run:
                    self._dropped.append((kind, path, self._root.read(path) or b""))
                    self._root.remove(path)
        self._root.flush()

    def _mark_again(self) -> Marks:
        """Marks until no name that was dropped turns out to be in use after all."""
        while True:
            marks = Marks(self._cache, self._grace)
            back = [item for item in self._dropped if marks.names(item[0], item[1])]
            if not back:
                return marks
            for item in back:
                kind, path, data = item
                self._root.create(path, data)
                self._actions -= kind == "actions"
                self._manifests -= kind == "manifests"
                self._dropped.remove(item)

    def _below(self, kind: str) -> Iterator[Path]:
        directory = self._cache.path / kind
        for fan in self._root.names(directory):
            for name in self._root.names(directory / fan):
                yield directory / fan / name

    def _set_aside(self, marks: Marks) -> list[Path]:
        aside = []
        for path in self._below("blobs"):
            if path.name.removesuffix(".z") in marks.hashes or _age(path) < self._grace:
                self._kept += 1
                continue
            if path.is_dir():
                continue  # none of ours: `cache verify` reports it
            self._blobs += 1
            self._bytes += _blocks(path)
            aside.append(path)
            if not self._dry_run:
                self._root.ensure(self._cache.path / "trash")
                self._root.fs.rename(path, self._cache.path / "trash" / path.name)
        return aside

    def _remove(self, aside: list[Path]) -> None:
        """The second marking decides; manifests are gone for good before their pieces begin to go."""
        marks = self._mark_again()
        known = {path.name for kind, path, _ in self._dropped if kind == "manifests"}
        doomed: list[Path] = []
        for path in aside:
            trashed = self._cache.path / "trash" / path.name
            if path.name.removesuffix(".z") in marks.hashes:
                self._bytes -= _blocks(trashed)
                self._blobs -= 1
                self._kept += 1
                restore(self._root, path)
                self._root.fs.fsync_dir(path.parent)
            else:
                doomed.append(trashed)
        if doomed:
            self._unlink(doomed, lambda path: path.name.removesuffix(".z") in known)
            self._unlink(doomed, lambda path: path.name.removesuffix(".z") not in known)

    def _unlink(self, paths: list[Path], chosen: Callable[[Path], bool]) -> None:
        for path in paths:
            if chosen(path):
                self._root.fs.unlink(path)
                self._root.fs.unlink(self._cache.path / "memo" / path.name[:2] / path.name)
        self._root.fs.fsync_dir(self._cache.path / "trash")

    def _tidy(self) -> None:
        """Old quarantine and the leases of the dead."""
        for name in self._root.names(self._cache.path / "quarantine"):
            path = self._cache.path / "quarantine" / name
            if _age(path) < self._grace:
                continue
            if path.is_dir() and not path.is_symlink():
                self._root.fs.remove_tree(path)
            else:
                self._root.fs.unlink(path)
        for name in self._root.names(self._cache.path / "leases"):
            lease = self._cache.path / "leases" / name
            if not is_live(lease, self._grace):
                remove_if_unheld(self._root.fs, lease)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0  # it changed under our eyes: young


def _blocks(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
