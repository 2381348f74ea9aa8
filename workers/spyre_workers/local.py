"""The local executor: many actions side by side on this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import threading
from typing import TYPE_CHECKING, Self

from spyre_cache.errors import CacheError
from spyre_cache.objects.action import ActionResult, Failure
from spyre_workers.client import Cancelled, CompileServer, Run
from spyre_workers.compile import Limits, compile_action
from spyre_workers.executor import Executor
from spyre_workers.heart import Heart
from spyre_workers.work import Workplace, perform

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims
    from spyre_cache.objects.action import Action
    from spyre_cache.objects.target import Target, Toolchain
    from spyre_cache.stores.base import BlobStore
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


class LocalPool:
    """Compiles actions in parallel; one that fails does not stop the others.

    A context manager: leaving it, by whatever way, ends every compilation and the server, and leaves no files.
    """

    def __init__(
        self,
        blobs: BlobStore,
        *,
        jobs: int | None = None,
        limits: Limits | None = None,
        imports: tuple[str, ...] = (),
        builder: str = "",
    ) -> None:
        """Starts nothing yet.

        Args:
            blobs: where fragments are read and results are put.
            jobs: compilations at once; by default the cores this process may use.
            limits: time and memory of each.
            imports: modules, or Python files, that define the custom operators the fragments call.
            builder: who compiles, for the results.
        """
        self._blobs = blobs
        self._jobs = max(1, jobs if jobs is not None else default_jobs())
        self._limits = limits or Limits()
        self._builder = builder
        self._server = CompileServer(imports)

    def start(self, toolchain: Toolchain | None = None, targets: Iterable[Target] = ()) -> None:
        """Starts the server ahead of time, for callers with other work to do meanwhile; failures show in `run`.

        Args:
            toolchain: with it, what all fragments of `targets` share is compiled meanwhile too, if it is not there yet.
            targets: CPU targets that actions will be for; others are passed over.
        """
        if toolchain is not None:
            self._server.ahead = tuple((toolchain, target) for target in targets if target.kind == "cpu")
        threading.Thread(target=self._start_quietly, name="spyre-compile-start", daemon=True).start()

    def run(self, actions: Iterable[Action]) -> Iterator[tuple[Action, ActionResult]]:
        """Yields each action with its result as they finish, in no order.

        Raises:
            CacheError: results cannot be stored; what runs is ended.
        """
        waiting: queue.SimpleQueue[Action] = queue.SimpleQueue()
        count = 0
        for action in actions:
            waiting.put(action)
            count += 1
        done: queue.SimpleQueue[tuple[Action, ActionResult] | BaseException] = queue.SimpleQueue()
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._work, args=(waiting, done, stop), name=f"spyre-compile-{n}", daemon=True)
            for n in range(min(self._jobs, count))
        ]
        for thread in threads:
            thread.start()
        finished = False
        try:
            for _ in range(count):
                item = done.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
            finished = True
        finally:
            stop.set()
            if not finished:  # an error, Ctrl-C, or a caller that has seen enough
                self._server.close()
            for thread in threads:
                thread.join(10)

    def close(self) -> None:
        """Ends everything this pool runs."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_quietly(self) -> None:
        with contextlib.suppress(Exception):  # whoever runs an action is told
            self._server.start()

    def _work(
        self,
        waiting: queue.SimpleQueue[Action],
        done: queue.SimpleQueue[tuple[Action, ActionResult] | BaseException],
        stop: threading.Event,
    ) -> None:
        while not stop.is_set():
            try:
                action = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                result = compile_action(
                    action, self._blobs, limits=self._limits, server=self._server, builder=self._builder
                )
            except Cancelled:
                return
            except CacheError as error:
                done.put(error)
                return
            except Exception as error:  # noqa: BLE001  a bug here must not cost the other fragments
                failure = Failure(kind="infrastructure", message=f"{type(error).__name__}: {error}"[:2000])
                result = ActionResult(action=action.key(), status="failed", failure=failure, builder=self._builder)
            done.put((action, result))
