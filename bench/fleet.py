"""Measurements of what machines share: presence in a Redis and in a bucket, results of many actions."""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spyre_cache import Cache, Digest
from spyre_cache.fs import FileSystem
from spyre_cache.objects.action import ActionResult, OutputFile

if TYPE_CHECKING:
    from bench.pairs import Scratch
    from spyre_cache.stores.base import BlobStore

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # for the servers

DIGESTS = 10_000
ACTIONS = 10_000


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


class _Unflushed(FileSystem):
    """Nothing is flushed: the cache of a measurement need not survive it, and is made in seconds."""

    def fsync(self, fd: int) -> None:
        """Skipped."""

    def fsync_dir(self, path: Path) -> None:
        """Skipped."""


def _action_key(number: int) -> str:
    return Digest.of(b"action %d" % number).hash


def _fill(path: str, count: int) -> None:
    """Results as compilations leave them: an artifact and a description of one's own each, a log, measurements."""
    with Cache.open(path, fs=_Unflushed()) as cache:
        for number in range(count):
            names = ("model.so", "meta.json")
            outputs = tuple(
                OutputFile(name=name, digest=cache.blobs.put(f"{name} {number}".encode(), raw=True)) for name in names
            )
            log = cache.blobs.put(b"compiled %d" % number)
            cache.actions.put(
                ActionResult(action=_action_key(number), status="ok", outputs=outputs, log=log, builder="bench")
            )


def _look_up(path: str, count: int) -> dict[str, float]:
    """Seconds and bytes of one lookup of `count` keys, of which a tenth have no result, in a cache opened anew."""
    present = count - count // 10
    keys = [_action_key(number if number < present else number + ACTIONS) for number in range(count)]
    with Cache.open(path) as cache:
        began = time.perf_counter()
        found = cache.actions.get_many(keys)
        seconds = time.perf_counter() - began
    assert len(found) == present
    del found
    with Cache.open(path) as cache:
        tracemalloc.start()
        found = cache.actions.get_many(keys)
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(found) == present
    return {"seconds": seconds, "kept": kept, "passing": peak - kept}


def lookup(scratch: Scratch, rounds: int) -> dict[str, Any]:
    """Results of 100 to 10,000 actions looked up at once in a directory of 10,000; passing: beyond the results."""
    path = scratch.fresh("lookup")
    _fill(path, ACTIONS)
    rounds_of = {count: [_look_up(path, count) for _ in range(rounds)] for count in (100, 1000, ACTIONS)}
    seconds = {count: statistics.median(each["seconds"] for each in found) for count, found in rounds_of.items()}
    passing = {count: max(each["passing"] for each in found) for count, found in rounds_of.items()}
    return {
        "seconds_10000": round(seconds[ACTIONS], 3),
        "seconds_10000_at_most": 2,
        "us_per_key_100": round(1e6 * seconds[100] / 100, 1),
        "us_per_key_1000": round(1e6 * seconds[1000] / 1000, 1),
        "us_per_key_10000": round(1e6 * seconds[ACTIONS] / ACTIONS, 1),
        "kib_per_result": round(rounds_of[ACTIONS][0]["kept"] / (0.9 * ACTIONS) / 1024, 2),
        "passing_mib_1000": round(passing[1000] / 2**20, 2),
        "passing_mib_10000": round(passing[ACTIONS] / 2**20, 2),
    }
