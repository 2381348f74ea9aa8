"""How a collection in a bucket and those who rely on what lies there keep out of each other's way.

Nothing in a bucket can be locked, so both sides announce first and look second:

* Whoever finds an object that is old enough to be collected writes a *hold* that names it, then reads the *sweep*.
* A collection writes the sweep, which names what it is about to remove, then reads the holds, then removes.

Whichever comes first, one sees the other. Who finds an object in the sweep waits for its end (seconds) and looks again.
Young objects need none of this: what was written or held within the last hour is not collected for a day.
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from spyre_cache.errors import CacheUnavailableError, ReadOnlyCacheError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spyre_cache.stores.object_client import Meta, Objects

REFRESH_SECONDS = 3600.0
HOLD_SECONDS = 24 * 3600.0
SWEEP_SECONDS = 120.0  # a sweep that is older was left by a collection that died
HOLDS = "holds"
SWEEP = "gc/sweep"
_POLL_SECONDS = 0.2
_MEMO = 500_000
_HASH = re.compile(r"[0-9a-f]{64}")


class Holds:
    """What this process holds in a store of objects. Threads share it."""

    def __init__(self, objects: Objects, *, refresh: float = REFRESH_SECONDS) -> None:
        self._objects = objects
        self._refresh = refresh
        self._held: dict[str, float] = {}
        self._lock = threading.Lock()

    def secure(self, found: Iterable[Meta]) -> set[str]:
        """Keeps objects that were found, and gives the paths of those that are gone after all.

        Whoever may only read cannot hold; the grace of the collection then stands in.
        """
        now = self._objects.now()
        fresh = time.monotonic() - self._refresh
        old = [meta for meta in found if now - meta.modified >= self._refresh]
        with self._lock:
            old = [meta for meta in old if self._held.get(meta.path, fresh) <= fresh]
        if not old:
            return set()
        with suppress(ReadOnlyCacheError):
            lines = "".join(f"{meta.path}\n" for meta in old)
            self._objects.put(f"{HOLDS}/{os.urandom(12).hex()}", lines.encode())
        paths = {meta.path for meta in old}
        lost = self._swept(paths)
        with self._lock:
            if len(self._held) > _MEMO:
                self._held.clear()  # to be held once more costs little
            self._held.update(dict.fromkeys(paths - lost, time.monotonic()))
        return lost

    def _swept(self, paths: set[str]) -> set[str]:
        """Those of the paths that a collection removed while they were found."""
        in_question: set[str] = set()
        deadline = time.monotonic() + SWEEP_SECONDS + 10
        while True:
            now_swept = paths & read_sweep(self._objects)
            in_question |= now_swept
            if not now_swept:
                return {path for path in in_question if self._objects.head(path) is None}
            if time.monotonic() > deadline:
                raise CacheUnavailableError(
                    f"a garbage collection in {self._objects.shown} does not come to an end; try again later"
                )
            time.sleep(_POLL_SECONDS)


def read_sweep(objects: Objects) -> set[str]:
    """Paths that a collection is removing at this moment."""
    stored = objects.get(SWEEP)
    if stored is None or objects.now() - stored.meta.modified > SWEEP_SECONDS:
        return set()
    return set(stored.data.decode("utf-8", "replace").split("\n")) - {""}


def read_holds(objects: Objects, known: dict[str, set[str]] | None = None) -> set[str]:
    """Paths of objects that anybody holds.

    Args:
        objects: where.
        known: holds read before, by name, which are not read again; updated.
    """
    known = {} if known is None else known
    now = objects.now()
    names = [meta.path for meta in objects.list(HOLDS) if now - meta.modified < HOLD_SECONDS]
    fresh = [name for name in names if name not in known]
    for name, stored in zip(fresh, objects.each(objects.get, fresh), strict=True):
        known[name] = set() if stored is None else set(stored.data.decode("utf-8", "replace").split("\n")) - {""}
    return {path for name in names for path in known[name]}
