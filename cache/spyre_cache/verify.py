"""Every file of a cache, checked against what it must be."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from spyre_cache.actions import Documented, Nondeterminism, read_result
from spyre_cache.builds import MAX_BUILD_BYTES
from spyre_cache.codec import Record, check_depth, decode
from spyre_cache.digest import Digest
from spyre_cache.errors import CacheError, CacheUnavailableError, InvalidRecordError
from spyre_cache.format import FORMAT_NAME
from spyre_cache.fs import translated
from spyre_cache.leases import check_id, is_live
from spyre_cache.objects.release import RELEASE_TYPE, Envelope, Release, Statement
from spyre_cache.refs import Attached, Known, RefEntry, check_name, check_version
from spyre_cache.root import TOP_LEVEL
from spyre_cache.stores.files import hash_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from spyre_cache.cache import Cache

_HASH = re.compile(r"[0-9a-f]{64}")
_ANY = re.compile(".+")
_BLOB = re.compile(r"[0-9a-f]{64}(\.z)?")


class Finding(Record, frozen=True, kw_only=True):
    """One thing that is not as it must be.

    Attributes:
        kind: `corrupt` (not what it is filed as), `dangling` (points at nothing), `stray` (none of ours),
            `leftover` (of a process that died: harmless, removed in time).
        path: relative to the cache.
        message: what is wrong.
        repaired: whether `repair` took care of it.
    """

    kind: Literal["corrupt", "dangling", "stray", "leftover"]
    path: str
    message: str
    repaired: bool = False

    @property
    def is_error(self) -> bool:
        """Whether it is a fault, not just untidiness."""
        return self.kind != "leftover"


def verify(cache: Cache, *, repair: bool = False) -> list[Finding]:
    """Reads every byte of a cache; verdicts remembered from before do not count.

    With `repair`, damaged files go to quarantine and entries that point at nothing are forgotten; strays stay.

    Raises:
        CacheUnavailableError: the file system refuses.
        ReadOnlyCacheError: `repair` on a read-only cache.
    """
    if repair:
        cache.root.writable("repairing")
    if not cache.read_only:
        cache.blobs.flush()
    with translated("verifying", cache.path, writes=repair):
        return _Verification(cache, repair=repair).run()


class _Verification:
    def __init__(self, cache: Cache, *, repair: bool) -> None:
        self._cache = cache
        self._root = cache.root
        self._repair = repair
        self._findings: list[Finding] = []

    def run(self) -> list[Finding]:
        self._top()
        self._blobs()
        self._two_levels("actions", _HASH, self._action, fan=True)
        self._two_levels("documents", _HASH, self._document, fan=True)
        self._two_levels("manifests", _HASH, self._known, fan=True)
        self._two_levels("statements", _HASH, self._statement)
        self._two_levels("events", _HASH, self._event)
        self._two_levels("memo", _BLOB, lambda _path, _data: None, fan=True)
        self._two_levels("refs", _ANY, self._ref)
        for path in self._files(self._cache.path / "pins", _HASH):
            self._checked(path, self._known)
        # A claim means nothing without its tokens, and reads as none when damaged.
        self._two_levels("claims", _HASH, lambda _path, _data: None, fan=True)
        for path in self._files(self._cache.path / "builds", _ANY):
            if self._named(path):
                self._checked(path, self._build)
        for kind in ("leases", "tokens", "locks"):
            for path in self._files(self._cache.path / kind, _ANY):
                self._named(path)
        self._temporary()
        return self._findings

    # --- walking ---

    def _top(self) -> None:
        for name in self._root.names(self._cache.path):
            path = self._cache.path / name
            if name == FORMAT_NAME or (name in TOP_LEVEL and path.is_dir()):
                continue
            if name.startswith(f".{FORMAT_NAME}-"):
                self._add("leftover", path, "a marker that was being written when its writer died", self._unlink)
            else:
                self._add("stray", path, "nothing in a cache has this name")

    def _files(self, directory: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
        for name in self._root.names(directory):
            path = directory / name
            if pattern.fullmatch(name) and path.is_file() and not path.is_symlink():
                yield path
            elif pattern.fullmatch(name) and path.is_dir() and not path.is_symlink():
                self._add("corrupt", path, "a folder lies where a file belongs", self._set_aside)
            elif path.exists() or path.is_symlink():
                self._add("stray", path, "nothing here has this name")

    def _two_levels(
        self, kind: str, pattern: re.Pattern[str], check: Callable[[Path, bytes], None], *, fan: bool = False
    ) -> None:
        for name in self._root.names(self._cache.path / kind):
            directory = self._cache.path / kind / name
            if not directory.is_dir():
                self._add("stray", directory, "nothing here has this name")
                continue
            for path in self._files(directory, pattern):
                if fan and path.name[:2] != name:
                    self._add("stray", path, "filed in the wrong folder")
                elif kind != "memo":
                    self._checked(path, check)

    def _checked(self, path: Path, check: Callable[[Path, bytes], None]) -> None:
        try:
            data = self._root.read(path)
            if data is None:
                return
            check(path, data)
        except _DanglingError as error:
            self._add("dangling", path, str(error), self._forget)
        except CacheUnavailableError:
            raise  # a tier is away, of which nothing here is to blame
        except (CacheError, ValueError) as error:
            self._add("corrupt", path, str(error), self._set_aside)

    # --- what each must be ---

    def _blobs(self) -> None:
        for kind, fanned in (("blobs", True), ("trash", False)):
            base = self._cache.path / kind
            directories = [base / fan for fan in self._root.names(base)] if fanned else [base]
            for directory in directories:
                if directory.exists() and not directory.is_dir():
                    self._add("stray", directory, "nothing here has this name")
                for path in self._files(directory, _BLOB):
                    self._blob(path, directory.name if fanned else path.name[:2])

    def _blob(self, path: Path, fan: str) -> None:
        if path.name[:2] != fan:
            self._add("stray", path, "filed in the wrong folder")
            return
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # collected meanwhile
        try:
            found = hash_file(path, fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        if found is None:
            self._add("corrupt", path, "not a sound envelope", self._set_aside)
        elif found.hash != path.name.removesuffix(".z"):
            self._add("corrupt", path, f"its contents have the digest {found}", self._set_aside)

    def _action(self, path: Path, data: bytes) -> None:
        result = read_result(data, path.name)
        self._require(*(output.digest for output in result.outputs))

    def _document(self, path: Path, data: bytes) -> None:
        digest = decode(data, Documented).document
        self._require(digest)
        action = self._cache.actions.document(path.name)
        if action is None:
            raise InvalidRecordError(f"the blob {digest} is not the action of this key")

    def _known(self, path: Path, data: bytes) -> None:
        digest = decode(data, Known).manifest
        if digest.hash != path.name:
            raise InvalidRecordError(f"it names {digest}")
        self._manifest(digest)

    def _manifest(self, digest: Digest) -> None:
        self._require(digest)
        manifest = self._cache.manifest(digest)
        self._require(
            *manifest.fragments,
            *(output.digest for artifact in manifest.artifacts for output in artifact.outputs),
            *(weight.digest for weight in manifest.weights if weight.digest is not None),
        )

    def _statement(self, path: Path, data: bytes) -> None:
        entry = decode(data, Attached)
        if (entry.manifest.hash, entry.blob.hash) != (path.parent.name, path.name):
            raise InvalidRecordError("it is filed under another name than it states")
        self._require(entry.blob)

    def _event(self, path: Path, data: bytes) -> None:
        if Digest.of(data).hash != path.name or decode(data, Nondeterminism).action != path.parent.name:
            raise InvalidRecordError("it is filed under another name than it states")

    def _ref(self, path: Path, data: bytes) -> None:
        entry = decode(data, RefEntry)
        check_name(path.parent.name)
        check_version(path.name)
        if (entry.name, entry.version) != (path.parent.name, path.name):
            raise InvalidRecordError(f"it is the entry of {entry.label}")
        self._manifest(entry.manifest)
        self._require(entry.statement)
        body = decode(decode(self._cache.blobs.get(entry.statement), Envelope).body(), Statement)
        predicate = body.predicate if isinstance(body.predicate, msgspec.Raw) else msgspec.json.encode(body.predicate)
        release = decode(bytes(predicate), Release)
        said = (release.name, release.version, release.manifest, release.channel, body.predicateType)
        if said != (entry.name, entry.version, entry.manifest, entry.channel, RELEASE_TYPE):
            raise InvalidRecordError("its statement says something else")

    def _build(self, _path: Path, data: bytes) -> None:
        """What a build's document says is its writer's affair; here it is JSON of bounded size and depth."""
        if len(data) > MAX_BUILD_BYTES:
            raise InvalidRecordError(
                f"a build's document has at most {MAX_BUILD_BYTES} bytes, but these are {len(data)}"
            )
        check_depth(data, "build's document")
        try:
            msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRecordError(f"it is not the JSON object that a build's document is: {error}") from None

    def _require(self, *digests: Digest) -> None:
        # Looked for without holding: a check must not keep anything alive.
        absent = [digest for digest in digests if not self._cache.disk.present(digest)]
        if absent and self._cache.tiers:
            # What lies in this directory may need what lies further away.
            absent = sorted(self._cache.blobs.missing(absent))
        if absent:
            more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            raise _DanglingError(f"the blob {absent[0]}{more} is not in the cache")

    def _named(self, path: Path) -> bool:
        try:
            check_id(path.name)
        except InvalidRecordError as error:
            self._add("stray", path, str(error))
            return False
        return True

    def _temporary(self) -> None:
        for path in self._files(self._cache.path / "tmp", _ANY):
            if not is_live(self._cache.path / "leases" / path.name.partition("~")[0], grace=0):
                self._add("leftover", path, "was being written when its writer died", self._unlink)

    # --- findings ---

    def _add(
        self,
        kind: Literal["corrupt", "dangling", "stray", "leftover"],
        path: Path,
        message: str,
        repair: Callable[[Path], bool] | None = None,
    ) -> None:
        repaired = bool(self._repair and repair and repair(path))
        relative = str(path.relative_to(self._cache.path))
        self._findings.append(Finding(kind=kind, path=relative, message=message, repaired=repaired))

    def _set_aside(self, path: Path) -> bool:
        with suppress(OSError):
            return self._root.quarantine(path, path.stat().st_ino)
        return False

    def _forget(self, path: Path) -> bool:
        removed = self._root.remove(path)
        self._root.flush()
        return removed

    def _unlink(self, path: Path) -> bool:
        return self._root.fs.unlink(path)


class _DanglingError(Exception):
    """Something points at a blob that is not there."""
