"""Keeps the tokens of runs alive, and tells a run when its own has died all the same."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from spyre_cache.claims import RENEW_SECONDS
from spyre_cache.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spyre_cache.claims import Claims

_log = logging.getLogger(__name__)


class Heart:
    """One thread for all runs of a process; it lives while there are any."""

    def __init__(self, claims: Claims, seconds: float = RENEW_SECONDS) -> None:
        """Starts nothing yet."""
        self._claims = claims
        self._seconds = seconds
        self._lock = threading.Lock()
        self._runs: dict[str, Callable[[], str | None]] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    @contextlib.contextmanager
    def beating(self, token: str, died: Callable[[], str | None]) -> Iterator[None]:
        """Within, a token is renewed. When it died, `died` gives the token to go on with, or None to let it rest."""
        with self._lock:
            self._runs[token] = died
            if self._thread is None or not self._thread.is_alive():
                self._wake.clear()
                self._thread = threading.Thread(target=self._beat, name="spyre-heart", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                for name in [name for name, kept in self._runs.items() if kept is died]:
                    del self._runs[name]
                if not self._runs:
                    self._wake.set()

    def _beat(self) -> None:
        while True:
            self._wake.wait(self._seconds)
            with self._lock:
                if not self._runs:
                    self._thread = None
                    return
                self._wake.clear()
                runs = dict(self._runs)
            try:
                dead = self._claims.renew(list(runs))
            except CacheError as error:  # away for now: tokens may lapse, and are then found dead
                _log.warning("the claims cannot be reached: %s", error)
                continue
            for token in dead:
                self._replace(token, runs[token])

    def _replace(self, token: str, died: Callable[[], str | None]) -> None:
        try:
            successor = died()
        except CacheError as error:
            _log.warning("the claims cannot be reached: %s", error)
            return  # found dead again at the next beat
        with self._lock:
            if self._runs.pop(token, None) is not None and successor is not None:
                self._runs[successor] = died
