"""A worker whose results cannot be stored: it keeps them, says so, and takes nothing until they can be."""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest
import torch
from fleet import Fleet
from fragments import fragment_of
from fronts import FaultyHttp

from spyre_cache.cache import Cache
from spyre_cache.claims_disk import DiskClaims
from spyre_cache.codec import encode
from spyre_cache.objects.action import Action
from spyre_cache.objects.target import parse_target
from spyre_workers import storing as module
from spyre_workers.bus import LocalBus
from spyre_workers.messages import Task
from spyre_workers.station import Station

pytestmark = pytest.mark.slow
DENIED = 403, "<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>no</Message></Error>"


def describe(cache, record, n):
    fragment = fragment_of(lambda x: (x * n,), torch.randn(4))
    action = Action(
        fragment=cache.blobs.put(fragment.encoded()), target=parse_target("cpu/x86-64-v3"), toolchain=record
    )
    cache.actions.describe(action)
    return action


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def full(monkeypatch):
    """While set, the disk is full."""
    state = threading.Event()
    real = os.write

    def write(fd, data):
        if state.is_set() and len(data) > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    return state


@pytest.fixture
def station(tmp_path, full):
    with Cache.open(tmp_path / "cache") as cache:
        made = Station(cache, DiskClaims(cache.root), LocalBus(), again=lambda *_: None, slots=1, name="w1")
        made.cache, made.bus = cache, made._bus
        made.server.start()
        yield made
        made.close()


def test_full_disk_costs_no_second_compilation(station, record, full, monkeypatch):
    monkeypatch.setattr(module, "_LONGEST_SECONDS", 1.0)
    action, answers = describe(station.cache, record, 41), []
    message = encode(Task(action=action.key(), build="b1")).decode()
    full.set()
    thread = threading.Thread(target=lambda: answers.append(station.handle(message)))
    thread.start()
    wait_for(lambda: station.storing.why_not)
    assert "No space left" in station.storing.why_not
    began = time.monotonic()
    monkeypatch.setattr("spyre_workers.station._RETRY_SECONDS", (0.1, 0.2))
    assert station.handle(message) is False  # takes nothing meanwhile
    assert time.monotonic() - began < 5
    full.clear()
    thread.join(60)
    assert answers == [True]
    assert station.storing.why_not == ""
    assert [e.kind for e in station.bus.read(0)] == ["started", "unstored", "finished"]
    assert station.cache.actions.get(action.key()).status == "ok"
    text = station.metrics.text().decode()
    assert "spyre_worker_cannot_store 0.0" in text
    assert "spyre_worker_store_failures_total 0.0" not in text


def test_result_that_cannot_be_stored_for_long_goes_to_others(station, record, full, monkeypatch, caplog):
    monkeypatch.setattr(module, "ALONE_SECONDS", 1.0)
    monkeypatch.setattr(module, "_LONGEST_SECONDS", 1.0)
    monkeypatch.setattr("spyre_workers.station._RETRY_SECONDS", (0.1, 0.2))
    action = describe(station.cache, record, 42)
    message = encode(Task(action=action.key(), build="b1")).decode()
    full.set()
    assert station.handle(message) is False
    assert station.handle(message) is False
    assert [e.kind for e in station.bus.read(0)] == ["started", "unstored"]
    claim = station._place.claims.read([action.key()])[action.key()].claim
    assert claim is None or claim.state != "running"
    assert sum("cannot store results" in line for line in caplog.messages) == 1
    full.clear()
    wait_for(lambda: not station.storing.why_not)
    assert station.handle(message) is True
    assert station.cache.actions.get(action.key()).status == "ok"


def test_bucket_that_turns_read_only_makes_the_worker_rest(tmp_path, new_redis, s3_server, s3_url, record, monkeypatch):
    denied = threading.Event()

    def fault(method, _path):
        return DENIED if denied.is_set() and method in {"PUT", "POST", "DELETE"} else None

    with FaultyHttp(s3_server.port, fault) as front, Cache.open(f"{tmp_path}/c,{s3_url}") as cache:
        first, second = describe(cache, record, 43), describe(cache, record, 44)
        fleet = Fleet(tmp_path, new_redis(), cache)
        monkeypatch.setenv("AWS_ENDPOINT_URL", front.endpoint)
        try:
            one = fleet.worker("one", cache=f"{tmp_path}/w,{s3_url}")
            fleet.ready(one)
            denied.set()
            fleet.hand_out([first])
            fleet.until(lambda: "unstored" in fleet.kinds(first))
            (text,) = {e.text for e in fleet.events if e.kind == "unstored"}
            assert text.startswith("worker one cannot store results")
            assert "does not permit writing" in text
            status, said = fleet.probe(one, "/readyz")
            assert status == 503
            assert "does not permit writing" in said
            assert fleet.probe(one, "/healthz")[0] == 200
            assert "spyre_worker_cannot_store 1.0" in fleet.probe(one, "/metrics")[1]
            fleet.until(lambda: fleet.registered()[0].queues == ())
            fleet.hand_out([second])
            fleet.hear(3)
            assert fleet.kinds(second) == []
            assert fleet.waiting() == (1, 1)
            denied.clear()
            fleet.drive([first, second])
            fleet.until(lambda: "finished" in fleet.kinds(second))
            assert fleet.kinds(first).count("started") == fleet.kinds(second).count("started") == 1
            fleet.until(lambda: fleet.probe(one, "/readyz")[0] == 200)
            assert "Traceback" not in one.said()
        finally:
            fleet.close()
