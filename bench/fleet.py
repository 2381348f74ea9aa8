"""Measurements of what machines share: presence in a Redis and in a bucket."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spyre_cache.digest import Digest

if TYPE_CHECKING:
    from bench.pairs import Scratch
    from spyre_cache.stores.base import BlobStore

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # for the servers

DIGESTS = 10_000


def _asking(store: BlobStore, digests: list[Digest], absent: int, rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        missing = store.missing(digests)
        found.append(time.perf_counter() - began)
        assert len(missing) == absent
    return found


def presence(scratch: Scratch, rounds: int) -> dict[str, Any]:
    """10,000 digests asked for at once, of which half are there: in a Redis of this machine, and in a local S3."""
    from services import Redis, Seaweed

    from spyre_cache.stores.object import ObjectStore
    from spyre_cache.stores.object_opening import open_objects
    from spyre_cache.stores.redis import open_redis

    blobs = [b"blob %d" % n for n in range(DIGESTS)]
    digests = [Digest.of(blob) for blob in blobs]
    with Redis(Path(scratch.fresh("redis"))) as server:
        redis, _ = open_redis(server.url)
        for blob in blobs[::2]:
            redis.put(blob)
        redis.missing(digests[:1])  # the script is loaded
        in_redis = _asking(redis, digests, DIGESTS // 2, 3 * rounds)
    with Seaweed(Path(scratch.fresh("s3"))) as server:
        import os

        os.environ.update(server.environment)
        objects = open_objects(server.url("bench"))
        bucket = ObjectStore(objects)
        for _ in objects.each(bucket.put, blobs[::2]):
            pass
        in_bucket = _asking(bucket, digests, DIGESTS // 2, rounds)
        few = _asking(bucket, digests[:100], 50, rounds)
        objects.close()
    return {
        "redis_10000_ms": round(1000 * statistics.median(in_redis), 1),
        "redis_10000_ms_at_most": 100,
        "redis_10000_ms_range": [round(1000 * min(in_redis), 1), round(1000 * max(in_redis), 1)],
        "s3_10000_ms": round(1000 * statistics.median(in_bucket), 1),
        "s3_100_ms": round(1000 * statistics.median(few), 1),
    }
