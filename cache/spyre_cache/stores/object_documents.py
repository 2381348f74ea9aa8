"""Documents as objects: `<kind>/-/<key>`, or `<kind>/<first>/<second>` for keys of two parts.

    <version, 32 hex digits> newline <the document>

The version is drawn anew at every write. A write whose answer got lost is told from another's by it, and it stays when
a document is only touched. What was removed on condition stays as an object of two bytes until it is collected:
buckets can replace on condition, but not remove.
"""

# ruff: noqa: D102  the methods' contract is DocumentStore's

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from spyre_cache.errors import InvalidRecordError, LimitExceededError
from spyre_cache.stores.documents import MAX_DOCUMENT_BYTES, Document, DocumentStore, Kind, check_key
from spyre_cache.stores.object_holds import REFRESH_SECONDS, Holds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spyre_cache.stores.object_client import Meta, Objects, Stored

REMOVED = b"-\n"
_HEAD_BYTES = 33
_VERSION = re.compile(rb"[0-9a-f]{32}\n")
_LISTED = 64  # keys from which on it pays to list what there is first
_PER_PAGE = 16
_PAGE = 1000
_ATTEMPTS = 20
_MEMO = 100_000


class ObjectDocuments(DocumentStore):
    """Documents in a bucket or directory.

    Attributes:
        url: where, fit for messages.
        objects: the objects themselves, for collection.
    """

    def __init__(self, objects: Objects, *, refresh: float = REFRESH_SECONDS) -> None:
        self.url = objects.shown
        self.objects = objects
        self._refresh = refresh
        self._holds = Holds(objects, refresh=refresh)
        self._young: dict[str, float] = {}  # paths, and until when by our own steps a touch can wait
        self._lock = threading.Lock()

    # --- reading ---

    def get_many(self, kind: Kind, keys: Iterable[str]) -> dict[str, Document]:
        wanted = {document_path(kind, key): key for key in keys}
        paths = self._there(kind, wanted) if len(wanted) >= _LISTED else list(wanted)
        found: dict[str, Document] = {}
        now = self.objects.now() if paths else 0.0
        for path, stored in zip(paths, self.objects.each(self._read, paths), strict=True):
            document = _document(stored, now)
            if document is not None:
                found[wanted[path]] = document
                self._note(path, document.age)
        return found

    def present(self, kind: Kind, keys: Iterable[str]) -> set[str]:
        wanted = {document_path(kind, key): key for key in keys}
        listed = self._listed(kind, wanted) if len(wanted) >= _LISTED else None
        found = self.objects.each(self.objects.head, wanted) if listed is None else map(listed.get, wanted)
        metas = [meta for meta in found if meta is not None and key_of(meta) is not None]
        lost = self._holds.secure(metas)
        return {wanted[meta.path] for meta in metas if meta.path not in lost}

    def _read(self, path: str) -> Stored | None:
        return self.objects.get(path, MAX_DOCUMENT_BYTES + _HEAD_BYTES)

    def _there(self, kind: Kind, paths: dict[str, str]) -> list[str]:
        """Those of the paths that may be there; all of them where a listing would be too long."""
        listed = self._listed(kind, paths)
        return list(paths) if listed is None else [path for path in paths if path in listed]

    def _listed(self, kind: Kind, paths: dict[str, str]) -> dict[str, Meta] | None:
        """Those of the paths that are there; None where a listing would be too long for so few."""
        budget = _PAGE * (1 + len(paths) // _PER_PAGE)
        found = {}
        for meta in islice(self.objects.list(kind), budget):
            budget -= 1
            if meta.path in paths:
                found[meta.path] = meta
        return found if budget else None

    def keys(self, kind: Kind, prefix: str = "") -> Iterator[str]:
        found = {key_of(meta) for meta in self.objects.list(_folder(kind, prefix))}
        yield from sorted(key for key in found if key is not None)

    def ages(self, kind: Kind, prefix: str = "") -> dict[str, float]:
        now = self.objects.now()
        listed = ((key_of(meta), now - meta.modified) for meta in self.objects.list(_folder(kind, prefix)))
        return {key: max(0.0, age) for key, age in listed if key is not None}

    # --- writing ---

    def create(self, kind: Kind, key: str, data: bytes) -> bool:
        path, version = document_path(kind, key), _new_version()
        body = _body(version, data)
        for _ in range(_ATTEMPTS):
            if self.objects.create(path, body):
                return True
            there = self._read(path)
            if there is None:
                continue
            if there.data[:_HEAD_BYTES] == version:
                return True
            if there.data == REMOVED:
                if self._swap(kind, path, there, body):
                    return True
            elif not self._holds.secure([there.meta]):
                # Whoever finds it there counts on its staying.
                return False
        return False

    def replace(self, kind: Kind, key: str, data: bytes, *, expected: Document | None = None) -> bool:
        path = document_path(kind, key)
        body = _body(_new_version(), data)
        if expected is None:
            with self.objects.exclusive(kind):
                self.objects.put(path, body)
            return True
        return self._replace(kind, path, expected, body)

    def _replace(self, kind: Kind, path: str, expected: Document, body: bytes) -> bool:
        for _ in range(_ATTEMPTS):
            there = self._read(path)
            if there is None or _version_of(there.data) != expected.version:
                return False
            # A touch in between changes the etag and not the version: then once more.
            if self._swap(kind, path, there, body):
                return True
        return False

    def _swap(self, kind: Kind, path: str, there: Stored, body: bytes) -> bool:
        """Puts a body in place of exactly what was read."""
        if self.objects.directory is None:
            if self.objects.update(path, body, there.meta.etag):
                return True
        else:
            with self.objects.exclusive(kind):
                now = self._read(path)
                if now is not None and now.data == there.data:
                    self.objects.put(path, body)
                    return True
        now = self._read(path)
        return body != REMOVED and now is not None and now.data == body

    def touch(self, kind: Kind, key: str) -> None:
        path = document_path(kind, key)
        with self._lock:
            if self._young.get(path, 0.0) > time.monotonic():
                return
        if self.objects.directory is not None:
            self.objects.touch_file(path)
        else:
            there = self._read(path)
            # Whoever is first makes it young for everybody.
            if there is not None and there.data != REMOVED:
                self.objects.update(path, there.data, there.meta.etag)
        self._note(path, 0.0)

    def touch_many(self, kind: Kind, keys: Iterable[str]) -> None:
        for _ in self.objects.each(lambda key: self.touch(kind, key), keys):
            pass

    def _note(self, path: str, age: float) -> None:
        with self._lock:
            if len(self._young) >= _MEMO:
                self._young.clear()
            self._young[path] = time.monotonic() + self._refresh - age

    def remove(self, kind: Kind, key: str, *, expected: Document | None = None) -> bool:
        path = document_path(kind, key)
        if expected is not None:
            return self._replace(kind, path, expected, REMOVED)
        with self.objects.exclusive(kind):
            meta = self.objects.head(path)
            if meta is None or meta.size <= len(REMOVED):
                return False
            self.objects.delete([path])
            return True

    def close(self) -> None:
        """Ends the threads, which the blobs share."""
        self.objects.close()


def document_path(kind: Kind, key: str) -> str:
    """Where a document lies. One part has a folder of its own: no key is a folder of others."""
    return f"{kind}/{check_key(key)}" if "/" in key else f"{kind}/-/{check_key(key)}"


def _folder(kind: Kind, prefix: str) -> str:
    return f"{kind}/{check_key(prefix)}" if prefix else kind


def key_of(meta: Meta) -> str | None:
    """The key of an object of a kind; None when it is none of ours, or removed."""
    if meta.size <= len(REMOVED):
        return None
    with suppress(InvalidRecordError):
        return check_key(meta.path.partition("/")[2].removeprefix("-/"))
    return None


def _new_version() -> bytes:
    return os.urandom(16).hex().encode() + b"\n"


def _body(version: bytes, data: bytes) -> bytes:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise LimitExceededError(f"a document has at most {MAX_DOCUMENT_BYTES} bytes, but {len(data)} came")
    return version + data


def _version_of(stored: bytes) -> str:
    return stored[: _HEAD_BYTES - 1].decode("ascii", "replace") if _VERSION.match(stored) else ""


def _document(stored: Stored | None, now: float) -> Document | None:
    if stored is None or not (version := _version_of(stored.data)):
        return None
    return Document(stored.data[_HEAD_BYTES:], max(0.0, now - stored.meta.modified), version)
