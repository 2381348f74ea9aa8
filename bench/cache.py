"""Put and get of a gigabyte of weights against what hashing and the disk do alone.

Each round measures all of them in turn, so that a noisy machine is noisy for all; medians count. "Disk" is the same
bytes written to one file in the same directory and flushed, or read from it; for reads, caches are dropped first.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from spyre_cache import Cache

if TYPE_CHECKING:
    from collections.abc import Callable

GIGABYTE = 1 << 30
BLOCK = 8 << 20
TARGET = 0.7


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _forget(path: Path) -> None:
    """Drops a file's pages, so that the next read is the disk's."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def _write(path: Path, data: memoryview) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for start in range(0, len(data), BLOCK):
        os.write(fd, data[start : start + BLOCK])
    os.fsync(fd)
    os.close(fd)


def _read(path: Path) -> None:
    buffer = bytearray(BLOCK)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _round(folder: Path, seed: int, size: int) -> dict[str, float]:
    """Seconds of each, on fresh random bytes (real weights do not shrink either)."""
    data = memoryview(np.random.default_rng(seed).bytes(size))
    plain = folder / "plain"
    found = {"hash": _seconds(lambda: blake3(data, max_threads=blake3.AUTO).digest())}
    found["disk_write"] = _seconds(lambda: _write(plain, data))
    plain.unlink()
    with Cache.open(folder / "cache") as cache:
        found["put"] = _seconds(lambda: cache.blobs.put(data, raw=True))
        digest = next(cache.blobs.iter())
        blob = cache.blobs.path(digest)
        found["put_again"] = _seconds(lambda: cache.blobs.put(data, raw=True))
        _write(plain, data)
        _forget(plain)
        found["disk_read"] = _seconds(lambda: _read(plain))
        plain.unlink()
        (cache.path / "memo" / blob.name[:2] / blob.name).unlink()
        _forget(blob)
        found["map_cold"] = _seconds(lambda: cache.blobs.map(digest))
        found["map_known"] = _seconds(lambda: cache.blobs.map(digest))
        _forget(blob)
        found["get_cold"] = _seconds(lambda: cache.blobs.get(digest))
        cache.blobs.delete(digest)
    return found


def run(*, size: int = GIGABYTE, rounds: int = 3) -> dict[str, object]:
    """GB/s of each, and the ratios that are promised to be at least `TARGET`."""
    folder = Path(tempfile.mkdtemp(prefix="bench-cache-", dir=os.environ.get("SPYRE_BUILD_BENCH_DIR", Path.cwd())))
    try:
        measured = [_round(folder, seed, size) for seed in range(rounds)]
    finally:
        shutil.rmtree(folder)
    seconds = {name: statistics.median(each[name] for each in measured) for name in measured[0]}

    def ratio(ours: str, disk: str) -> float:
        return statistics.median(max(each["hash"], each[disk]) / each[ours] for each in measured)

    ratios = {
        "put": ratio("put", "disk_write"),
        "get": ratio("map_cold", "disk_read"),
        "get_copied": ratio("get_cold", "disk_read"),
    }
    return {
        "bytes": size,
        "rounds": rounds,
        "gigabytes_per_second": {name: round(size / 1e9 / value, 2) for name, value in seconds.items()},
        "ratio_to_the_slower_of_hash_and_disk": {name: round(value, 2) for name, value in ratios.items()},
        "target": TARGET,
        "met": ratios["put"] >= TARGET and ratios["get"] >= TARGET,
    }
