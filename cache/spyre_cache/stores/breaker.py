"""Whether to ask something that may be away: a decision without I/O, by a clock that is passed in."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

State = Literal["closed", "open", "half-open"]

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
PROBE_SECONDS = 60.0


class Breaker:
    """Closed while all is well. A failure opens it: nobody asks for a while, then one does; if that fails, for longer.

    Those who ask do their own retries, so that one failure is enough. Waits are drawn between half and all of their
    length, lest everybody comes back at once. Threads share it.
    """

    def __init__(
        self,
        *,
        first: float = FIRST_SECONDS,
        longest: float = LONGEST_SECONDS,
        probe: float = PROBE_SECONDS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """A closed one.

        Args:
            first: seconds of the first wait; each further one is twice as long.
            longest: seconds of the longest.
            probe: seconds after which whoever tries is taken for lost, and another may.
            chance: numbers from 0 to 1.
        """
        self._first, self._longest, self._probe, self._chance = first, longest, probe, chance
        self._lock = threading.Lock()
        self._wait = 0.0  # length of the current wait; 0 when closed
        self._until = 0.0
        self._probing = 0.0  # until when somebody is trying; 0 for nobody
        self._since = 0.0

    def state(self, now: float) -> State:
        """How it stands."""
        with self._lock:
            return self._state(now)

    def _state(self, now: float) -> State:
        if not self._wait:
            return "closed"
        return "open" if now < self._until else "half-open"

    def away(self, now: float) -> tuple[float, float]:
        """Seconds since it opened, and until somebody may try again."""
        with self._lock:
            return (now - self._since, max(0.0, self._until - now)) if self._wait else (0.0, 0.0)

    def allows(self, now: float) -> bool:
        """Whether the caller may ask now; who was allowed says how it went (`succeeded`, `failed` or `unknown`)."""
        with self._lock:
            match self._state(now):
                case "closed":
                    return True
                case "half-open" if now >= self._probing:
                    self._probing = now + self._probe
                    return True
                case _:
                    return False

    def succeeded(self) -> bool:
        """It answered; True when this ends an outage."""
        with self._lock:
            ended = self._wait > 0
            self._wait = self._probing = 0.0
            return ended

    def failed(self, now: float) -> bool:
        """It did not answer; True when this begins an outage."""
        with self._lock:
            if not self._wait:
                self._since = now
                self._open(now, self._first)
                return True
            if self._probing:
                self._open(now, min(2 * self._wait, self._longest))
            return False  # else: asked before it opened, and late to say so

    def unknown(self) -> None:
        """The caller gave up for reasons of its own."""
        with self._lock:
            self._probing = 0.0

    def _open(self, now: float, wait: float) -> None:
        self._wait, self._probing = wait, 0.0
        self._until = now + wait * (0.5 + self._chance() / 2)
