"""Read, decide, swap: the one loop by which anybody changes a claim."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from spyre_cache.errors import CacheUnavailableError
from spyre_workers.states import Move

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyre_cache.claims import Claim, Claims
    from spyre_workers.states import Answer

_TRIES = 50


def decide(claims: Claims, key: str, verb: Callable[[Claim | None, frozenset[str]], Answer]) -> Answer:
    """Applies a verb of `states` to an action's claim, again for as long as others change it in between.

    Returns:
        The move that was made, or why none may be.

    Raises:
        CacheUnavailableError: the claims cannot be reached, or change faster than anybody can follow.
    """
    for attempt in range(_TRIES):
        standing = claims.read([key])[key]
        answer = verb(standing.claim, standing.alive)
        if not isinstance(answer, Move) or answer.new == standing.claim or claims.swap(key, standing.claim, answer.new):
            return answer
        time.sleep(random.uniform(0, 0.002 * attempt))  # noqa: S311  jitter
    raise CacheUnavailableError(f"the claim of action {key[:12]} changed {_TRIES} times while it was looked at")
