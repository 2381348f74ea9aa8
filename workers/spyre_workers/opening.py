"""Claims by the URL of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyre_cache.claims_disk import DiskClaims

if TYPE_CHECKING:
    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims


def open_claims(broker: str | None, cache: Cache) -> Claims:
    """The claims that everybody at this broker shares, or, without one, everybody at this cache's directory.

    Raises:
        CacheUnavailableError: the broker is no Redis.
    """
    if broker is None:
        return DiskClaims(cache.root)
    from spyre_cache.claims_redis import RedisClaims

    return RedisClaims(broker)
