"""Documents about builds: bounded, replaced whole, none of the cache's business what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyre_cache.errors import LimitExceededError
from spyre_cache.leases import check_id

if TYPE_CHECKING:
    from spyre_cache.stores.documents import DocumentStore

MAX_BUILDS = 500
MAX_BUILD_BYTES = 16 << 20


class Builds:
    """The last `MAX_BUILDS` builds by id."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents
        self._put: set[str] = set()

    def put(self, build_id: str, document: bytes) -> None:
        """Stores or replaces a build's document; the oldest beyond the bound go.

        Raises:
            InvalidRecordError: the id is no id.
            LimitExceededError: more than `MAX_BUILD_BYTES`.
        """
        check_id(build_id)
        _within(document)
        self._documents.replace("builds", build_id, document)
        if build_id not in self._put:
            # A build is written many times, and comes but once.
            self._put.add(build_id)
            for old in self.list()[MAX_BUILDS:]:
                self._documents.remove("builds", old)

    def get(self, build_id: str) -> bytes | None:
        """A build's document, or None when there is none.

        Raises:
            InvalidRecordError: the id is no id.
            LimitExceededError: what is stored is larger than `MAX_BUILD_BYTES`.
        """
        document = self._documents.get("builds", check_id(build_id))
        return None if document is None else _within(document.data)

    def list(self) -> list[str]:
        """Ids, the latest put first; of those put at one moment, as far as the store can tell, the greater id."""
        ages = self._documents.ages("builds")
        return sorted(sorted(ages, reverse=True), key=ages.__getitem__)


def _within(document: bytes) -> bytes:
    if len(document) > MAX_BUILD_BYTES:
        raise LimitExceededError(f"a build's document has at most {MAX_BUILD_BYTES} bytes, but {len(document)} came")
    return document
