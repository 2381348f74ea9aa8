"""What lies on the local disk and is still to be written to the tiers that machines share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, TypeVar

from spyre_cache.errors import BlobNotFoundError, CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from spyre_cache.digest import Digest
    from spyre_cache.stores.disk import DiskStore
    from spyre_cache.stores.disk_documents import DiskDocuments
    from spyre_cache.stores.documents import Kind
    from spyre_cache.stores.tiers import Tier

_T = TypeVar("_T")
WriteMode = Literal["through", "back"]

WHOLE_BYTES = 2 << 20  # blobs up to this size are read into memory to be sent
_PARALLEL = 8  # blobs under way to a tier at once
_FEW = 4  # small blobs that are sent without asking whether they are there
_PART = 500  # what is dealt with before the next is looked at: a failure then costs little of the work


class Outbox:
    """Blobs first, documents after them, each kept here until every durable tier has it.

    Writing through, whatever is put outside a batch is sent before the call returns. Writing back, it is sent by a
    thread of its own; `drain` waits for it either way, and raises when a durable tier cannot be written.
    """

    def __init__(
        self, blobs: DiskStore, documents: DiskDocuments, tiers: Sequence[Tier], *, write: WriteMode = "through"
    ) -> None:
        self._blobs, self._documents = blobs, documents
        self._durable = [tier for tier in tiers if tier.durable]
        self._hot = [tier for tier in tiers if not tier.durable]
        self._back = write == "back"
        self._lock = threading.Lock()
        self._draining = threading.RLock()
        self._depth = 0
        self._waiting: dict[Digest, None] = {}
        self._said: dict[tuple[Kind, str], None] = {}
        self._lost: list[Digest] = []
        self._is_behind = False

    def __len__(self) -> int:
        with self._lock:
            return len(self._waiting) + len(self._said)

    # --- what is to be sent ---

    def add(self, digests: Iterable[Digest]) -> None:
        """Blobs that lie on the local disk."""
        with self._lock:
            self._waiting.update(dict.fromkeys(digests))

    def add_document(self, kind: Kind, key: str) -> None:
        """A document that lies on the local disk, of a kind that says the same whoever writes it."""
        with self._lock:
            self._said[kind, key] = None

    def forget(self, digest: Digest) -> None:
        """A blob that is about to be deleted: it is not sent from now on."""
        with self._draining, self._lock:
            self._waiting.pop(digest, None)

    def settle(self) -> None:
        """After an addition: sends now, later, or at the end of the batch.

        Raises:
            CacheUnavailableError: a durable tier cannot be written; it stays to be sent.
        """
        with self._lock:
            if self._depth:
                return
            if self._back:
                self._send_behind()
                return
        self.drain()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Within, nothing is sent unless somebody drains; the caller settles afterwards."""
        with self._lock:
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1

    # --- sending ---

    def drain(self) -> None:
        """Sends everything.

        Raises:
            CacheUnavailableError: a durable tier cannot be written; what it lacks stays to be sent.
            BlobNotFoundError: blobs were damaged on the local disk before they reached a tier; said once, after
                everything else was sent.
        """
        with self._draining:
            self._send_all()
            if not self._lost:
                return
            lost, self._lost = self._lost, []
            raise BlobNotFoundError(
                f"{len(lost)} blobs, {lost[0]} among them, were damaged on the local disk before they reached the "
                "other tiers; build or put them again"
            )

    def _send_all(self) -> None:
        with self._draining:
            while True:
                with self._lock:
                    blobs = list(self._waiting)[:_PART]
                    said = [] if blobs else list(self._said)[:_PART]
                if blobs:
                    self._send_blobs(blobs)
                elif said:
                    self._send_documents(said)
                else:
                    return

    def _send_behind(self) -> None:
        """Has a thread drain, which goes once there is nothing to send; who needs to know how it went drains too."""
        if self._is_behind:
            return
        self._is_behind = True

        def send() -> None:
            failed = False
            while True:
                try:
                    self._send_all()
                except Exception:  # noqa: BLE001  whoever needs to know drains too, and is told
                    failed = True  # what it left is sent with the next addition
                with self._lock:
                    if failed or not (self._waiting or self._said):
                        self._is_behind = False
                        return

        threading.Thread(target=send, name="spyre-outbox", daemon=True).start()

    def _send_blobs(self, digests: list[Digest]) -> None:
        self._blobs.flush()
        lost: set[Digest] = set()
        for tier in self._durable:
            lost |= self._send_to(tier, digests)
        with self._lock:
            for digest in digests:
                self._waiting.pop(digest, None)
        self._lost += lost
        for tier in self._hot:
            self._warm(tier, digests)

    def _send_to(self, tier: Tier, digests: list[Digest]) -> set[Digest]:
        """Sends what a tier does not have; gives what it has not got because the local disk has not either."""
        wanted = digests
        if len(digests) > _FEW or any(digest.size > WHOLE_BYTES for digest in digests):
            absent = tier.call(lambda stores: stores.blobs.missing(digests))
            wanted = [digest for digest in digests if digest in absent]
        lost: set[Digest] = set()

        def send(digest: Digest) -> None:
            try:
                self.send(tier, digest)
                tier.count("puts")
            except BlobNotFoundError:
                lost.add(digest)

        each(send, wanted)
        return tier.call(lambda stores: stores.blobs.missing(lost)) if lost else lost

    def send(self, tier: Tier, digest: Digest) -> None:
        """Writes one blob to one tier.

        Raises:
            CacheUnavailableError: the tier cannot be written.
            BlobNotFoundError: the blob is not on the local disk.
        """
        # What the local disk raises is none of the tier's doing, so it is read outside.
        if digest.size <= WHOLE_BYTES:
            data = self._blobs.get(digest)
            tier.call(lambda stores: stores.blobs.put(data))
            return
        with self._blobs.open(digest) as reader:
            tier.call(lambda stores: stores.blobs.put_stream(reader))

    def _warm(self, tier: Tier, digests: list[Digest]) -> None:
        """Small blobs into a tier that need not have them."""
        for digest in digests:
            if not tier.is_away and tier.accepts(digest.size):
                with suppress(CacheUnavailableError, BlobNotFoundError):
                    self.send(tier, digest)
                    tier.count("puts")

    def _send_documents(self, said: list[tuple[Kind, str]]) -> None:
        for tier in self._durable:
            self._say_all(tier, self._unsaid(tier, said))
        with self._lock:
            for item in said:
                self._said.pop(item, None)
        for tier in self._hot:
            kept = [item for item in said if not tier.is_away and tier.keeps(item[0])]
            with suppress(CacheUnavailableError):
                self._say_all(tier, kept)

    def _unsaid(self, tier: Tier, said: list[tuple[Kind, str]]) -> list[tuple[Kind, str]]:
        """Those that a tier does not have yet; few are sent without asking."""
        if len(said) <= _FEW:
            return said
        by_kind: dict[Kind, list[str]] = {}
        for kind, key in said:
            by_kind.setdefault(kind, []).append(key)
        there = {
            (kind, key)
            for kind, keys in by_kind.items()
            for key in tier.call(lambda stores: stores.documents.present(kind, keys))  # noqa: B023  called at once
        }
        return [item for item in said if item not in there]

    def _say_all(self, tier: Tier, said: list[tuple[Kind, str]]) -> None:
        def say(item: tuple[Kind, str]) -> None:
            kind, key = item
            document = self._documents.get(kind, key)
            if document is not None:  # else: removed meanwhile
                tier.call(lambda stores: stores.documents.create(kind, key, document.data))

        each(say, said)
        tier.count("puts", len(said))


def each(send: Callable[[_T], None], items: Sequence[_T]) -> None:
    """Calls a function for several items at a time; all are tried, and the first error is raised."""
    if len(items) <= 1:
        for item in items:
            send(item)
        return
    with ThreadPoolExecutor(min(_PARALLEL, len(items)), "spyre-outbox") as pool:
        futures = [pool.submit(send, item) for item in items]
        for future in futures:
            future.result()
