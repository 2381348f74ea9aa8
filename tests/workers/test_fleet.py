"""Workers over a real broker: what becomes of tasks when workers, children and messages go wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from fleet import Fleet
from fragments import fragment_of

from spyre_cache.cache import Cache
from spyre_cache.objects.action import Action
from spyre_cache.objects.target import parse_target
from spyre_workers.messages import Task
from spyre_workers.queues import queue_of

pytestmark = pytest.mark.slow


def slow(n):
    def function(x):
        return tuple(torch.softmax(torch.tanh(x.narrow(0, k, 40 + k) * n), -1) for k in range(40))

    return fragment_of(function, torch.randn(200, 64))


def small(n):
    return fragment_of(lambda x: (x * n,), torch.randn(4))


@pytest.fixture
def fleet(tmp_path, new_redis):
    with Cache.open(tmp_path / "cache") as cache:
        made = Fleet(tmp_path, new_redis(), cache)
        yield made
        made.close()


@pytest.fixture
def describe(fleet, record):
    def make(fragment, target="cpu/x86-64-v3", **more):
        digest = fleet.cache.blobs.put(fragment.encoded())
        action = Action(fragment=digest, target=parse_target(target), toolchain=record, **more)
        fleet.cache.actions.describe(action)
        return action

    return make


def test_killed_worker_has_its_task_run_elsewhere_within_fifteen_seconds(fleet, describe):
    one, two = fleet.worker("one"), fleet.worker("two")
    fleet.ready(one, two)
    action = describe(slow(1))
    fleet.hand_out([action])
    fleet.until(lambda: "started" in fleet.kinds(action))
    (first,) = [e.worker for e in fleet.events if e.kind == "started"]
    victim, other = (one, two) if first == "one" else (two, one)
    killed = time.monotonic()
    victim.kill()
    while "started" not in fleet.kinds(action, other.name):
        fleet.hear(0.5)
        fleet.hand_out([action])
        assert time.monotonic() - killed < 15, fleet.told()
    fleet.drive([action])
    assert fleet.cache.actions.get(action.key()).builder == other.name
    assert fleet.kinds(action).count("started") == 2
    assert fleet.claims.read([action.key()])[action.key()].claim is None


def test_child_killed_is_run_again_by_the_worker_itself(fleet, describe):
    one = fleet.worker("one")
    fleet.ready(one)
    action = describe(slow(2))
    fleet.hand_out([action])
    fleet.until(one.children)
    one.children()[0].kill()
    fleet.until(lambda: "finished" in fleet.kinds(action), 120)
    assert fleet.kinds(action) == ["started", "crashed", "started", "finished"]
    assert fleet.cache.actions.get(action.key()).status == "ok"
    status, text = fleet.probe(one, "/metrics")
    assert status == 200
    assert 'spyre_worker_tasks_total{outcome="crashed"} 1.0' in text
    assert 'spyre_worker_tasks_total{outcome="compiled"} 1.0' in text
    assert fleet.probe(one, "/healthz") == (200, "ok\n")
    assert fleet.probe(one, "/readyz") == (200, "ok\n")
    assert fleet.probe(one, "/x")[0] == 404


def test_messages_that_are_none_are_acknowledged_and_told(fleet, describe):
    one = fleet.worker("one")
    action = describe(small(3))
    fleet.executor.dispatch([(Task(action=action.key(), build="b1"), action)])
    app = fleet.executor._app
    queue = queue_of(action)
    newer = f'{{"schema":"task/2","action":"{action.key()}","build":"b9"}}'
    app.send_task("spyre.compile", args=[newer], queue=queue)
    for words in (
        ["{"],
        [],
        [{"a": 1}],
        ["x" * 50_000],
        ["[" * 5000],
        ['{"schema":"task/1","action":"../x","build":"b"}'],
    ):
        app.send_task("spyre.compile", args=words, queue=queue)
    app.send_task("spyre.compile", kwargs={"x": 1}, queue=queue)
    app.send_task("no.such.task", args=[1], queue=queue)
    fleet.redis.command("LPUSH", f"spyre:celery:{queue}", "not even json")
    with app.producer_pool.acquire() as producer:
        producer.publish(b"\x80\x04.", content_type="application/x-python-serialize", routing_key=queue)
    fleet.ready(one)
    fleet.until(lambda: "finished" in fleet.kinds(action) and fleet.waiting() == (0, 0), 60)
    (told,) = [e for e in fleet.events if e.kind == "failed"]
    assert (told.action, told.build) == (action.key(), "b9")
    assert "task/2" in told.text or "schema" in told.text
    assert one.process.poll() is None
    assert 'outcome="invalid"} 8.0' in fleet.probe(one, "/metrics")[1]


def message(tag, headers, body="e30=", key="q", encoding="base64", kind="application/json"):
    """What the broker's library takes for a message, or nearly."""
    delivery = {"exchange": "", "routing_key": key}
    properties = {"delivery_tag": tag, "delivery_info": delivery, "body_encoding": encoding}
    return json.dumps({"headers": headers, "body": body, "content-type": kind, "properties": properties}).encode()


GARBAGE = [
    b"garbage", b"{}", b"\xff\xfe", b"[]", b"null", b"1", b'"x"', b"[" * 100_000, b"x" * 300_000, b"NaN",
    b'{"body": "", "properties": {}}',
    b'{"properties": {"delivery_tag": 1, "delivery_info": {}}}',
    message("t1", {}, key="\ud800"),
    message("t2", {"task": ["x"], "id": {}}),
    message("t3", {"task": "spyre.compile", "id": 7, "eta": "x"}),
    message("t4", {}, body="e", kind=5),
    message("t5", {}, encoding={}),
    message("t6", [], body=7),
]  # fmt: skip


def test_garbage_in_queues_is_set_aside_and_the_worker_goes_on(fleet, describe):
    one = fleet.worker("one")
    fleet.ready(one)
    action = describe(small(31))
    queue = f"spyre:celery:{queue_of(action)}"
    for _ in range(2):
        for item in GARBAGE:
            fleet.redis.command("LPUSH", queue, item)
    for tag, item in (("u1", "garbage"), ("u2", "{}"), ("u3", "[1,2,3]"), ("u4", '[{"a":1},"",[]]')):
        fleet.redis.command("HSET", "spyre:celery:unacked", tag, item)
        fleet.redis.command("ZADD", "spyre:celery:unacked_index", 1, tag)
    fleet.hand_out([action])
    fleet.until(lambda: "finished" in fleet.kinds(action) and fleet.waiting() == (0, 0), 60)
    assert one.process.poll() is None
    counted = re.search(r"spyre_worker_set_aside_total ([0-9.]+)", fleet.probe(one, "/metrics")[1])
    assert float(counted[1]) >= 2 * 12


def test_keys_of_the_broker_that_are_of_a_wrong_kind_are_removed(fleet, describe):
    one = fleet.worker("one")
    fleet.ready(one)
    action, other = describe(small(32)), describe(small(33))
    names = [f"spyre:celery:{n}" for n in ("unacked", "unacked_index", queue_of(action))]
    for name in (*names, f"spyre:celery:_kombu.binding.{queue_of(action)}"):
        fleet.redis.command("DEL", name)
        fleet.redis.command("SET", name, "x")
    assert fleet.executor.backlog([action]) == 0
    fleet.hand_out([action])
    fleet.until(lambda: "finished" in fleet.kinds(action))
    for name in names:
        fleet.redis.command("DEL", name)
        fleet.redis.command("SET", name, "x")
    fleet.hand_out([other])
    fleet.until(lambda: "finished" in fleet.kinds(other))
    assert one.process.poll() is None


def test_terminated_worker_finishes_what_runs_and_leaves_the_rest(fleet, describe):
    one = fleet.worker("one")
    fleet.ready(one)
    actions = [describe(slow(n)) for n in (4, 5, 6)]
    fleet.hand_out(actions)
    fleet.until(lambda: any("started" in fleet.kinds(a) for a in actions))
    one.send(signal.SIGTERM)
    assert one.process.wait(120) == 0, fleet.told()
    fleet.hear(0.5)
    done = [a for a in actions if fleet.cache.actions.get(a.key()) is not None]
    assert len(done) == 1
    assert fleet.waiting() == (2, 0)
    assert fleet.registered() == []
    two = fleet.worker("two", slots=2)
    fleet.until(lambda: all(fleet.cache.actions.get(a.key()) for a in actions), 180)
    assert fleet.cache.actions.get(done[0].key()).builder == "one"
    assert two.process.poll() is None


@pytest.mark.soak
def test_drain_that_takes_too_long_gives_the_task_back(fleet, describe):
    one = fleet.worker("one", drain_seconds=0.5)
    fleet.ready(one)
    action = describe(slow(7))
    fleet.hand_out([action])
    fleet.until(one.children)
    one.send(signal.SIGINT)
    began = time.monotonic()
    assert one.process.wait(60) == 0, fleet.told()
    assert time.monotonic() - began < 15
    assert fleet.waiting() == (1, 0)
    claim = fleet.claims.read([action.key()])[action.key()].claim
    assert claim is None or claim.state != "running"


@pytest.mark.soak
def test_two_toolchains_on_one_fleet_do_not_take_each_others_work(fleet, describe):
    other = fleet.worker("other", toolchain="f" * 64)
    action = describe(small(8))
    assert "no worker is there" in fleet.executor.lacking([action])
    fleet.ready(other)
    assert "no worker has the toolchain" in fleet.executor.lacking([action])
    fleet.hand_out([action])
    fleet.hear(3)
    assert fleet.events == []
    assert fleet.executor.backlog([action]) == 1
    one = fleet.worker("one")
    fleet.drive([action])
    assert fleet.executor.lacking([action]) is None
    assert fleet.cache.actions.get(action.key()).builder == "one"
    assert one.process.poll() is None


@pytest.mark.soak
def test_frozen_worker_is_replaced_and_its_result_changes_nothing(fleet, describe):
    one, two = fleet.worker("one"), fleet.worker("two")
    fleet.ready(one, two)
    action = describe(slow(9))
    fleet.hand_out([action])
    fleet.until(lambda: "started" in fleet.kinds(action))
    (first,) = [e.worker for e in fleet.events if e.kind == "started"]
    frozen, other = (one, two) if first == "one" else (two, one)
    frozen.send(signal.SIGSTOP)
    fleet.until(lambda: fleet.hand_out([action]) or "started" in fleet.kinds(action, other.name), 20)
    frozen.send(signal.SIGCONT)
    fleet.drive([action])
    fleet.until(lambda: len(fleet.kinds(action)) >= 4, 60)
    assert set(fleet.kinds(action, frozen.name)) <= {"started", "lost", "finished"}
    assert fleet.kinds(action).count("started") == 2
    assert fleet.cache.actions.events() == []
    assert fleet.cache.verify() == []


@pytest.mark.soak
def test_redis_that_loses_everything_mid_task_costs_no_second_compilation(fleet, describe):
    one = fleet.worker("one")
    fleet.ready(one)
    action, later = describe(slow(10)), describe(small(10))
    fleet.hand_out([action])
    fleet.until(one.children)
    fleet.redis.restart(keep=False)
    fleet.drive([action], seconds=120)
    assert fleet.kinds(action).count("started") == 1
    fleet.until(lambda: ": compiled in" in one.said())
    fleet.drive([later], build="b2", seconds=120)
    assert fleet.kinds(action).count("started") == 1
    assert one.process.poll() is None


@pytest.mark.soak
def test_deaf_consumer_is_replaced_by_its_watchdog(fleet, describe):
    one = fleet.worker("one", deaf=True)
    fleet.ready(one)
    action = describe(small(11))
    fleet.drive([action], seconds=180)
    assert "starting anew" in one.said()
    assert one.process.poll() is None
    assert "spyre_worker_watchdog_restarts 1.0" in fleet.probe(one, "/metrics")[1]


@pytest.mark.soak
def test_celerys_own_command_takes_tasks_too(fleet, describe):
    action = describe(small(12))
    log = (fleet.directory / "celery.log").open("wb")
    words = ["-m", "celery", "-A", "spyre_workers.app", "worker", "-c", "1", "-Q", queue_of(action)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "SPYRE_BUILD_BROKER": fleet.redis.url,
        "SPYRE_BUILD_CACHE": str(fleet.cache.path),
    }
    with log, subprocess.Popen([sys.executable, *words], env=environment, stdout=log, stderr=log) as process:
        try:
            fleet.hand_out([action])
            fleet.until(lambda: "finished" in fleet.kinds(action), 180)
        finally:
            process.terminate()
        assert process.wait(60) == 0
    assert fleet.cache.actions.get(action.key()).status == "ok"
