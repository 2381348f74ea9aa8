"""Results by action key: small, written last, and only valid while every output is there."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from spyre_cache.codec import Record, decode, encode
from spyre_cache.digest import Digest
from spyre_cache.errors import BlobNotFoundError, CacheUnavailableError, InvalidRecordError
from spyre_cache.objects.action import Action, ActionResult
from spyre_cache.objects.release import Envelope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spyre_cache.stores.base import BlobStore
    from spyre_cache.stores.documents import Document, DocumentStore

RESULT_TYPE = "application/vnd.spyre-build.action-result+json"
FAILURE_SECONDS = 3600.0
MAX_RESULT_BYTES = 4 << 20
MAX_OUTPUTS = 256
_BATCH = 1000  # results whose bytes are held at once
_TRIES = 20
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
    """Action results, in DSSE envelopes whose signature slot may be empty, and the documents of the actions."""

    def __init__(self, documents: DocumentStore, blobs: BlobStore) -> None:
        self._documents = documents
        self._blobs = blobs

    # --- results ---

    def get(self, key: str) -> ActionResult | None:
        """The valid result of an action: a success all of whose outputs are here, or a failure younger than an hour.

        Outputs that are found are kept from garbage collection while this process lives.

        Raises:
            InvalidRecordError: the key is not 64 hex digits.
        """
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, ActionResult]:
        """The valid results of many actions, by key, as `get` gives them; outputs are looked for all at once.

        Raises:
            InvalidRecordError: a key is not 64 hex digits.
        """
        wanted = [_checked(key) for key in dict.fromkeys(keys)]
        self._documents.hold(wanted)
        found: dict[str, ActionResult] = {}
        for start in range(0, len(wanted), _BATCH):
            part = wanted[start : start + _BATCH]
            valid, useless = self._valid(self._documents.get_many("actions", part))
            if useless:
                # A copy may be older than what it is a copy of.
                latest = self._documents.latest("actions", useless)
                changed = {key: there for key, there in latest.items() if there.data != useless[key].data}
                valid |= self._valid(changed)[0]
            found |= valid
        # Use is what keeps an unreferenced result from collection. The age of a failure must not change.
        self._documents.touch_many("actions", [key for key, result in found.items() if result.status == "ok"])
        return found

    def _valid(self, documents: dict[str, Document]) -> tuple[dict[str, ActionResult], dict[str, Document]]:
        """Results that are valid, and the documents of those that are not."""
        results = {key: self._parsed(key, document) for key, document in documents.items()}
        sound = {
            key: result
            for key, result in results.items()
            if result is not None and (result.status == "ok" or documents[key].age < FAILURE_SECONDS)
        }
        absent = self._blobs.missing({digest for result in sound.values() for digest in _outputs(result)})
        valid = {key: result for key, result in sound.items() if absent.isdisjoint(_outputs(result))}
        return valid, {key: document for key, document in documents.items() if key not in valid}

    def share(self, key: str) -> bool:
        """Sees to it that a result, its outputs and its log are where everybody finds them; False when they are not.

        Ask it before saying to another machine that an action is done.
        """
        document = self._documents.get("actions", _checked(key))
        result = None if document is None else self._parsed(key, document)
        if result is None or self._blobs.share(_outputs(result)):
            return False
        if result.log is not None:
            self._blobs.share([result.log])
        self._documents.share("actions", [key])
        return True

    def put(self, result: ActionResult) -> ActionResult:
        """Stores a result unless there is a valid one, and gives the one that counts from now on.

        The first result wins. A later one that does not agree is kept as a nondeterminism event.

        Raises:
            BlobNotFoundError: an output is not in the store; put blobs first.
            InvalidRecordError: the result contradicts itself, or is a failure that another run might not repeat.
            CacheUnavailableError: the entry changes faster than anybody can follow.
        """
        key = _checked(result.action)
        _check(result)
        self._documents.hold([key])
        self._blobs.flush()
        absent = self._blobs.missing(_outputs(result))
        if absent:
            names = ", ".join(str(digest) for digest in sorted(absent)[:3])
            raise BlobNotFoundError(f"a result is stored after its outputs, but {names} is not in the cache")
        data = encode(Envelope.wrap(encode(result), RESULT_TYPE))
        for _ in range(_TRIES):
            if self._documents.create("actions", key, data):
                return result
            document = self._documents.get("actions", key)
            there = None if document is None else self._parsed(key, document)
            if document is None or there is None:
                continue  # it went meanwhile, or was damaged and is set aside
            if self._is_valid(document, there):
                return self._kept(there, result)
            if self._documents.replace("actions", key, data, expected=document):
                return result
        raise CacheUnavailableError(f"the result of action {key[:12]} changed {_TRIES} times while it was being stored")

    def _kept(self, there: ActionResult, other: ActionResult) -> ActionResult:
        if not there.agrees(other):
            event = encode(Nondeterminism(action=there.action, kept=there, other=other))
            self._documents.create("events", f"{there.action}/{Digest.of(event).hash}", event)
        if there.status == "ok":
            self._documents.touch("actions", there.action)
        return there

    def _is_valid(self, document: Document, result: ActionResult) -> bool:
        if result.status == "failed":
            return document.age < FAILURE_SECONDS
        return not self._blobs.share(_outputs(result))

    def peek(self, key: str) -> ActionResult | None:
        """The stored result, valid or not; use does not count."""
        return self.peek_many([key]).get(key)

    def peek_many(self, keys: Iterable[str]) -> dict[str, ActionResult]:
        """Stored results by key, as `peek` gives them, in few round trips.

        Raises:
            InvalidRecordError: a key is not 64 hex digits.
        """
        wanted = [_checked(key) for key in dict.fromkeys(keys)]
        found: dict[str, ActionResult] = {}
        for start in range(0, len(wanted), _BATCH):
            for key, document in self._documents.get_many("actions", wanted[start : start + _BATCH]).items():
                result = self._parsed(key, document)
                if result is not None:
                    found[key] = result
        return found

    def delete(self, key: str) -> bool:
        """Forgets a result; True when there was one."""
        return self._documents.remove("actions", _checked(key))

    def iter(self) -> Iterator[ActionResult]:
        """Every stored result that can be read, valid or not, by key."""
        for key in self.stored_keys():
            result = self.peek(key)
            if result is not None:
                yield result

    def stored_keys(self) -> Iterator[str]:
        """Keys of all entries, sorted."""
        return (key for key in self._documents.keys("actions") if _KEY.fullmatch(key))

    def age(self, key: str) -> float | None:
        """Seconds since a result was stored or last hit, or None when there is none."""
        document = self._documents.get("actions", _checked(key))
        return None if document is None else document.age

    def _parsed(self, key: str, document: Document) -> ActionResult | None:
        """A stored result; a damaged one is set aside and is none."""
        try:
            return read_result(document.data, key)
        except InvalidRecordError:
            self._documents.set_aside("actions", key, document)
            return None

    # --- documents of actions ---

    def describe(self, action: Action) -> Digest:
        """Stores an action's document, so that `document` finds it by key; gives the blob's digest."""
        key = action.key()
        self._documents.hold([key])
        digest = self._blobs.put(encode(action))
        if not self._documents.create("documents", key, encode(Documented(document=digest))):
            self._documents.touch("documents", key)
        return digest

    def document(self, key: str) -> Action | None:
        """The action of a key, or None when it was never described here or is damaged."""
        document = self._documents.get("documents", _checked(key))
        if document is None:
            return None
        action = self._read_description(key, document.data)
        if action is None:
            # It may be a copy that is damaged, of one that is not.
            latest = self._documents.latest("documents", [key]).get(key)
            if latest is not None and latest.data != document.data:
                action = self._read_description(key, latest.data)
        return action

    def _read_description(self, key: str, data: bytes) -> Action | None:
        with suppress(BlobNotFoundError, InvalidRecordError):
            digest = decode(data, Documented, limit=MAX_RESULT_BYTES).document
            action = decode(self._blobs.get(digest), Action)
            return action if action.key() == key else None
        return None

    def document_digest(self, key: str) -> Digest | None:
        """The blob that holds a key's action, or None."""
        document = self._documents.get("documents", _checked(key))
        try:
            return None if document is None else decode(document.data, Documented, limit=MAX_RESULT_BYTES).document
        except InvalidRecordError:
            return None

    def described(self) -> Iterator[str]:
        """Keys of every described action, sorted."""
        return (key for key in self._documents.keys("documents") if _KEY.fullmatch(key))

    # --- events ---

    def events(self) -> list[Nondeterminism]:
        """Results that disagreed with the one kept, by key."""
        found = []
        for document in self._documents.get_many("events", self._documents.keys("events")).values():
            with suppress(InvalidRecordError):
                found.append(decode(document.data, Nondeterminism, limit=2 * MAX_RESULT_BYTES))
        return found


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise InvalidRecordError(f"an action key is 64 lowercase hex digits, not {key[:80]!r}")
    return key


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
