"""The broker library's Redis transport, made to outlive what others put into its keys.

A message that cannot be read, and an unacknowledged one that cannot be given back, are set aside: dropped, with a line
in the log and a count. The library would raise, which ends the consumer of tasks.
"""

from __future__ import annotations

import logging
import time
from queue import Empty
from typing import TYPE_CHECKING, Any, Final

from kombu.transport import redis as base
from kombu.utils.json import loads

from spyre_cache.stores.redis_kinds import is_wrong_kind, remove_foreign
from spyre_workers.queues import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spyre_cache.stores.redis_kinds import RedisKind

MAX_ITEM_BYTES: Final = 256 << 10
_LINES_A_MINUTE: Final = 20
_log = logging.getLogger(__name__)
_listeners: list[Callable[[], None]] = []


def on_set_aside(listener: Callable[[], None]) -> Callable[[], None]:
    """Has a function called for each message that is set aside; gives one that ends this."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


class _Lines:
    """Bounds how much a flood of garbage says in the log."""

    def __init__(self) -> None:
        self._began = 0.0
        self._said = 0

    def say(self, text: str, *words: object) -> None:
        now = time.monotonic()
        if now - self._began > 60:
            self._began, self._said = now, 0
        self._said += 1
        if self._said <= _LINES_A_MINUTE:
            _log.error(text, *words)
        if self._said == _LINES_A_MINUTE:
            _log.error("more of these within this minute are counted only")


_lines = _Lines()


def _set_aside(what: str, item: object, why: object) -> None:
    _lines.say("%s was set aside: %s; it was %s", what, str(why)[:200] or type(why).__name__, repr(item)[:200])
    for listener in tuple(_listeners):
        listener()


def decoded(item: bytes | str) -> dict[str, Any]:
    """A message in the shape that the library takes for granted.

    Raises:
        ValueError: it has another.
    """
    if len(item) > MAX_ITEM_BYTES:
        raise ValueError(f"a message has at most {MAX_ITEM_BYTES} bytes, but this one has {len(item)}")
    try:
        text = item.decode() if isinstance(item, bytes) else item
        message = loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    properties = _member({"the message": message}, "the message", dict)
    properties = _member(message, "properties", dict)
    delivery = _member(properties, "delivery_info", dict)
    for where, name in ((properties, "delivery_tag"), (delivery, "exchange"), (delivery, "routing_key")):
        _member(where, name, str).encode()  # a lone surrogate is no text that could be sent
    if not isinstance(message.get("headers", {}), dict) or not isinstance(message.get("body", ""), str):
        raise ValueError("headers are an object and a body is text")  # noqa: TRY004  one class for all that is wrong
    found: dict[str, Any] = message
    return found


def kinds_of_keys(prefix: str, queues: Iterable[str]) -> dict[str, RedisKind]:
    """What the library keeps in Redis, by key, for `remove_foreign`."""
    kinds: dict[str, RedisKind] = {f"{prefix}unacked": "hash", f"{prefix}unacked_index": "zset"}
    kinds[f"{prefix}unacked_mutex"] = "string"
    for queue in queues:
        kinds[f"{prefix}_kombu.binding.{queue}"] = "set"
        kinds |= dict.fromkeys((f"{prefix}{name}" for name in lists_of(queue)), "list")
    return kinds


def lists_of(queue: str) -> list[str]:
    """The lists that a queue is made of, one for each priority."""
    return [f"{queue}{base.Channel.sep}{p}" if p else queue for p in sorted(PRIORITIES.values())]


def _member(where: dict[str, Any], name: str, kind: type) -> Any:
    value = where.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"{name} is no {kind.__name__}")  # noqa: TRY004  one class for all that is wrong
    return value


class QoS(base.QoS):  # type: ignore[misc,unused-ignore]
    """Unacknowledged messages, of which one may be anything."""

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        """Gives a message back to its queue."""
        try:
            super().restore_by_tag(tag, client, leftmost)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            self._remove_from_indices(tag).execute()
            _set_aside("an unacknowledged message", tag, error)

    def restore_visible(self, *words: Any, **more: Any) -> None:
        """Looks for messages whose worker has fallen silent."""
        try:
            super().restore_visible(*words, **more)
        except self.channel.ResponseError as error:
            if not is_wrong_kind(error) or not self.channel.mend():
                raise


class Channel(base.Channel):  # type: ignore[misc,unused-ignore]
    """Reads messages that may be anything."""

    QoS = QoS

    def _brpop_read(self, **options: Any) -> bool:
        """As the library's, but that only whole messages go further."""
        try:
            answer = self._answer(options)
            if not answer:
                raise Empty
            name, item = answer
            queue = _text(name).rsplit(self.sep, 1)[0]
            self._queue_cycle.rotate(queue)
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        self._deliver(item, queue)
        return True

    def _answer(self, options: dict[str, Any]) -> Any:
        try:
            return self.client.parse_response(self.client.connection, "BRPOP", **options)
        except self.connection_errors:
            # The next round connects anew.
            self.client.connection.disconnect()
            raise
        except self.ResponseError as error:
            if not is_wrong_kind(error) or not self.mend():
                raise
            raise Empty from None

    def _get(self, queue: str) -> dict[str, Any]:
        """As the library's, but that what is no message is passed over."""
        with self.conn_or_acquire() as client:
            for priority in self.priority_steps:
                while item := client.rpop(self._q_for_pri(queue, priority)):
                    try:
                        return decoded(item)
                    except ValueError as error:
                        _set_aside(f"a message of queue {queue}", item, error)
        raise Empty

    def _deliver(self, item: bytes, queue: str) -> None:
        try:
            message = decoded(item)
        except ValueError as error:
            _set_aside(f"a message of queue {queue}", item, error)
            return
        try:
            self._hand_on(message, queue)
        except Exception as error:
            # The library counts a `KeyError` among those of its connection.
            if isinstance(error, (*self.connection_errors, *self.channel_errors)) and not isinstance(error, KeyError):
                raise
            self.qos.reject(message["properties"]["delivery_tag"], requeue=False)
            _set_aside(f"a message of queue {queue}", item, f"{type(error).__name__}: {error}")

    def _hand_on(self, message: dict[str, Any], queue: str) -> None:
        deliver = self.connection._deliver  # noqa: SLF001  of the library's that this belongs to
        try:
            deliver(message, queue)
        except self.ResponseError as error:
            if not is_wrong_kind(error) or not self.mend():
                raise
            deliver(message, queue)

    def mend(self) -> int:
        """Removes keys of the broker's that hold another kind of value than theirs; tells how many."""
        with self.conn_or_acquire() as client:
            return remove_foreign(client, kinds_of_keys(self.global_keyprefix, self.active_queues))


class Transport(base.Transport):  # type: ignore[misc,unused-ignore]
    """The library's, with channels that outlive garbage."""

    Channel = Channel


def _text(name: bytes | str) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
