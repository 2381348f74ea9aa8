"""A tier beyond the local directory: a store of blobs and one of documents, asked only while it answers."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from spyre_cache.codec import Record
from spyre_cache.errors import CacheError, CacheUnavailableError, CorruptBlobError, ReadOnlyCacheError
from spyre_cache.stores.breaker import Breaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spyre_cache.digest import Digest
    from spyre_cache.stores.base import BlobStore
    from spyre_cache.stores.documents import DocumentStore, Kind
    from spyre_cache.stores.urls import Remote, TierKind

_T = TypeVar("_T")
_MAX_NOTES = 100
_EVENTS = ("hits", "puts", "corrupt", "errors", "outages", "passed_over")


class TierState(Record, frozen=True, kw_only=True):
    """How a tier does, for reports; counts are those of this process.

    Attributes:
        name: its URL without secrets.
        state: `up`, `away` (nobody asks it for a while), `trying`, or `unopened` (nothing was asked of it yet).
        error: what it said when it went away; empty while it is up.
        hits: blobs and documents that came from it.
        puts: blobs and documents written to it.
        corrupt: damaged ones met.
        errors: requests that it did not answer.
        outages: times it went away.
        passed_over: requests not made because it was away.
    """

    name: str
    kind: TierKind | Literal["disk"]
    durable: bool
    state: Literal["up", "away", "trying", "unopened"]
    error: str = ""
    hits: int = 0
    puts: int = 0
    corrupt: int = 0
    errors: int = 0
    outages: int = 0
    passed_over: int = 0


class Stores(NamedTuple):
    """What a tier is made of."""

    blobs: BlobStore
    documents: DocumentStore


class Notes:
    """What a person should hear: one sentence when a tier goes, one when it is back.

    Attributes:
        hears: is told at once; while there is nobody, `taken` gives the latest later.
    """

    def __init__(self) -> None:
        self.hears: Callable[[str], None] | None = None
        self._kept: list[str] = []
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """One note."""
        if self.hears is not None:
            self.hears(text)
            return
        with self._lock:
            self._kept = [*self._kept[1 - _MAX_NOTES :], text]

    def taken(self) -> list[str]:
        """Notes that nobody heard yet, oldest first; each is given once."""
        with self._lock:
            kept, self._kept = self._kept, []
        return kept


class Tier:
    """One tier. Nothing is opened before it is needed; what it cannot do now is an error that names it.

    Attributes:
        name: its URL without secrets.
        kind: what it is.
        durable: keeps every blob and document; what is not has everything only for a while.
    """

    def __init__(
        self,
        remote: Remote,
        *,
        notes: Notes | None = None,
        breaker: Breaker | None = None,
        clock: Callable[[], float] = time.monotonic,
        make: Callable[[str], tuple[BlobStore, DocumentStore]] | None = None,
    ) -> None:
        self.name, self.kind = remote.shown, remote.kind
        self.durable = remote.kind == "object"
        self._make = make or _makers(remote.kind)
        self._url = remote.url
        self._notes = notes or Notes()
        self._breaker = breaker or Breaker()
        self._clock = clock
        self._lock = threading.Lock()
        self._opening = threading.Lock()  # may take seconds, which counting shall not
        self._stores: Stores | None = None
        self._let_go: weakref.finalize[[], Tier] | None = None
        self._error = ""
        self._counts = dict.fromkeys(_EVENTS, 0)

    # --- asking ---

    def open(self) -> None:
        """Reaches it now.

        Raises:
            CacheUnavailableError: it cannot be.
        """
        self.call(lambda _: None)

    def call(self, ask: Callable[[Stores], _T], *, proof: bool = True) -> _T:
        """What a function makes of the stores.

        Args:
            ask: the function.
            proof: whether it cannot succeed without an answer from the tier; if it can, that says nothing of an outage.

        Raises:
            CacheUnavailableError: it does not answer, or did not a moment ago and is left alone for now.
            CacheError: whatever else the function raises.
        """
        with self.asked(proof=proof) as stores:
            return ask(stores)
        raise AssertionError

    def attempt(self, ask: Callable[[Stores], _T], otherwise: _T, *, proof: bool = True) -> _T:
        """As `call`, for what may as well not be done: that a tier is away, or only read, does not matter."""
        with suppress(CacheUnavailableError):
            return self.call(ask, proof=proof)
        return otherwise

    def accepts(self, size: int) -> bool:
        """Whether a blob of so many bytes may be here; no for a tier that could not be opened yet and is away."""
        stores = self._stores
        if stores is None:
            return self.attempt(lambda opened: opened.blobs.accepts(size), otherwise=self.durable)
        return stores.blobs.accepts(size)

    def keeps(self, kind: Kind) -> bool:
        """Whether documents of a kind may be here, likewise."""
        stores = self._stores
        if stores is None:
            return self.attempt(lambda opened: opened.documents.keeps(kind), otherwise=self.durable)
        return stores.documents.keeps(kind)

    @contextmanager
    def asked(self, *, proof: bool = True) -> Iterator[Stores]:
        """The stores, for as long as the caller asks them; what they raise is judged on the way out."""
        if not self._breaker.allows(self._clock()):
            self.count("passed_over")
            since, until = self._breaker.away(self._clock())
            raise CacheUnavailableError(
                f"{self.name} has been away for {since:.0f} s and is tried again in {until:.0f} s: {self._error}"
            )
        try:
            yield self._opened()
        except ReadOnlyCacheError:
            self._answered()
            raise
        except CacheUnavailableError as error:
            self._failed(error)
            raise
        except CacheError as error:
            self._answered()
            if isinstance(error, CorruptBlobError):
                self.count("corrupt")
            raise
        except BaseException:
            self._breaker.unknown()
            raise
        if proof:
            self._answered()
        else:
            self._breaker.unknown()

    def _opened(self) -> Stores:
        with self._opening:
            if self._stores is None:
                self._stores = Stores(*self._make(self._url))
                self._let_go = weakref.finalize(self, self._stores.blobs.close)
            return self._stores

    def _answered(self) -> None:
        if self._breaker.succeeded():
            self._error = ""
            self._notes.say(f"{self.name} answers again")

    def _failed(self, error: CacheUnavailableError) -> None:
        self.count("errors")
        self._error = str(error)
        if self._breaker.failed(self._clock()):
            self.count("outages")
            self._notes.say(f"{error}; going on without it where that is possible")

    # --- blobs, piece by piece ---

    def feed(self, digest: Digest) -> Feed:
        """The plain bytes of a blob, to be read once."""
        return Feed(self, digest)

    # --- reports ---

    def count(self, event: str, number: int = 1) -> None:
        """Adds to a count of `TierState`."""
        with self._lock:
            self._counts[event] += number

    @property
    def is_away(self) -> bool:
        """Whether it would be passed over now."""
        return self._breaker.state(self._clock()) == "open"

    def state(self) -> TierState:
        """How it does."""
        state: Literal["up", "away", "trying", "unopened"]
        match self._breaker.state(self._clock()):
            case "open":
                state = "away"
            case "half-open":
                state = "trying"
            case _:
                state = "up" if self._stores is not None else "unopened"
        with self._lock:
            counts = dict(self._counts)
        return TierState(name=self.name, kind=self.kind, durable=self.durable, state=state, error=self._error, **counts)

    def close(self) -> None:
        """Lets go of connections and threads; what is asked next opens it anew."""
        with self._opening:
            self._stores = None
            if self._let_go is not None:
                self._let_go()


class Feed:
    """A blob's bytes on their way out of a tier, and whether it was the tier that failed.

    Iterating raises what the tier raises. They are not to be believed before the last piece came.

    Attributes:
        error: what the tier raised.
    """

    def __init__(self, tier: Tier, digest: Digest) -> None:
        self._tier, self._digest = tier, digest
        self.error: CacheError | None = None

    def __iter__(self) -> Iterator[bytes]:
        # An error that is thrown in at `yield` would be the reader's; nobody throws one.
        try:
            with self._tier.asked() as stores:
                yield from stores.blobs.blocks(self._digest)
        except CacheError as error:
            self.error = error
            raise


def _makers(kind: TierKind) -> Callable[[str], tuple[BlobStore, DocumentStore]]:
    """Functions that open tiers; their libraries are imported when the first is opened."""

    def redis(url: str) -> tuple[BlobStore, DocumentStore]:
        from spyre_cache.stores.redis import open_redis

        return open_redis(url)

    def objects(url: str) -> tuple[BlobStore, DocumentStore]:
        from spyre_cache.stores.object import open_object

        return open_object(url)

    return redis if kind == "redis" else objects
