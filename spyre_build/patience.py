"""A build under way outlasts what goes away for a while: it says so once, waits, and goes on where it was."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from spyre_cache.errors import CacheUnavailableError, ReadOnlyCacheError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyre_build.events import Events
    from spyre_cache.cache import Cache

_T = TypeVar("_T")
_LONGEST_SECONDS = 5.0


class Patience:
    """Waits for a broker, or for tiers of a cache; not for a disk that is full, which only a person can help.

    Args:
        cache: whose tiers may be away.
        events: hears when waiting begins and when it ends.
        broker: whether there is one; what cannot be reached may then be it.
    """

    def __init__(self, cache: Cache, events: Events, *, broker: bool) -> None:
        self._cache, self._events, self._broker = cache, events, broker
        self._times = 0

    @property
    def is_waiting(self) -> bool:
        """Whether something was away at the last try."""
        return self._times > 0

    def wait(self, error: CacheUnavailableError) -> None:
        """A while, before another try.

        Raises:
            CacheUnavailableError: the one given, when waiting does not help.
        """
        if isinstance(error, ReadOnlyCacheError) or not (self._broker or self._is_tier_away()):
            raise error
        if not self._times:
            self._events.note(f"{error}; waiting for it")
        self._times += 1
        # Jitter: everybody who waits for the same server must not come at the same moment.
        time.sleep(min(_LONGEST_SECONDS, 0.2 * 2 ** min(self._times, 8)) * random.uniform(0.5, 1.0))  # noqa: S311

    def over(self) -> None:
        """It went well again."""
        if self._times:
            self._events.note("reached again; going on")
            self._times = 0

    def outlast(self, act: Callable[[], _T]) -> _T:
        """What `act` gives, once it can; it may be begun several times.

        Raises:
            CacheUnavailableError: waiting does not help.
        """
        while True:
            try:
                found = act()
            except CacheUnavailableError as error:
                self.wait(error)
            else:
                self.over()
                return found

    def _is_tier_away(self) -> bool:
        return any(tier.state().state in {"away", "trying"} for tier in self._cache.tiers if tier.durable)
