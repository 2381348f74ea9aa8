"""What every store of small documents promises; `tests/cache/document_conformance.py` holds each one to it.

Blobs are found by what they are, documents by what they are about: an action's result by its key, a release by its
name. A cache's directory, a bucket and a Redis keep them in one and the same layout of kinds and keys.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from spyre_cache.errors import InvalidRecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Kind = Literal["actions", "documents", "events", "manifests", "refs", "statements", "pins", "builds", "leases"]

IMMUTABLE: Final[frozenset[Kind]] = frozenset({"documents", "events", "manifests", "statements"})
"""Kinds whose documents are written once: a copy that was read stays right until it is removed."""

PAIRED: Final[frozenset[Kind]] = frozenset({"events", "refs", "statements"})
"""Kinds whose keys have two parts (`name/version`); all others have one."""

MAX_DOCUMENT_BYTES = 64 << 20
MAX_KEY_BYTES = 300
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")


class Document(NamedTuple):
    """A stored document.

    Attributes:
        data: its bytes.
        age: seconds since it was stored or last touched, by the store's own clock.
        version: names this very content in this store, for `replace` and `remove`; nothing else may be read into it.
    """

    data: bytes
    age: float
    version: str


class DocumentStore(ABC):
    """Small documents (at most 64 MiB, most of them a few KiB) under a kind and a key.

    * A key is one or two parts joined by `/`, each of letters, digits and `._+-`.
    * A document is there whole or not at all, and never a mix of two.
    * `create` lets exactly one of any number of concurrent callers win; so does `replace` with `expected`.
    * What was created or replaced survives a power cut once the call is back, as far as the store keeps anything.
    * A store may forget what it was told to keep for a time only (`keeps` says which kinds it keeps at all).
    * Methods may raise `CacheUnavailableError`, those that write `ReadOnlyCacheError`; malformed keys
      `InvalidRecordError`; documents that are too large `LimitExceededError`.
    """

    def keeps(self, kind: Kind) -> bool:  # noqa: ARG002  for those who keep only some
        """Whether this store has documents of a kind."""
        return True

    @abstractmethod
    def get_many(self, kind: Kind, keys: Iterable[str]) -> dict[str, Document]:
        """Those that are there, by key, in as few round trips as the store can."""

    @abstractmethod
    def create(self, kind: Kind, key: str, data: bytes) -> bool:
        """Stores a document unless there is one under this key; True when this call did."""

    @abstractmethod
    def replace(self, kind: Kind, key: str, data: bytes, *, expected: Document | None = None) -> bool:
        """Stores a document in place of any other, or, with `expected`, only in place of that one.

        Returns:
            False when `expected` was given and something else (or nothing) is there.
        """

    @abstractmethod
    def touch(self, kind: Kind, key: str) -> None:
        """Makes a document young again, as a use does; nothing happens when it is not there."""

    @abstractmethod
    def remove(self, kind: Kind, key: str, *, expected: Document | None = None) -> bool:
        """Removes a document, with `expected` only that one; True when this call did."""

    @abstractmethod
    def keys(self, kind: Kind, prefix: str = "") -> Iterator[str]:
        """Keys of a kind, sorted as text; with `prefix`, those whose first part it is (`name` finds `name/1`)."""

    def present(self, kind: Kind, keys: Iterable[str]) -> set[str]:
        """Those of the keys under which there is something, without reading it where the store can."""
        return set(self.get_many(kind, keys))

    def latest(self, kind: Kind, keys: Iterable[str]) -> dict[str, Document]:
        """As `get_many`, past every copy: for whoever found a document that is of no use any more."""
        return self.get_many(kind, keys)

    def get(self, kind: Kind, key: str) -> Document | None:
        """One document, or None."""
        return self.get_many(kind, [key]).get(key)

    def ages(self, kind: Kind, prefix: str = "") -> dict[str, float]:
        """Seconds since each was stored or last touched, by key, for one and the same moment.

        A store whose listing knows the times need not read the documents for it.
        """
        return {key: document.age for key, document in self.get_many(kind, self.keys(kind, prefix)).items()}

    def touch_many(self, kind: Kind, keys: Iterable[str]) -> None:
        """`touch` for many keys, in as few round trips as the store can."""
        for key in keys:
            self.touch(kind, key)

    def set_aside(self, kind: Kind, key: str, document: Document) -> None:
        """Takes a damaged document out of the way, unless it was replaced meanwhile."""
        self.remove(kind, key, expected=document)

    def share(self, kind: Kind, keys: Iterable[str]) -> None:  # noqa: ARG002  for those with copies
        """Sees to it that documents are where everybody who uses this cache finds them."""
        return

    def hold(self, hashes: Iterable[str]) -> None:  # noqa: ARG002  for those who collect
        """Keeps blobs and action keys (64 hex digits) from collection while this process lives."""
        return

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Within, no collection sets aside what the caller has found to be there."""
        yield


def check_key(key: str) -> str:
    """The key itself.

    Raises:
        InvalidRecordError: it is none.
    """
    if not is_key(key):
        raise InvalidRecordError(
            f"a document's key is one or two parts of letters, digits and '._+-' joined by '/', not {key[:80]!r}"
        )
    return key


def is_key(text: str) -> bool:
    """Whether the text is a document's key."""
    parts = text.split("/", 2)
    return len(text) <= MAX_KEY_BYTES and len(parts) <= 2 and all(_PART.fullmatch(part) for part in parts)
