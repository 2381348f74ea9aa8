"""Hands tasks to a fleet: publishes them to its queues, and tells who is there to take them."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from spyre_cache.codec import encode
from spyre_cache.errors import CacheUnavailableError
from spyre_cache.stores.redis_client import broker_unavailable, connect, redis_address
from spyre_cache.stores.redis_kinds import is_wrong_kind, mended
from spyre_workers.executor import Executor
from spyre_workers.queues import PRIORITIES, queue_of, toolchain_id
from spyre_workers.redis_bus import RedisBus
from spyre_workers.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spyre_cache.objects.action import Action
    from spyre_workers.messages import Task, Urgency

_PRIORITY_SEPARATOR = "\x06\x16"  # of the broker library: a queue is a list for each priority


class CeleryExecutor(Executor):
    """Publishes only; what was published outlives this process."""

    durable = True

    def __init__(self, broker: str, *, urgency: Urgency = "interactive") -> None:
        """Connects to nothing yet but the bus, which may fail for now.

        Args:
            broker: URL of the Redis.
            urgency: `interactive` tasks are taken before `warm` ones.

        Raises:
            CacheUnavailableError: the URL is wrong.
        """
        self._address = redis_address(broker)
        self._priority = PRIORITIES[urgency]
        self._broker = broker
        self._app: Any = None
        self._client: Any = connect(self._address)
        self._registry = Registry(self._address)
        self.bus = self._bus = RedisBus(self._address)

    def dispatch(self, tasks: Iterable[tuple[Task, Action]]) -> None:
        """As `Executor.dispatch`."""
        from spyre_workers.app import TASK, key_prefix, make_app
        from spyre_workers.transport import kinds_of_keys

        if self._app is None:
            self._app = make_app(self._broker)
        with self._translated(), self._app.producer_pool.acquire(block=True, timeout=30) as producer:
            for task, action in tasks:
                queue = queue_of(action)
                send = partial(
                    self._app.send_task,
                    TASK,
                    args=[encode(task).decode()],
                    queue=queue,
                    priority=self._priority,
                    ignore_result=True,
                    producer=producer,
                )
                mended(self._client, kinds_of_keys(key_prefix(self._address), [queue]), send)

    def backlog(self, actions: Iterable[Action]) -> int:
        """As `Executor.backlog`."""
        return queued(self._client, self._address.shown, self._address.prefix, {queue_of(action) for action in actions})

    def lacking(self, actions: Iterable[Action]) -> str | None:
        """As `Executor.lacking`."""
        workers = self._registry.workers()
        served = {queue for worker in workers for queue in worker.queues}
        for action in actions:
            if queue_of(action) in served:
                continue
            wanted = toolchain_id(action.toolchain)
            there = sorted({worker.toolchain for worker in workers})
            if not workers:
                return f"no worker is there; start one with: spyre-build worker --broker {self._address.shown}"
            if wanted not in there:
                return f"no worker has the toolchain {wanted} of this build; there are {', '.join(there)}"
            return f"no worker takes {action.target.name} fragments of this size (queue {queue_of(action)})"
        return None

    def close(self) -> None:
        """Lets go of the connections; what was published stays."""
        self._bus.close()
        self._registry.close()
        self._client.close()
        if self._app is not None:
            self._app.close()
            self._app = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from kombu.exceptions import OperationalError

        try:
            with broker_unavailable(self._address.shown):
                yield
        except OperationalError as error:
            failure = CacheUnavailableError(f"the broker {self._address.shown} takes no tasks: {error}")
            failure.service = "broker"
            raise failure from None


def queued(client: Any, shown: str, prefix: str, queues: Iterable[str]) -> int:
    """Tasks that wait in queues of a broker, of every priority.

    Raises:
        CacheUnavailableError: it cannot be reached.
    """
    names = [
        f"{prefix}:celery:{queue}{f'{_PRIORITY_SEPARATOR}{priority}' if priority else ''}"
        for queue in sorted(queues)
        for priority in sorted(PRIORITIES.values())
    ]
    if not names:
        return 0
    with broker_unavailable(shown), client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.llen(name)
        answers = pipe.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception) and not is_wrong_kind(answer):
                raise answer
        return sum(int(answer) for answer in answers if not isinstance(answer, Exception))
