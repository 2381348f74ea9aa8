"""One worker process: what it works with, the messages it takes, and how it comes to rest."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from spyre_cache.codec import decode
from spyre_cache.errors import CacheUnavailableError, InvalidRecordError
from spyre_workers.client import CompileServer, Run
from spyre_workers.heart import Heart
from spyre_workers.messages import Event, Task
from spyre_workers.metrics import Metrics
from spyre_workers.queues import limits_of, size_class
from spyre_workers.storing import Storing
from spyre_workers.work import Outcome, Said, Workplace, perform, unstored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims
    from spyre_cache.objects.action import Action
    from spyre_workers.bus import Bus
    from spyre_workers.compile import Limits

MAX_MESSAGE_BYTES = 16 << 10
PATIENCE_SECONDS = 600.0
_RETRY_SECONDS = 1.0, 10.0
_log = logging.getLogger(__name__)


class Station:
    """Takes messages, on as many threads as come; knows how many runs there are and can end them."""

    def __init__(
        self,
        cache: Cache,
        claims: Claims,
        bus: Bus,
        *,
        again: Callable[[Task, Action], None],
        slots: int,
        name: str = "",
        imports: tuple[str, ...] = (),
        limits: Callable[[Action], Limits] = limits_of,
    ) -> None:
        """Starts nothing yet.

        Args:
            cache: where actions are found and results put.
            claims: who is at work on what.
            bus: where it is said what happens.
            again: sends a task once more.
            slots: compilations at once, for those who watch.
            name: of this worker; by default its host and process.
            imports: modules, or Python files, that define custom operators.
            limits: time and memory of an action's compilation.
        """
        self.name = name or f"{platform.node()}-{os.getpid()}"
        self.slots = slots
        self.metrics = Metrics()
        self.metrics.slots.set(slots)
        self.server = CompileServer(imports)
        self.draining = False
        self.heard = time.monotonic()
        self.taken = 0
        self._bus = bus
        self.storing = Storing(cache, self.metrics, patience=PATIENCE_SECONDS)
        self._lock = threading.Lock()
        self._runs: set[Run] = set()
        self._stop = threading.Event()
        self._place = Workplace(
            cache=cache,
            claims=claims,
            bus=bus,
            server=self.server,
            worker=self.name,
            again=again,
            limits=limits,
            heart=Heart(claims),
            storing=self.storing,
        )

    @property
    def busy(self) -> int:
        """Tasks in hand."""
        return len(self._runs)

    def handle(self, message: object) -> bool:
        """Performs one message.

        Returns:
            Whether it is done with; otherwise it shall come again, here or elsewhere.
        """
        self.heard = time.monotonic()
        self.taken += 1
        if self.draining:
            return False
        if self.storing.why_not:  # it came before the consumer could be told to rest
            self.rest(random.uniform(*_RETRY_SECONDS))  # noqa: S311  jitter
            return False
        task = self._task(message)
        if task is None:
            self.metrics.tasks.labels(outcome="invalid").inc()
            return True
        with self._counted() as run:
            began = time.monotonic()
            try:
                outcome = perform(task, self._place, run)
            except CacheUnavailableError as error:
                self._put_off(task, error)
                return False
            except Exception:  # noqa: BLE001  whatever it is, it must not come round for ever
                _log.exception("task of action %s", task.action[:12])
                self.metrics.tasks.labels(outcome="defect").inc()
                return True
            self._measure(task, outcome, time.monotonic() - began)
            return outcome != "cancelled"

    def _put_off(self, task: Task, error: CacheUnavailableError) -> None:
        self.metrics.unavailable.inc()
        was_known = bool(self.storing.why_not)
        self.storing.doubt()
        if not was_known and (why := self.storing.why_not):
            self._tell("unstored", task.action, task.build, unstored(self.name, why))
        elif not was_known:
            _log.warning("action %s has to wait: %s", task.action[:12], error)
        self.rest(random.uniform(*_RETRY_SECONDS))  # noqa: S311  jitter

    def _tell(self, kind: Said, action: str, build: str, text: str) -> None:
        event = Event(kind=kind, action=action, build=build, worker=self.name, at=time.time(), text=text[:1000])
        self._bus.publish(event)

    def rest(self, seconds: float) -> None:
        """Waits, but not when it is to take no more."""
        self._stop.wait(seconds)

    def drain(self) -> None:
        """Takes no more; what runs goes on."""
        self.draining = True
        self._stop.set()

    def end_runs(self) -> None:
        """Ends what runs; the tasks go back to the others."""
        with self._lock:
            runs = list(self._runs)
        for run in runs:
            run.cancel()

    def close(self) -> None:
        """Ends everything this process runs."""
        self.drain()
        self.storing.close()
        self.end_runs()
        self.server.close()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[Run]:
        run = Run()
        with self._lock:
            self._runs.add(run)
        self.metrics.busy.set(self.busy)
        try:
            yield run
        finally:
            with self._lock:
                self._runs.discard(run)
            self.metrics.busy.set(self.busy)
            self.heard = time.monotonic()

    def _measure(self, task: Task, outcome: Outcome, seconds: float) -> None:
        self.metrics.tasks.labels(outcome=outcome).inc()
        if outcome in {"compiled", "failed", "crashed", "unsupported", "lost"}:
            action = self._place.cache.actions.document(task.action)
            self.metrics.seconds.labels(size="unknown" if action is None else size_class(action)).observe(seconds)
        level = logging.WARNING if outcome in {"crashed", "quarantined", "failed", "lost"} else logging.INFO
        _log.log(level, "action %s of build %s: %s in %.1f s", task.action[:12], task.build, outcome, seconds)

    def _task(self, message: object) -> Task | None:
        """The task in a message; what is none is told to whoever sent it, as far as that can be read."""
        data = message.encode() if isinstance(message, str) else b""
        try:
            return decode(data, Task, limit=MAX_MESSAGE_BYTES)
        except InvalidRecordError as error:
            reason = f"worker {self.name} cannot read a message: {error}"
        _log.error("%s: %s", reason, repr(message)[:200])
        action, build = _addressed(data)
        if action and build:
            self._tell("failed", action, build, reason)
        return None


class _Addressed(msgspec.Struct):
    action: str = ""
    build: str = ""


def _addressed(data: bytes) -> tuple[str, str]:
    """Action and build of a message that is otherwise unknown."""
    if len(data) > MAX_MESSAGE_BYTES:
        return "", ""
    try:
        found = msgspec.json.decode(data, type=_Addressed)
    except (msgspec.MsgspecError, RecursionError):
        return "", ""
    return found.action[:64], found.build[:200]


_current: Station | None = None
_current_lock = threading.Lock()


def set_current(station: Station | None) -> None:
    """Makes a station the one that this process's messages go to."""
    global _current
    _current = station


def current() -> Station:
    """This process's station; made from the environment where Celery was started by its own command.

    Raises:
        CacheError: the cache or the broker that the environment names cannot be used.
    """
    global _current
    with _current_lock:
        if _current is None:
            _current = _from_environment(os.environ)
        return _current


def _from_environment(environ: Any) -> Station:
    from pathlib import Path

    from spyre_cache.cache import Cache
    from spyre_workers.app import BROKER_VARIABLE, CACHE_VARIABLE, DEFAULT_BROKER
    from spyre_workers.celery_executor import CeleryExecutor
    from spyre_workers.local import default_jobs
    from spyre_workers.opening import open_claims

    broker = environ.get(BROKER_VARIABLE) or DEFAULT_BROKER
    cache = Cache.open(environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "spyre-build")
    executor = CeleryExecutor(broker)
    return Station(
        cache,
        open_claims(broker, cache),
        executor.bus,
        again=lambda task, action: executor.dispatch([(task, action)]),
        slots=default_jobs(),
    )
