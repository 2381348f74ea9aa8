"""Documents as files of a cache directory, one each, at the places that the directory's format says."""

# ruff: noqa: D102  the methods' contract is DocumentStore's

from __future__ import annotations

import os
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from spyre_cache.errors import CacheError, InvalidRecordError, LimitExceededError
from spyre_cache.fs import translated
from spyre_cache.root import GC_LOCK
from spyre_cache.stores.documents import (
    IMMUTABLE,
    MAX_DOCUMENT_BYTES,
    PAIRED,
    Document,
    DocumentStore,
    Kind,
    check_key,
    is_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spyre_cache.root import Root

FANNED: Final[frozenset[Kind]] = frozenset({"actions", "documents", "manifests"})
"""Kinds of many documents, spread over folders by the first two characters of their keys."""


class DiskDocuments(DocumentStore):
    """Documents of a cache directory.

    Leases are not among them: here they are files that their holders keep locked (`spyre_cache.leases`).
    """

    def __init__(self, root: Root) -> None:
        self._root = root

    def keeps(self, kind: Kind) -> bool:
        return kind != "leases"

    def path(self, kind: Kind, key: str) -> Path:
        """Where a document lies.

        Raises:
            InvalidRecordError: no key, or a kind that is not kept here.
        """
        return self._root.path / self._place(kind, key)

    def _place(self, kind: Kind, key: str) -> str:
        """As `path`, but relative to the root: many thousand Paths take longer to make than files to read."""
        check_key(key)
        if not self.keeps(kind):
            raise InvalidRecordError(f"a cache directory keeps no documents of the kind {kind!r}")
        if ("/" in key) != (kind in PAIRED):
            parts = "two parts" if kind in PAIRED else "one part"
            raise InvalidRecordError(f"a key of the kind {kind!r} has {parts}, unlike {key[:80]!r}")
        return f"{kind}/{key[:2]}/{key}" if kind in FANNED else f"{kind}/{key}"

    # --- reading ---

    def get_many(self, kind: Kind, keys: Iterable[str]) -> dict[str, Document]:
        self._settle(kind)
        now = time.time_ns()
        found = {}
        root = str(self._root.path)
        with translated("reading documents", self._root.path, writes=False):
            for key in keys:
                document = self._read(f"{root}/{self._place(kind, key)}", now)
                if document is not None:
                    found[key] = document
        return found

    def _read(self, path: str | Path, now: int) -> Document | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not make anyone wait
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size > MAX_DOCUMENT_BYTES:
                self._root.quarantine(Path(path), status.st_ino)
                return None
            data = _read_all(fd, status.st_size)
        finally:
            os.close(fd)
        return Document(data, max(0, now - status.st_mtime_ns) / 1e9, _version(data))

    def keys(self, kind: Kind, prefix: str = "") -> Iterator[str]:
        if not self.keeps(kind):
            return
        self._settle(kind)
        directory = self._root.path / kind
        if kind not in PAIRED:
            # The first two characters come first in every order, so that folders of them do not disturb it.
            folders = self._root.names(directory) if kind in FANNED and not prefix else [prefix[:2]]
            for folder in folders:
                place = directory / folder if kind in FANNED else directory
                for name in self._root.names(place):
                    if is_key(name) and prefix in ("", name) and (kind not in FANNED or name[:2] == folder):
                        yield name
            return
        parents = [prefix] if prefix else self._root.names(directory)
        pairs = (f"{first}/{second}" for first in parents for second in self._root.names(directory / first))
        yield from sorted(pair for pair in pairs if is_key(pair))

    def ages(self, kind: Kind, prefix: str = "") -> dict[str, float]:
        now = time.time_ns()
        found = {}
        for key in self.keys(kind, prefix):
            with suppress(OSError):
                found[key] = max(0, now - self.path(kind, key).stat().st_mtime_ns) / 1e9
        return found

    def _settle(self, kind: Kind) -> None:
        """What waits for the end of a batch is there for whoever asks."""
        if kind in IMMUTABLE and self._root.has_pending_documents:
            self._root.flush()

    def age(self, kind: Kind, key: str) -> float | None:
        """Seconds since a document was stored or last touched, or None when it is not there."""
        self._settle(kind)
        try:
            return max(0, time.time_ns() - self.path(kind, key).stat().st_mtime_ns) / 1e9
        except OSError:
            return None

    # --- writing ---

    def create(self, kind: Kind, key: str, data: bytes) -> bool:
        return self._root.create(self.path(kind, key), data, batched=kind in IMMUTABLE)

    def adopt(self, kind: Kind, key: str, document: Document) -> None:
        """Keeps a copy of another store's document, as old as it is there."""
        path = self.path(kind, key)
        with self._root.lock(_lock(kind)):
            self._root.replace(path, document.data, age=document.age)

    def replace(self, kind: Kind, key: str, data: bytes, *, expected: Document | None = None) -> bool:
        path = self.path(kind, key)
        if len(data) > MAX_DOCUMENT_BYTES:
            raise LimitExceededError(f"a document has at most {MAX_DOCUMENT_BYTES} bytes, but {len(data)} came")
        # Every replacement waits its turn, lest one comes between another's look and its write.
        with self._root.lock(_lock(kind)):
            if expected is not None and not self._is(path, expected):
                return False
            self._root.replace(path, data)
        return True

    def touch(self, kind: Kind, key: str) -> None:
        path = self.path(kind, key)
        if not self._root.read_only:
            with suppress(OSError):
                self._root.fs.touch(path)

    def remove(self, kind: Kind, key: str, *, expected: Document | None = None) -> bool:
        path = self.path(kind, key)
        with self._root.lock(_lock(kind)):
            if expected is not None and not self._is(path, expected):
                return False
            removed = self._root.remove(path)
            self._root.flush()
        return removed

    def set_aside(self, kind: Kind, key: str, document: Document) -> None:
        path = self.path(kind, key)
        if self._root.read_only:
            self._root.corrupt += 1
            return
        with suppress(OSError, CacheError), self._root.lock(_lock(kind)):
            inode = path.stat().st_ino
            if self._is(path, document):
                self._root.quarantine(path, inode)

    def _is(self, path: Path, expected: Document) -> bool:
        with translated("reading a document", path, writes=False):
            there = self._read(path, 0)
        return there is not None and there.version == expected.version

    # --- collection ---

    def hold(self, hashes: Iterable[str]) -> None:
        self._root.hold(hashes)

    @contextmanager
    def steady(self) -> Iterator[None]:
        with self._root.lock(GC_LOCK):
            yield


def _lock(kind: Kind) -> str:
    return f"replace-{kind}"


def _read_all(fd: int, size: int) -> bytes:
    data = os.read(fd, size + 1)
    while len(data) < size:  # a signal, or a file system that gives less at once
        more = os.read(fd, size - len(data))
        if not more:
            break
        data += more
    return data


def _version(data: bytes) -> str:
    # By content: a touch or a copy changes nothing that a decision was based on.
    return blake3(data).hexdigest(16)
