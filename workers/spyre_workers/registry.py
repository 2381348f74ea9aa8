"""Who is there: each worker keeps a small record of itself in the broker's Redis, which lapses when it falls silent."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from spyre_cache.codec import Record, decode, encode
from spyre_cache.errors import InvalidRecordError
from spyre_cache.stores.redis_client import broker_unavailable, connect, redis_address
from spyre_cache.stores.redis_kinds import mended

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyre_cache.stores.redis_client import RedisAddress

ALIVE_SECONDS = 15
ANNOUNCE_SECONDS = 3.0
MAX_WORKERS = 10_000
MAX_WORKER_BYTES = 64 << 10


class WorkerRecord(Record, frozen=True, kw_only=True):
    """A worker as it describes itself.

    Attributes:
        name: unique among those alive.
        host: the machine it runs on.
        pid: its process there.
        queues: what it takes.
        toolchain: short name of its toolchain.
        versions: of spyre-build and torch.
        slots: compilations at once.
        busy: compilations now.
        started: seconds since the epoch by its own clock.
        draining: whether it takes no more.
        health: HOST:PORT of its health endpoint, or empty.
    """

    schema: Literal["worker/1"] = "worker/1"
    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    toolchain: str
    versions: tuple[tuple[str, str], ...] = ()
    slots: int
    busy: int = 0
    started: float = 0.0
    draining: bool = False
    health: str = ""


class Registry:
    """The workers of a broker."""

    def __init__(self, address: RedisAddress | str) -> None:
        """Sends nothing yet.

        Raises:
            CacheUnavailableError: the URL is wrong.
        """
        self._address = redis_address(address) if isinstance(address, str) else address
        self._client: Any = connect(self._address)
        self._names = f"{self._address.prefix}:workers"

    def announce(self, worker: WorkerRecord) -> None:
        """Says that a worker is there, for `ALIVE_SECONDS`.

        Raises:
            CacheUnavailableError: the broker cannot be reached.
        """
        with broker_unavailable(self._address.shown):
            self._client.set(self._key(worker.name), encode(worker), ex=ALIVE_SECONDS)
            self._mended(lambda: self._client.sadd(self._names, worker.name))

    def withdraw(self, name: str) -> None:
        """Says that a worker has gone.

        Raises:
            CacheUnavailableError: the broker cannot be reached.
        """
        with broker_unavailable(self._address.shown):
            self._client.delete(self._key(name))
            self._mended(lambda: self._client.srem(self._names, name))

    def workers(self) -> list[WorkerRecord]:
        """Those that are there, by name; names of the dead are forgotten on the way.

        Raises:
            CacheUnavailableError: the broker cannot be reached.
        """
        with broker_unavailable(self._address.shown):
            members = self._mended(lambda: self._client.smembers(self._names))
            names = sorted(name.decode("utf-8", "replace") for name in members)
            names = names[:MAX_WORKERS]
            values = self._client.mget([self._key(name) for name in names]) if names else []
            gone = [name for name, value in zip(names, values, strict=True) if value is None]
            if gone:
                self._client.srem(self._names, *gone)
        found = []
        for value in values:
            with suppress(InvalidRecordError):
                if value is not None:
                    found.append(decode(value, WorkerRecord, limit=MAX_WORKER_BYTES))
        return found

    def close(self) -> None:
        """Lets go of the connections."""
        self._client.close()

    def _mended(self, do: Callable[[], Any]) -> Any:
        return mended(self._client, {self._names: "set"}, do)

    def _key(self, name: str) -> str:
        return f"{self._address.prefix}:worker:{name}"
