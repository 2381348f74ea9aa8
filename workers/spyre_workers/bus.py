"""Where workers say what happens and builds listen: bounded, lossy at worst, the same for a pool and for a fleet."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spyre_workers.messages import Event

MAX_EVENTS = 65536


class Bus(ABC):
    """Events in order. A listener hears what is said after it began to listen, the newest `MAX_EVENTS` at least."""

    @abstractmethod
    def publish(self, event: Event) -> None:
        """Says something; where nobody can be reached it is lost, which raises nothing."""

    @abstractmethod
    def read(self, seconds: float, limit: int = 1000) -> list[Event]:
        """What was said since the last call, waiting up to `seconds` for the first.

        Raises:
            CacheUnavailableError: the bus cannot be reached; what was missed is lost.
        """


class LocalBus(Bus):
    """Within one process, for one listener."""

    def __init__(self) -> None:
        self._events: queue.Queue[Event] = queue.Queue(MAX_EVENTS)

    def publish(self, event: Event) -> None:
        """Drops the event when nobody has listened for `MAX_EVENTS`."""
        with suppress(queue.Full):
            self._events.put_nowait(event)

    def read(self, seconds: float, limit: int = 1000) -> list[Event]:
        """As `Bus.read`; cannot fail."""
        found: list[Event] = []
        with suppress(queue.Empty):
            found.append(self._events.get(timeout=seconds))
            while len(found) < limit:
                found.append(self._events.get_nowait())
        return found
