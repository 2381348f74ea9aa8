"""Events among machines: one capped stream in the broker's Redis."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from spyre_cache.codec import decode, encode
from spyre_cache.errors import CacheUnavailableError, InvalidRecordError
from spyre_cache.stores.redis_client import broker_unavailable, connect, redis_address
from spyre_cache.stores.redis_kinds import mended
from spyre_workers.bus import MAX_EVENTS, Bus
from spyre_workers.messages import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyre_cache.stores.redis_client import RedisAddress

MAX_EVENT_BYTES = 64 << 10
_FIELD = b"e"
_BLOCK_SECONDS = 1.0
_ANSWER_SECONDS = 4.0  # must exceed the blocking read
_log = logging.getLogger(__name__)


class RedisBus(Bus):
    """A stream that everybody appends to and each reads from where it began to listen."""

    def __init__(self, address: RedisAddress | str) -> None:
        """Listens from now on, or from the first read that gets through.

        Raises:
            CacheUnavailableError: the URL is wrong.
        """
        self._address = redis_address(address) if isinstance(address, str) else address
        self._client: Any = connect(self._address, answer_seconds=_ANSWER_SECONDS)
        self._stream = f"{self._address.prefix}:events"
        self._last: bytes | None = None
        try:
            self._catch_up()
        except CacheUnavailableError as error:
            _log.warning("%s", error)

    def publish(self, event: Event) -> None:
        """As `Bus.publish`."""
        try:
            with broker_unavailable(self._address.shown):
                fields = {_FIELD: encode(event)}
                self._mended(lambda: self._client.xadd(self._stream, fields, maxlen=MAX_EVENTS, approximate=True))
        except CacheUnavailableError as error:
            _log.warning("an event of action %s is lost: %s", event.action[:12], error)

    def read(self, seconds: float, limit: int = 1000) -> list[Event]:
        """As `Bus.read`."""
        deadline = time.monotonic() + seconds
        while True:
            if self._last is None:
                self._catch_up()
            wait = min(_BLOCK_SECONDS, deadline - time.monotonic())
            found = self._next(wait, limit)
            if found or time.monotonic() >= deadline:
                return found

    def close(self) -> None:
        """Lets go of the connections."""
        self._client.close()

    def _next(self, wait: float, limit: int) -> list[Event]:
        block = max(1, int(wait * 1000)) if wait > 0 else None
        with broker_unavailable(self._address.shown):
            answer = self._mended(
                lambda: self._client.xread({self._stream: self._last or b"0-0"}, count=limit, block=block)
            )
        entries = next(iter(answer.values()), []) if isinstance(answer, dict) else answer[0][1] if answer else []
        if entries and isinstance(entries[0], list):  # the third version of the protocol wraps them once more
            entries = entries[0]
        if not entries:
            self._rewind()
            return []
        self._last = entries[-1][0]
        return [event for _, fields in entries if (event := _decoded(fields.get(_FIELD, b""))) is not None]

    def _catch_up(self) -> None:
        with broker_unavailable(self._address.shown):
            self._last = self._end()

    def _rewind(self) -> None:
        """A Redis that lost everything, and whose clock went back, numbers events from below the last one heard."""
        with broker_unavailable(self._address.shown):
            end = self._end()
        if self._last is not None and _number(end) < _number(self._last):
            self._last = b"0-0"

    def _end(self) -> bytes:
        newest = self._mended(lambda: self._client.xrevrange(self._stream, count=1))
        return bytes(newest[0][0]) if newest else b"0-0"

    def _mended(self, do: Callable[[], Any]) -> Any:
        return mended(self._client, {self._stream: "stream"}, do)


def _number(identity: bytes) -> tuple[int, int]:
    time_, _, sequence = identity.partition(b"-")
    return int(time_), int(sequence or 0)


def _decoded(data: bytes) -> Event | None:
    try:
        return decode(data, Event, limit=MAX_EVENT_BYTES)
    except InvalidRecordError as error:
        _log.warning("an event that this version does not know: %s", error)
        return None
