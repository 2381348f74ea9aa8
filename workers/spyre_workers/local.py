"""The local executor: many actions side by side on this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import threading
from typing import TYPE_CHECKING

from spyre_cache.errors import CacheError
from spyre_workers.client import CompileServer, Run
from spyre_workers.compile import Limits
from spyre_workers.executor import Executor
from spyre_workers.heart import Heart
from spyre_workers.work import Workplace, perform

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims
    from spyre_cache.objects.action import Action
    from spyre_cache.objects.target import Target, Toolchain
    from spyre_workers.bus import Bus
    from spyre_workers.messages import Task


def default_jobs() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


class LocalExecutor(Executor):
    """Performs tasks in this process: threads that wait, compilations in the children of a warmed server.

    Leaving it, by whatever way, ends every compilation and the server, leaves no files, and lets go of its claims.
    """

    durable = False

    def __init__(
        self,
        cache: Cache,
        claims: Claims,
        bus: Bus,
        *,
        jobs: int | None = None,
        limits: Limits | None = None,
        imports: tuple[str, ...] = (),
        worker: str = "",
    ) -> None:
        """Starts nothing yet.

        Args:
            cache: where actions are found and results put.
            claims: shared with whoever else uses this cache.
            bus: where it is said what happens.
            jobs: compilations at once; by default the cores this process may use.
            limits: time and memory of each.
            imports: modules, or Python files, that define the custom operators the fragments call.
            worker: who compiles, for results and events; by default this host and process.
        """
        self.bus = bus
        self._jobs = max(1, jobs if jobs is not None else default_jobs())
        self._server = CompileServer(imports)
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._runs: set[Run] = set()
        self._stopped = False
        self._error: CacheError | None = None
        allowed = limits or Limits()
        self._place = Workplace(
            cache=cache,
            claims=claims,
            bus=bus,
            server=self._server,
            worker=worker or f"{platform.node()}-{os.getpid()}",
            again=lambda task, _: self._tasks.put(task),
            limits=lambda _: allowed,
            heart=Heart(claims),
        )

    def start(self, toolchain: Toolchain, targets: Iterable[Target]) -> None:
        """Starts the server ahead of time; what all fragments of `targets` share is compiled meanwhile too."""
        self._server.ahead = tuple((toolchain, target) for target in targets if target.kind == "cpu")
        threading.Thread(target=self._start_quietly, name="spyre-compile-start", daemon=True).start()

    def dispatch(self, tasks: Iterable[tuple[Task, Action]]) -> None:
        """As `Executor.dispatch`; cannot fail."""
        count = 0
        for task, _ in tasks:
            self._tasks.put(task)
            count += 1
        with self._lock:
            for number in range(len(self._threads), min(self._jobs, len(self._threads) + count)):
                thread = threading.Thread(target=self._work, name=f"spyre-compile-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def check(self) -> None:
        """As `Executor.check`; told once, for what was away may be back."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Ends everything this executor runs; it is of no use afterwards."""
        with self._lock:
            self._stopped = True
            runs, threads = set(self._runs), list(self._threads)
        for run in runs:
            run.cancel()
        for _ in threads:
            self._tasks.put(None)
        self._server.close()
        for thread in threads:
            thread.join(10)

    def _start_quietly(self) -> None:
        with contextlib.suppress(Exception):  # whoever runs an action is told
            self._server.start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            run = Run()
            with self._lock:
                if self._stopped:
                    return
                self._runs.add(run)
            try:
                perform(task, self._place, run)
            except CacheError as error:
                self._error = error
            finally:
                with self._lock:
                    self._runs.discard(run)
