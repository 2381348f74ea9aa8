"""What every executor promises: it takes tasks and says on a bus what comes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spyre_cache.objects.action import Action
    from spyre_cache.objects.target import Target, Toolchain
    from spyre_workers.bus import Bus
    from spyre_workers.messages import Task


class Executor(ABC):
    """Runs tasks somewhere, at least once each, in any order.

    Attributes:
        bus: where it says what happens.
        durable: whether what was dispatched outlives this process; otherwise it dies with it, or at `close`.
    """

    bus: Bus
    durable: ClassVar[bool]

    def start(self, toolchain: Toolchain, targets: Iterable[Target]) -> None:  # noqa: ARG002  for those who warm up
        """Warms up for what will come, in the background; failures show in `dispatch` or on the bus."""
        return

    @abstractmethod
    def dispatch(self, tasks: Iterable[tuple[Task, Action]]) -> None:
        """Hands tasks over; returns at once.

        Raises:
            CacheUnavailableError: the broker cannot be reached; some of the tasks may have been taken.
        """

    def check(self) -> None:
        """Raises what keeps this executor from going on, if anything does; to be asked now and then.

        Raises:
            CacheError: results cannot be stored; their tasks are to be dispatched again, should that change.
        """
        return

    def backlog(self, actions: Iterable[Action]) -> int | None:  # noqa: ARG002  for those who have queues
        """How many tasks wait in the queues that such actions go to; None where nobody can say.

        Raises:
            CacheUnavailableError: the broker cannot be reached.
        """
        return None

    def lacking(self, actions: Iterable[Action]) -> str | None:  # noqa: ARG002  for those with workers elsewhere
        """One line on why nobody takes such actions at present (no worker, another toolchain), or None.

        Raises:
            CacheUnavailableError: the broker cannot be reached.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Ends what does not outlive this process: local compilations are killed, remote ones go on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
