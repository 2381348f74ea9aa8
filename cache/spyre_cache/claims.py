"""Single flight: who is at work on an action, across every process that shares the claims.

A claim is a document under an action key. It counts while its owner lives, and an owner lives while it renews its
token; a token that has lapsed is dead for good. So "read, decide, swap" is safe: what was decided about a dead owner
stays right, and `swap` fails when anybody else decided meanwhile. What may be decided is no business of this module
(`spyre_workers.states`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple

from spyre_cache.codec import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

State = Literal["queued", "running", "crashed", "quarantined"]

TOKEN_SECONDS = 8.0
RENEW_SECONDS = 2.0
CLAIM_SECONDS = 24 * 3600.0
MAX_CLAIM_BYTES = 64 << 10


def cancel_token(build: str) -> str:
    """The token that lives once a build has been cancelled: nobody begins a run on its behalf any more."""
    return f"cancelled-{build}"


class Crash(Record, frozen=True, kw_only=True):
    """One run that ended without a result: who ran it, and what is known of why.

    `lost` says that nobody saw it end: its worker fell silent, which accuses the machine as much as the action.
    """

    worker: str
    why: str
    lost: bool = False


class Claim(Record, frozen=True, kw_only=True):
    """Where an action stands.

    Attributes:
        action: the action key.
        state: `queued` (its build means to see to it), `running` (a worker is at it), `crashed` (a run ended without a
            result; it may be tried again), `quarantined` (too many did).
        owner: the token that must live for the claim to count: the build's while queued, the run's while running.
        build: the build on whose behalf.
        worker: who runs it, or ran it last.
        hedge: the token of a second run, started because the first is overdue; empty for none.
        starts: runs so far.
        crashes: runs that ended without a result, oldest first.
        since: when this state began, seconds since the epoch by the clock of the claims.
    """

    schema: Literal["claim/1"] = "claim/1"
    action: str
    state: State
    owner: str
    build: str
    worker: str = ""
    hedge: str = ""
    starts: int = 0
    crashes: tuple[Crash, ...] = ()
    since: float = 0.0


class Standing(NamedTuple):
    """A claim as it was read, and which of its tokens were alive then."""

    claim: Claim | None
    alive: frozenset[str]


class Claims(ABC):
    """Claims by action key, and the tokens that keep them. Safe among threads, processes and machines that share it.

    Raises from every method: CacheUnavailableError, when the claims cannot be reached.
    """

    @abstractmethod
    def now(self) -> float:
        """Seconds since the epoch by the one clock that everybody here shares (Redis TIME, or this machine's)."""

    @abstractmethod
    def read(self, keys: Iterable[str]) -> Mapping[str, Standing]:
        """Every key's standing, in as few round trips as there can be; damaged claims read as none."""

    @abstractmethod
    def swap(self, key: str, old: Claim | None, new: Claim | None) -> bool:
        """Puts `new` in place of `old` (None for absent); False when something else is there by now.

        A claim that nobody touches for `CLAIM_SECONDS` is forgotten.
        """

    def swap_many(self, swaps: Iterable[tuple[str, Claim | None, Claim | None]]) -> set[str]:
        """`swap` of many, each for itself, in as few round trips as there can be; gives the keys that were swapped."""
        return {key for key, old, new in swaps if self.swap(key, old, new)}

    @abstractmethod
    def begin(self, token: str, seconds: float = TOKEN_SECONDS, *, detached: bool = False) -> None:
        """Makes a token live for as long; without `renew` it dies then.

        Where processes can be seen to die, it dies with this one at once, unless it is `detached` (a mark that shall
        outlive whoever made it).
        """

    @abstractmethod
    def renew(self, tokens: Iterable[str], seconds: float = TOKEN_SECONDS) -> set[str]:
        """Prolongs tokens; gives those that have died meanwhile, which stay dead."""

    @abstractmethod
    def end(self, token: str) -> None:
        """Lets a token die now."""

    @abstractmethod
    def alive(self, tokens: Iterable[str]) -> set[str]:
        """Those that live."""

    @abstractmethod
    def epoch(self) -> str:
        """Changes when everything here was lost (a Redis that restarted empty): whoever queued something asks again."""
