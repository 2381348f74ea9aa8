"""Whether this worker can store what it makes: found out by failing, and by trying again until it works."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from spyre_cache.errors import CacheError, CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyre_cache.cache import Cache
    from spyre_workers.metrics import Metrics

PROBE_BYTES = 256 << 10
"""More than what a tier keeps that need not have it, and about as much as an artifact has."""
ALONE_SECONDS = 60.0
_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 15.0
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Storing:
    """Keeps results until they are stored, for a while, and tells when nothing can be.

    Threads share it. While there is trouble a thread of its own probes with something small, so that whoever waits for
    the end of it need not bring a result.
    """

    def __init__(self, cache: Cache, metrics: Metrics, *, patience: float) -> None:
        """All is taken to be well.

        Args:
            cache: that results go to.
            metrics: count failures.
            patience: seconds for which a result is kept and tried again.
        """
        self._cache, self._metrics, self._patience = cache, metrics, patience
        self._lock = threading.Lock()
        self._why = ""
        self._over = threading.Event()

    @property
    def why_not(self) -> str:
        """Why nothing can be stored; empty when all is well, as far as is known."""
        return self._why

    def keep(
        self, act: Callable[[], _T], *, cancelled: Callable[[], bool], tell: Callable[[str], None], proof: bool = True
    ) -> _T:
        """What `act` gives, which stores something and is tried until it can.

        Args:
            act: may be begun several times.
            cancelled: whether nobody waits for it any more.
            tell: hears once why it cannot.
            proof: whether success shows that all is well; what only goes to the local disk shows little.

        Raises:
            CacheUnavailableError: it could not for as long as patience lasts, or nobody waits.
        """
        began, wait, told = time.monotonic(), 0.2, False
        while True:
            try:
                given = act()
            except CacheUnavailableError as error:
                self._metrics.store_failures.inc()
                self._begin(error)
                if not told:
                    told = True
                    tell(str(error))
                if cancelled() or self._over.is_set() or time.monotonic() - began > self._limit():
                    raise
            else:
                if proof:
                    self._end()
                return given
            self._over.wait(random.uniform(wait / 2, wait))  # noqa: S311  jitter
            wait = min(2 * wait, 5.0)

    def _limit(self) -> float:
        """What is away is away for all; else it may be this machine alone, and the others shall have the task."""
        is_away = any(tier.durable and tier.is_away for tier in self._cache.tiers)
        return self._patience if is_away else min(self._patience, ALONE_SECONDS)

    def doubt(self) -> None:
        """After an error that may be of storing, or of something else: finds out."""
        if not self._why and not self._over.is_set():
            try:
                self._probe()
            except CacheUnavailableError as error:
                self._metrics.store_failures.inc()
                self._begin(error)
            except CacheError as error:
                _log.warning("%s", error)

    def close(self) -> None:
        """Ends all waiting."""
        self._over.set()

    def _begin(self, error: CacheUnavailableError) -> None:
        with self._lock:
            if self._why:
                return
            self._why = " ".join(str(error).split())
            self._metrics.cannot_store.set(1)
        _log.error("cannot store results, and takes no tasks until it can: %s", self._why)
        threading.Thread(target=self._probe_until_well, name="spyre-probe", daemon=True).start()

    def _end(self) -> None:
        with self._lock:
            if not self._why:
                return
            self._why = ""
            self._metrics.cannot_store.set(0)
        _log.warning("results can be stored again")

    def _probe_until_well(self) -> None:
        wait = _FIRST_SECONDS
        while self._why and not self._over.wait(random.uniform(wait / 2, wait)):  # noqa: S311  jitter
            try:
                self._probe()
            except CacheError:
                wait = min(2 * wait, _LONGEST_SECONDS)
            else:
                self._end()
                return

    def _probe(self) -> None:
        """Writes what nobody has, where results go, and removes it."""
        digest = self._cache.disk.put(os.urandom(PROBE_BYTES))
        try:
            self._cache.blobs.share([digest])
            self._cache.blobs.flush()
        finally:
            with suppress(CacheError):
                self._cache.blobs.delete(digest)
