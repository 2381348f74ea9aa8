"""Where a build's compilations run: this machine's pool, or the workers behind a broker."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from spyre_build.errors import InfrastructureError, UsageError
from spyre_cache.errors import CacheUnavailableError
from spyre_cache.stores.redis_client import redis_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims
    from spyre_workers.executor import Executor
    from spyre_workers.messages import Urgency

_HERE = {"localhost", "127.0.0.1", "::1"}


@contextmanager
def workshop(
    cache: Cache,
    broker: str | None,
    *,
    jobs: int | None = None,
    imports: tuple[str, ...] = (),
    urgency: Urgency = "interactive",
) -> Iterator[tuple[Claims, Executor]]:
    """Claims and an executor for one build; whatever way the block is left, nothing local goes on.

    Args:
        cache: where fragments are and results go.
        broker: the URL of a Redis, or None for a pool on this machine.
        jobs: compilations at once, of a pool.
        imports: modules that define the custom operators; the workers of a fleet are started with theirs.
        urgency: what the workers take first.

    Raises:
        UsageError: workers could not see this cache.
        InfrastructureError: the broker cannot be reached.
    """
    from spyre_workers.opening import open_claims

    claims = open_claims(broker, cache)
    if broker is None:
        from spyre_workers.bus import LocalBus
        from spyre_workers.local import LocalExecutor

        with LocalExecutor(cache, claims, LocalBus(), jobs=jobs, imports=imports) as pool:
            yield claims, pool
        return
    check_shared(cache, broker)
    reach_broker(claims)
    from spyre_workers.celery_executor import CeleryExecutor

    with CeleryExecutor(broker, urgency=urgency) as executor:
        yield claims, executor


def reach_broker(claims: Claims) -> None:
    """Asks the broker something, before there is work that would be in vain.

    Raises:
        InfrastructureError: it cannot be reached.
    """
    try:
        claims.epoch()
    except CacheUnavailableError as error:
        raise InfrastructureError(f"the broker {error}", hint="--broker or SPYRE_BUILD_BROKER names it") from None


def check_shared(cache: Cache, broker: str) -> None:
    """Refuses a cache that workers could not share.

    Raises:
        UsageError: it is a directory of this machine, and the broker serves others.
    """
    if cache.is_shared or (urlsplit(redis_address(broker).url).hostname or "localhost") in _HERE:
        return
    raise UsageError(
        f"workers behind a broker and this build meet in a shared cache, and {cache.path} is a directory of this "
        "machine alone",
        hint="--cache DIR,s3://bucket/prefix or DIR,file:///shared/dir (with redis://… between them if wanted)",
    )
