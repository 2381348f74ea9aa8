"""The bus in Redis: from now on, in order, over a restart."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from spyre_cache.errors import CacheUnavailableError
from spyre_workers.messages import Event
from spyre_workers.redis_bus import RedisBus
from spyre_workers.registry import Registry, WorkerRecord


def event(number, kind="started"):
    return Event(kind=kind, action=f"{number:064x}", build="b", worker="w", at=0.0)


@pytest.fixture
def buses(redis_url):
    url = f"{redis_url}?prefix=t{uuid.uuid4().hex}"
    made = [RedisBus(url), RedisBus(url)]
    yield made
    for bus in made:
        bus.close()


def test_listener_hears_in_order_what_was_said_since_it_began(buses, redis_url):
    one, two = buses
    one.publish(event(0))
    late = RedisBus(f"{redis_url}?prefix={one._address.prefix}")
    for number in range(1, 5):
        one.publish(event(number))
    assert two.read(1) == [event(n) for n in range(5)]
    assert late.read(1, limit=3) == [event(n) for n in (1, 2, 3)]
    assert late.read(1) == [event(4)]
    assert two.read(0) == []
    late.close()


def test_listener_waits_for_the_first(buses):
    one, two = buses
    threading.Timer(0.3, one.publish, [event(1)]).start()
    began = time.monotonic()
    assert two.read(5) == [event(1)]
    assert 0.2 < time.monotonic() - began < 2


def test_what_is_no_event_is_passed_over(buses):
    one, two = buses
    one._client.xadd(one._stream, {b"e": b'{"schema":"event/9"}'})
    one._client.xadd(one._stream, {b"x": b"y"})
    one.publish(event(1))
    assert two.read(1) == [event(1)]


def test_stream_that_is_no_stream_is_removed(buses):
    one, two = buses
    one._client.delete(one._stream)
    one._client.lpush(one._stream, "x")
    assert two.read(0.1) == []
    one._client.set(one._stream, "x")
    one.publish(event(1))
    assert two.read(1) == [event(1)]


def test_registry_whose_keys_are_of_a_wrong_kind_is_made_anew(redis_url):
    registry = Registry(redis_url)
    registry._client.set(registry._names, "x")
    assert registry.workers() == []
    registry._client.set(registry._names, "x")
    registry._client.lpush(registry._key("w"), "x")
    worker = WorkerRecord(name="w", host="h", pid=1, queues=("q",), toolchain="t", slots=1)
    registry.announce(worker)
    assert registry.workers() == [worker]
    registry._client.delete(registry._names)
    registry._client.set(registry._names, "x")
    registry.withdraw("w")
    assert registry.workers() == []
    registry.close()


def test_bus_goes_on_over_a_redis_that_lost_everything(new_redis):
    own_redis = new_redis()
    speaker, listener = RedisBus(own_redis.url), RedisBus(own_redis.url)
    speaker.publish(event(1))
    assert listener.read(1) == [event(1)]
    own_redis.stop()
    speaker.publish(event(2))  # lost, and nothing is raised
    with pytest.raises(CacheUnavailableError):
        listener.read(0.5)
    own_redis.start()
    speaker._client.xadd(speaker._stream, {b"e": b"?"}, id="5-1")  # a clock that went back
    assert listener.read(0.2) == []
    speaker._client.xtrim(speaker._stream, 0)
    speaker.publish(event(3))
    assert event(3) in listener.read(2)
    speaker.close()
    listener.close()
