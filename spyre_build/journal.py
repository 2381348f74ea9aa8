"""A build's record while it is written: every change is noted at once, and kept so often as it costs little."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from spyre_build import builds
from spyre_cache.errors import CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spyre_build.builds import BuildAction, BuildRecord, Status
    from spyre_build.events import Outcome
    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest

_SECONDS = 1.0
_SHARE = 20  # keeping the record may take a twentieth of a build's time, however many actions it has


class Notes(Protocol):
    """What is told of a build's actions while it is driven."""

    def queued(self, keys: Iterable[str]) -> None:
        """Handed out, once more perhaps."""

    def began(self, key: str, worker: str, at: float) -> None:
        """A run was begun somewhere, `at` seconds since the epoch."""

    def settled(
        self, key: str, outcome: Outcome, *, error: str = "", log: Digest | None = None, worker: str = ""
    ) -> None:
        """It is known what comes of an action."""

    def keep_when_due(self) -> None:
        """Time has passed."""


class NoNotes:
    """Keeps nothing."""

    def queued(self, keys: Iterable[str]) -> None:
        """Ignored."""

    def began(self, key: str, worker: str, at: float) -> None:
        """Ignored."""

    def settled(
        self, key: str, outcome: Outcome, *, error: str = "", log: Digest | None = None, worker: str = ""
    ) -> None:
        """Ignored."""

    def keep_when_due(self) -> None:
        """Ignored."""


class Journal:
    """Writes one build's record.

    Attributes:
        record: as it stands, but for the actions.
        actions: every distinct (fragment, target), by key.
    """

    def __init__(self, cache: Cache, record: BuildRecord) -> None:
        self.cache = cache
        self.record = record
        self.actions: dict[str, BuildAction] = {action.key: action for action in record.actions}
        self.seconds: dict[str, float] = {}
        for span in record.spans:
            self.seconds[span.name] = self.seconds.get(span.name, 0.0) + max(0.0, span.ended - span.began)
        self._due = 0.0

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A phase; those that overlap are both counted."""
        began = time.time()
        try:
            yield
        finally:
            self.add_span(name, began, time.time())

    def add_span(self, name: str, began: float, ended: float) -> None:
        """A phase that has ended, seconds since the epoch."""
        self.seconds[name] = self.seconds.get(name, 0.0) + max(0.0, ended - began)
        span = builds.Span(name=name, began=began, ended=ended)
        self.record = replace(self.record, spans=(*self.record.spans, span))

    def planned(self, actions: Iterable[BuildAction]) -> None:
        """What the build is about."""
        self.actions = {action.key: action for action in actions}
        self.keep("running")

    def queued(self, keys: Iterable[str]) -> None:
        """Handed out, once more perhaps."""
        now = time.time()
        for key in keys:
            self._change(key, queued=self.actions[key].queued or now)

    def began(self, key: str, worker: str, at: float) -> None:
        """A run was begun somewhere."""
        self._change(key, worker=worker, began=at)

    def settled(
        self, key: str, outcome: Outcome, *, error: str = "", log: Digest | None = None, worker: str = ""
    ) -> None:
        """It is known what comes of an action."""
        said = {"error": error.partition("\n")[0][:500], "worker": worker or self.actions[key].worker}
        self._change(key, outcome=outcome, log=log, ended=time.time(), **said)
        self.keep_when_due()

    def _change(self, key: str, **fields: Any) -> None:
        self.actions[key] = replace(self.actions[key], **fields)

    def keep_when_due(self) -> None:
        """Writes what has changed, if the last time is long enough ago; where the cache is away, later."""
        if time.monotonic() >= self._due:
            try:
                self.keep(self.record.status)
            except CacheUnavailableError:
                self._due = time.monotonic() + _SECONDS

    def keep(self, status: Status, **fields: Any) -> None:
        """Writes the record now.

        Raises:
            CacheError: the cache cannot be written.
        """
        self.record = replace(self.record, status=status, actions=tuple(self.actions.values()), **fields)
        start = time.monotonic()
        builds.keep(self.cache, self.record)
        now = time.monotonic()
        self._due = now + max(_SECONDS, _SHARE * (now - start))
