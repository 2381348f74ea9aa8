"""The worker process: Celery's consumer in the main thread, and around it what keeps it honest.

Beside the tasks run: a record in the registry, renewed every few seconds; the health endpoint; a watchdog, since a
consumer can go deaf when its broker is reset and then sits idle while tasks wait; a steward, if the caller brings one.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Literal

from spyre_cache.errors import CacheError
from spyre_cache.stores.redis_client import broker_unavailable, connect, redis_address
from spyre_cache.stores.redis_kinds import remove_foreign
from spyre_runtime.host import cpu_features
from spyre_workers.celery_executor import CeleryExecutor, queued
from spyre_workers.errors import WorkerError, WorkerUnavailableError
from spyre_workers.health import Health
from spyre_workers.local import default_jobs
from spyre_workers.queues import CLASSES, SizeClass, compilable, queues_of, toolchain_id
from spyre_workers.registry import ANNOUNCE_SECONDS, Registry, WorkerRecord
from spyre_workers.station import Station, set_current
from spyre_workers.toolchain import toolchain

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims
    from spyre_cache.objects.target import Target

Ending = Literal["drained", "restart"]

RESTARTS_VARIABLE: Final = "SPYRE_WORKER_RESTARTS"
STEWARD_SECONDS: Final = 5.0
_HANG_SECONDS: Final = 20.0
_GIVE_UP_SECONDS: Final = 120.0
_PAUSE_SECONDS: Final = 0.2, 5.0  # the first between two consumers, and the longest
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Duties:
    """What a worker takes, and how it behaves.

    Attributes:
        slots: compilations at once.
        targets: what it compiles for; by default everything its architecture can.
        classes: sizes of fragments it takes.
        health: HOST:PORT of the health endpoint; empty for none.
        name: of the worker; by default host and process.
        imports: modules, or Python files, that define custom operators.
        drain_seconds: how long what runs may go on after SIGTERM.
        deaf_seconds: how long tasks may wait while slots are free, until the consumer counts as deaf.
    """

    slots: int = field(default_factory=default_jobs)
    targets: tuple[Target, ...] = ()
    classes: tuple[SizeClass, ...] = CLASSES
    health: str = ""
    name: str = ""
    imports: tuple[str, ...] = ()
    drain_seconds: float = 600.0
    deaf_seconds: float = 20.0


def serve(
    broker: str, cache: Cache, claims: Claims, duties: Duties, *, steward: Callable[[], None] | None = None
) -> Ending:
    """Takes tasks until a signal says otherwise: SIGTERM or SIGINT drains, a second one ends what runs.

    Args:
        broker: URL of the Redis.
        cache: where actions are found and results put.
        claims: of that broker.
        duties: what to take.
        steward: called every few seconds, on a thread of its own.

    Returns:
        `drained`, or `restart` when the consumer had gone deaf and the process should be replaced.

    Raises:
        CacheUnavailableError: the broker cannot be reached at start.
        WorkerError: the compile server or the health endpoint cannot be started, or this machine has no toolchain.
    """
    claims.epoch()
    with ExitStack() as stack:
        worker = _Worker(broker, cache, claims, duties, stack)
        return worker.run(steward)


class _Worker:
    def __init__(self, broker: str, cache: Cache, claims: Claims, duties: Duties, stack: ExitStack) -> None:
        self.duties = duties
        self.address = redis_address(broker)
        self.tools = toolchain()
        self.targets = duties.targets or tuple(compilable(platform.machine()))
        self.queues = queues_of(self.tools, self.targets, duties.classes)
        if not self.queues:
            raise WorkerError(f"a worker takes at least one target, and {platform.machine()} compiles for none")
        self.client: Any = connect(self.address)
        stack.callback(self.client.close)
        self.executor = stack.enter_context(CeleryExecutor(broker))
        self.registry = Registry(self.address)
        stack.callback(self.registry.close)
        self.station = Station(
            cache, claims, self.executor.bus, slots=duties.slots, name=duties.name, imports=duties.imports,
            again=lambda task, action: self.executor.dispatch([(task, action)]),
        )  # fmt: skip
        stack.callback(self.station.close)
        self.restarts = int(os.environ.get(RESTARTS_VARIABLE) or 0)
        self.station.metrics.restarts.set(self.restarts)
        self.started = time.time()
        self.warm = self.deaf = self.cut_off = self.resting = False
        self._controller: Any = None
        self.over = threading.Event()
        self.health = self._open_health(stack)
        self.broker = broker

    def run(self, steward: Callable[[], None] | None) -> Ending:
        from celery.worker import state

        from spyre_workers.transport import on_set_aside

        forget = on_set_aside(self.station.metrics.set_aside.inc)
        self._warn_of_eviction()
        self._announce()  # whoever submits meanwhile need not be told that nobody is there
        self._warm_up()
        set_current(self.station)
        state.should_stop = state.should_terminate = None
        before = [(number, signal.signal(number, self._on_signal)) for number in (signal.SIGTERM, signal.SIGINT)]
        threads = [threading.Thread(target=self._watch, name="spyre-watch", daemon=True)]
        if steward is not None:
            threads.append(threading.Thread(target=self._steward, args=(steward,), name="spyre-steward", daemon=True))
        for thread in threads:
            thread.start()
        try:
            self._consume()
        finally:
            self.over.set()
            forget()
            for number, handler in before:
                signal.signal(number, handler)
            set_current(None)
            self.station.close()
            with suppress(CacheError):
                self.registry.withdraw(self.station.name)
            for thread in threads:
                thread.join(10)
        return "restart" if self.deaf else "drained"

    # --- starting ---

    def _open_health(self, stack: ExitStack) -> str:
        if not self.duties.health:
            return ""
        health = Health(self.duties.health, self.station.metrics, alive=self._stuck, ready=self._unready)
        return stack.enter_context(health).address

    def _warm_up(self) -> None:
        """Starts the compile server, and has what all fragments share compiled before the first one comes."""
        ahead = self.duties.targets or self._likely()
        self.station.server.ahead = tuple((self.tools, target) for target in ahead if target.kind == "cpu")
        self.station.server.start()
        self.warm = True

    def _likely(self) -> tuple[Target, ...]:
        """What submitters on machines like this one build for by default."""
        provided = cpu_features()
        return tuple(target for target in self.targets if provided.issuperset(target.features))[-1:]

    def _warn_of_eviction(self) -> None:
        """A broker that evicts loses tasks and claims."""
        with suppress(CacheError), broker_unavailable(self.address.shown):
            policy = self.client.config_get("maxmemory-policy").get("maxmemory-policy", "noeviction")
            if policy != "noeviction":
                _log.warning(
                    "the broker %s has maxmemory-policy %s: when it is full it forgets tasks and claims, and work is "
                    "done twice; set noeviction, and keep an evicting cache tier in another Redis",
                    self.address.shown, policy,
                )  # fmt: skip

    # --- consuming ---

    def _consume(self) -> None:
        """Until a signal or the watchdog; a consumer that ends by itself is followed by another, after a pause.

        Raises:
            WorkerUnavailableError: for long none of them has got anywhere.
        """
        pause, longest = _PAUSE_SECONDS
        progress, taken = time.monotonic(), self.station.taken
        _log.info("worker %s takes %s", self.station.name, ", ".join(self.queues))
        while not self.station.draining:
            self.station.heard = began = time.monotonic()
            self._consume_once()
            now = time.monotonic()
            if self.station.taken != taken or now - began > _GIVE_UP_SECONDS / 2:
                pause, progress, taken = _PAUSE_SECONDS[0], now, self.station.taken
            if now - progress > _GIVE_UP_SECONDS:
                raise WorkerUnavailableError(
                    f"for {now - progress:.0f} s the consumer of tasks has ended again and again; its log says why"
                )
            self.station.rest(pause)
            pause = min(2 * pause, longest)

    def _consume_once(self) -> None:
        from spyre_workers.app import key_prefix, make_app
        from spyre_workers.transport import kinds_of_keys

        with suppress(CacheError), broker_unavailable(self.address.shown):
            remove_foreign(self.client, kinds_of_keys(key_prefix(self.address), self.queues))
        app = make_app(self.broker)
        app.set_default()  # the pool's threads look their task up in what is current
        try:
            # The plain controller: no banner, no signal handlers, no configuration of logs.
            self._controller = app.WorkController(
                hostname=f"{self.station.name}@spyre", pool="threads", concurrency=self.duties.slots,
                queues=self.queues, loglevel="WARNING", without_gossip=True, without_mingle=True,
                without_heartbeat=True,
            )  # fmt: skip
            self._controller.start()
        finally:
            self._controller = None
            app.close()

    def _on_signal(self, *_: object) -> None:
        if self.station.draining:
            self.station.end_runs()
            return
        self._stop_consuming()
        threading.Thread(target=self._drain, name="spyre-drain", daemon=True).start()

    def _stop_consuming(self) -> None:
        from celery.worker import state

        self.station.drain()
        state.should_stop = os.EX_OK

    def _drain(self) -> None:
        _log.info("draining: %d tasks in hand have %g s to end", self.station.busy, self.duties.drain_seconds)
        with suppress(CacheError):
            self._announce()
        if not self.over.wait(self.duties.drain_seconds):
            self.station.end_runs()

    # --- watching ---

    def _watch(self) -> None:
        while not self.over.wait(ANNOUNCE_SECONDS):
            try:
                self._announce()
                if self.cut_off:
                    self.cut_off = False
                    self._reconnect()
                self._rest_or_go_on()
                self._look_for_deafness()
            except CacheError as error:
                self.cut_off = True
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001  a watchdog that dies of its own mistake watches nothing
                _log.exception("watching")

    def _announce(self) -> None:
        self.registry.announce(
            WorkerRecord(
                name=self.station.name,
                host=platform.node(),
                pid=os.getpid(),
                queues=() if self.station.draining or self.station.storing.why_not else tuple(self.queues),
                toolchain=toolchain_id(self.tools),
                versions=(("spyre-build", metadata.version("spyre-build")), ("torch", self.tools.torch)),
                slots=self.duties.slots,
                busy=self.station.busy,
                started=self.started,
                draining=self.station.draining,
                health=self.health,
            )
        )

    def _reconnect(self) -> None:
        """Has the consumer begin anew. A message that could not be acknowledged while the broker was away counts as in
        hand for ever on its connection, and a consumer with its hands full asks for nothing.
        """
        consumer = getattr(self._controller, "consumer", None)
        if consumer is not None and not self.station.draining:
            consumer.call_soon(_cut)

    def _rest_or_go_on(self) -> None:
        """Has the consumer take nothing while results cannot be stored; what it takes would be compiled for nothing."""
        consumer = getattr(self._controller, "consumer", None)
        if consumer is None or self.station.draining:
            return
        if self.station.storing.why_not:
            self.resting = True
            consumer.call_soon(_rest, consumer)
        elif self.resting:
            self.resting = False
            consumer.call_soon(_go_on, consumer)

    def _look_for_deafness(self) -> None:
        waiting = queued(self.client, self.address.shown, self.address.prefix, self.queues)
        self.station.metrics.waiting.set(waiting)
        busy = self.station.busy >= self.duties.slots
        if not waiting or busy or self.station.draining or self.station.storing.why_not:
            self.station.heard = time.monotonic()
            return
        silent = time.monotonic() - self.station.heard
        if silent < self.duties.deaf_seconds:
            return
        _log.error("%d tasks wait, slots are free, and none came for %.0f s: starting anew", waiting, silent)
        self.deaf = True
        self._stop_consuming()
        threading.Thread(target=self._replace, name="spyre-replace", daemon=True).start()

    def _replace(self) -> None:
        """Where the main thread hangs, it cannot leave by itself."""
        if self.over.wait(self.duties.drain_seconds if self.station.busy else _HANG_SECONDS):
            return
        self.station.close()
        replace_process()

    def _steward(self, steward: Callable[[], None]) -> None:
        while not self.over.wait(STEWARD_SECONDS):
            if self.station.draining:
                continue
            try:
                steward()
            except Exception:  # noqa: BLE001  builds adopted late are better than a worker that ends
                _log.exception("the steward")

    # --- being asked ---

    def _stuck(self) -> str:
        return "its consumer has gone deaf" if self.deaf else ""

    def _unready(self) -> str:
        if self.station.draining:
            return "draining"
        if not self.warm:
            return "the compile server is starting"
        if why := self.station.storing.why_not:
            return f"results cannot be stored: {why}"
        try:
            with broker_unavailable(self.address.shown):
                self.client.ping()
        except CacheError as error:
            return str(error)
        return self._stuck()


def _cut() -> None:
    raise ConnectionResetError("the broker was away")


def _rest(consumer: Any) -> None:
    if consumer.task_consumer is not None:
        consumer.task_consumer.cancel()


def _go_on(consumer: Any) -> None:
    if consumer.task_consumer is not None:
        consumer.task_consumer.consume()


def replace_process() -> None:
    """Starts this very command anew in this process; never returns."""
    import sys

    os.environ[RESTARTS_VARIABLE] = str(int(os.environ.get(RESTARTS_VARIABLE) or 0) + 1)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  our own command line, once more
