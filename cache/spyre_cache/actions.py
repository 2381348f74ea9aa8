"""Results by action key: small, written last, and only valid while every output is there."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from spyre_cache.codec import Record, decode, encode
from spyre_cache.digest import Digest
from spyre_cache.errors import BlobNotFoundError, InvalidRecordError
from spyre_cache.objects.action import Action, ActionResult
from spyre_cache.objects.release import Envelope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from spyre_cache.root import Root
    from spyre_cache.stores.base import BlobStore

RESULT_TYPE = "application/vnd.spyre-build.action-result+json"
FAILURE_SECONDS = 3600.0
MAX_RESULT_BYTES = 4 << 20
MAX_OUTPUTS = 256
_KEY = re.compile(r"[0-9a-f]{64}")
_OUTPUT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}")


class Nondeterminism(Record, frozen=True, kw_only=True):
    """Two results of one action that do not agree; `kept` is the one that counts."""

    action: str
    kept: ActionResult
    other: ActionResult


class Documented(Record, frozen=True, kw_only=True):
    """Which blob is the action of a key."""

    schema: Literal["documented/1"] = "documented/1"
    document: Digest


class ActionCache:
    """Action results of a cache directory, in DSSE envelopes whose signature slot may be empty."""

    def __init__(self, root: Root, blobs: BlobStore) -> None:
        self._root = root
        self._blobs = blobs

    def get(self, key: str) -> ActionResult | None:
        """The valid result of an action: a success all of whose outputs are here, or a failure younger than an hour.

        Outputs that are found are kept from garbage collection while this process lives.

        Raises:
            InvalidRecordError: the key is not 64 hex digits.
        """
        path = self._path(key)
        self._root.hold([key])
        result = self._read(path, key)
        if result is None or not self._is_valid(path, result):
            return None
        self._used(path, result)
        return result

    def get_many(self, keys: Iterable[str]) -> dict[str, ActionResult]:
        """The valid results among these actions, by key."""
        return {key: found for key in keys if (found := self.get(key)) is not None}

    def put(self, result: ActionResult) -> ActionResult:
        """Stores a result unless there is a valid one, and gives the one that counts from now on.

        The first result wins. A later one that does not agree is kept as a nondeterminism event.

        Raises:
            BlobNotFoundError: an output is not in the store; put blobs first.
            InvalidRecordError: the result contradicts itself, or is a failure that another run might not repeat.
        """
        path = self._path(result.action)
        _check(result)
        self._root.hold([result.action])
        self._blobs.flush()
        absent = self._blobs.missing(_outputs(result))
        if absent:
            names = ", ".join(str(digest) for digest in sorted(absent)[:3])
            raise BlobNotFoundError(f"a result is stored after its outputs, but {names} is not in the cache")
        data = encode(Envelope.wrap(encode(result), RESULT_TYPE))
        if self._root.create(path, data):
            return result
        # Rare from here on: someone was first, or an entry is to be replaced. One at a time.
        with self._root.lock("actions"):
            there = self._read(path, result.action)
            if there is None or not self._is_valid(path, there):
                self._root.replace(path, data)
                return result
            if not there.agrees(result):
                self._record_event(there, result)
            self._used(path, there)
            return there

    def _used(self, path: Path, result: ActionResult) -> None:
        """Use is what keeps an unreferenced result from collection. The age of a failure must not change."""
        if result.status == "ok" and not self._root.read_only:
            with suppress(OSError):
                self._root.fs.touch(path)

    def describe(self, action: Action) -> Digest:
        """Stores an action's document, so that `document` finds it by key; gives the blob's digest."""
        key = action.key()
        self._root.hold([key])
        digest = self._blobs.put(encode(action))
        if not self._root.create(self._document_path(key), encode(Documented(document=digest))):
            with suppress(OSError):
                self._root.fs.touch(self._document_path(key))
        return digest

    def document(self, key: str) -> Action | None:
        """The action of a key, or None when it was never described here or is damaged."""
        digest = self.document_digest(key)
        if digest is None:
            return None
        try:
            action = decode(self._blobs.get(digest), Action)
        except (BlobNotFoundError, InvalidRecordError):
            return None
        return action if action.key() == key else None

    def document_digest(self, key: str) -> Digest | None:
        """The blob that holds a key's action, or None."""
        data = self._root.read(self._document_path(key), MAX_RESULT_BYTES)
        try:
            return None if data is None else decode(data, Documented).document
        except InvalidRecordError:
            return None

    def described(self) -> Iterator[str]:
        """Keys of every described action, sorted."""
        yield from self._keys("documents")

    def _document_path(self, key: str) -> Path:
        self._path(key)
        return self._root.path / "documents" / key[:2] / key

    def peek(self, key: str) -> ActionResult | None:
        """The stored result, valid or not; use does not count."""
        return self._read(self._path(key), key)

    def delete(self, key: str) -> bool:
        """Forgets a result; True when there was one."""
        return self._root.remove(self._path(key))

    def iter(self) -> Iterator[ActionResult]:
        """Every stored result that can be read, valid or not, by key."""
        for key in self.stored_keys():
            result = self._read(self._path(key), key)
            if result is not None:
                yield result

    def stored_keys(self) -> Iterator[str]:
        """Keys of all entries, sorted."""
        yield from self._keys("actions")

    def _keys(self, kind: str) -> Iterator[str]:
        directory = self._root.path / kind
        for fan in self._root.names(directory):
            for name in self._root.names(directory / fan):
                if _KEY.fullmatch(name) and name[:2] == fan:
                    yield name

    def age(self, key: str) -> float | None:
        """Seconds since a result was stored or last hit, or None when there is none."""
        try:
            return max(0.0, time.time() - self._path(key).stat().st_mtime)
        except OSError:
            return None

    def events(self) -> list[Nondeterminism]:
        """Results that disagreed with the one kept, by key."""
        found = []
        directory = self._root.path / "events"
        for key in self._root.names(directory):
            for name in self._root.names(directory / key):
                data = self._root.read(directory / key / name, 2 * MAX_RESULT_BYTES)
                with suppress(InvalidRecordError):
                    found.append(decode(data or b"", Nondeterminism))
        return found

    def _record_event(self, kept: ActionResult, other: ActionResult) -> None:
        event = encode(Nondeterminism(action=kept.action, kept=kept, other=other))
        self._root.create(self._root.path / "events" / kept.action / Digest.of(event).hash, event)

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise InvalidRecordError(f"an action key is 64 lowercase hex digits, not {key[:80]!r}")
        return self._root.path / "actions" / key[:2] / key

    def _read(self, path: Path, key: str) -> ActionResult | None:
        """The stored result; a damaged entry is set aside and is none."""
        try:
            inode = path.stat().st_ino
        except OSError:
            return None
        try:
            data = self._root.read(path, MAX_RESULT_BYTES)
            return None if data is None else read_result(data, key)
        except InvalidRecordError:
            self._root.quarantine(path, inode)
            return None

    def _is_valid(self, path: Path, result: ActionResult) -> bool:
        if result.status == "failed":
            try:
                return time.time() - path.stat().st_mtime < FAILURE_SECONDS
            except OSError:
                return False
        return not self._blobs.missing(_outputs(result))


def read_result(data: bytes, key: str) -> ActionResult:
    """The result in a stored envelope.

    Raises:
        InvalidRecordError: not an envelope of a result, of another action, or one that contradicts itself.
    """
    envelope = decode(data, Envelope, limit=MAX_RESULT_BYTES)
    if envelope.payloadType != RESULT_TYPE:
        raise InvalidRecordError(f"an action result has type {RESULT_TYPE}, not {envelope.payloadType[:80]!r}")
    try:
        body = envelope.body()
    except ValueError:
        raise InvalidRecordError("the payload of an envelope is not base64") from None
    result = decode(body, ActionResult, limit=MAX_RESULT_BYTES)
    if result.action != key:
        raise InvalidRecordError(f"the result filed under {key} is of action {result.action[:80]}")
    _check(result)
    return result


def _outputs(result: ActionResult) -> list[Digest]:
    return [output.digest for output in result.outputs]


def _check(result: ActionResult) -> None:
    if len(result.outputs) > MAX_OUTPUTS:
        raise InvalidRecordError(f"an action has at most {MAX_OUTPUTS} outputs, but {len(result.outputs)} came")
    names = [output.name for output in result.outputs]
    for name in names:
        if not _OUTPUT_NAME.fullmatch(name):
            raise InvalidRecordError(f"an output's name is letters, digits and '._+-', not {name[:80]!r}")
    if len(set(names)) != len(names):
        raise InvalidRecordError("an action's outputs have different names, but one came twice")
    if result.status == "ok":
        if result.failure is not None or not result.outputs:
            raise InvalidRecordError("a result that is ok has outputs and no failure")
    elif result.failure is None or result.outputs:
        raise InvalidRecordError("a result that failed has a failure and no outputs")
    elif result.failure.kind != "unsupported":
        raise InvalidRecordError(
            f"only failures that every run repeats are stored, and {result.failure.kind!r} is not one; report it, and "
            "let the next build try again"
        )
