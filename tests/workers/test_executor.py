"""The local executor over `perform`: one result a key, crashes tried again, claims let go."""

from __future__ import annotations

import errno
import threading
import time

import psutil
import pytest
import torch
from fragments import fragment_of

from spyre_cache.cache import Cache
from spyre_cache.claims import Claim
from spyre_cache.claims_disk import DiskClaims
from spyre_cache.codec import decode
from spyre_cache.errors import CacheUnavailableError
from spyre_cache.fs import FileSystem
from spyre_cache.objects import fragment as f
from spyre_cache.objects.action import Action, ActionResult
from spyre_cache.objects.target import parse_target
from spyre_workers.bus import LocalBus
from spyre_workers.client import CompileServer
from spyre_workers.compile import Limits
from spyre_workers.heart import Heart
from spyre_workers.local import LocalExecutor
from spyre_workers.messages import Task
from spyre_workers.metrics import Metrics
from spyre_workers.storing import Storing
from spyre_workers.work import Workplace, perform


def slow(n):
    def function(x):
        return tuple(torch.softmax(torch.tanh(x.narrow(0, k, 40 + k) * n), -1) for k in range(40))

    return fragment_of(function, torch.randn(200, 64))


def small(n):
    return fragment_of(lambda x: (x * n,), torch.randn(4))


def refused():
    spec = f.TensorSpec(dtype="float32", shape=(4,), stride=(1,))
    node = f.Node(op="nowhere::op.default", args=(f.Ref(v=0),), results=(spec,))
    graph = f.Graph(inputs=(f.Input(kind="tensor", spec=spec),), nodes=(node,), outputs=(f.Output(v=1, spec=spec),))
    return f.Fragment(graph=graph)


@pytest.fixture
def cache(tmp_path):
    with Cache.open(tmp_path / "cache") as opened:
        yield opened


@pytest.fixture
def describe(cache, record):
    def make(fragment):
        digest = cache.blobs.put(fragment.encoded())
        action = Action(fragment=digest, target=parse_target("cpu/x86-64-v3"), toolchain=record)
        cache.actions.describe(action)
        return action

    return make


def task(action, build="b1", **more):
    return Task(action=action.key(), build=build, **more)


def until(bus, kinds, count, seconds=120):
    found, deadline = [], time.monotonic() + seconds
    while sum(e.kind in kinds for e in found) < count:
        assert time.monotonic() < deadline, found
        found += bus.read(0.5)
    return found


def test_tasks_dispatched_have_results_and_leave_no_claim(cache, describe):
    claims, bus = DiskClaims(cache.root), LocalBus()
    actions = [describe(small(2)), describe(small(3)), describe(refused())]
    with LocalExecutor(cache, claims, bus, jobs=2) as executor:
        executor.dispatch((task(a), a) for a in actions)
        events = until(bus, {"finished", "failed"}, 3)
        executor.check()
    assert sum(e.kind == "finished" for e in events) == 2
    assert [cache.actions.get(a.key()).build for a in actions[:2]] == ["b1", "b1"]
    (failed,) = [e for e in events if e.kind == "failed"]
    assert decode(cache.blobs.get(failed.result), ActionResult).failure.kind == "infrastructure"
    assert all(s.claim is None for s in claims.read([a.key() for a in actions]).values())
    assert cache.verify() == []


def test_task_that_comes_twice_is_compiled_once(cache, describe):
    claims, bus = DiskClaims(cache.root), LocalBus()
    action = describe(small(4))
    with LocalExecutor(cache, claims, bus, jobs=2) as executor:
        executor.dispatch([(task(action), action), (task(action, "b2"), action)])
        until(bus, {"finished"}, 1)
        executor.dispatch([(task(action, "b3"), action)])
        events = until(bus, {"finished"}, 1)
    assert not any(e.kind == "started" for e in events)


def test_child_killed_three_times_is_quarantined_with_who_and_why(cache, describe, server):
    claims, bus, again = DiskClaims(cache.root), LocalBus(), []
    place = Workplace(
        cache=cache, claims=claims, bus=bus, server=server, worker="w1", again=lambda *a: again.append(a), limits=lambda _: Limits(),
        heart=Heart(claims),
    )  # fmt: skip
    action = describe(slow(1))
    pid, stop = server.start(), threading.Event()

    def murder():
        while not stop.wait(0.05):
            for child in psutil.Process(pid).children():
                child.kill()

    killer = threading.Thread(target=murder)
    killer.start()
    try:
        outcomes = [perform(task(action), place) for _ in range(4)]
    finally:
        stop.set()
        killer.join()
    assert outcomes == ["crashed", "crashed", "quarantined", "quarantined"]
    assert len(again) == 2
    last = [e for e in bus.read(0) if e.kind == "failed"][-1]
    said = decode(cache.blobs.get(last.result), ActionResult).failure.message
    assert "w1" in said
    assert "SIGKILL" in said


def test_action_claimed_by_a_living_run_is_busy_and_by_a_dead_one_is_taken_over(cache, describe, server):
    claims, bus = DiskClaims(cache.root), LocalBus()
    place = Workplace(
        cache=cache, claims=claims, bus=bus, server=server, worker="w1", again=lambda *_: None, limits=lambda _: Limits(),
        heart=Heart(claims),
    )  # fmt: skip
    action = describe(small(5))
    other = Claim(action=action.key(), state="running", owner="run-x", build="b0", worker="w0", starts=1)
    claims.begin("run-x")
    assert claims.swap(action.key(), None, other)
    assert perform(task(action), place) == "busy"
    claims.end("run-x")
    assert perform(task(action), place) == "compiled"
    assert perform(task(action), place) == "hit"


def test_run_that_was_replaced_stops_and_says_so(cache, describe):
    claims, bus, outcome = DiskClaims(cache.root), LocalBus(), []
    action = describe(slow(2))
    with CompileServer() as own:
        place = Workplace(
            cache=cache, claims=claims, bus=bus, server=own, worker="w1", again=lambda *_: None, limits=lambda _: Limits(),
            heart=Heart(claims, 0.1),
        )  # fmt: skip
        thread = threading.Thread(target=lambda: outcome.append(perform(task(action), place)))
        thread.start()
        until(bus, {"started"}, 1)
        mine = claims.read([action.key()])[action.key()].claim
        claims.begin("run-y")
        claims.end(mine.owner)
        other = Claim(action=action.key(), state="running", owner="run-y", build="b0", worker="w0", starts=2)
        claims.swap(action.key(), claims.read([action.key()])[action.key()].claim, other)
        thread.join(60)
    assert outcome == ["lost"]
    assert claims.read([action.key()])[action.key()].claim == other


def test_run_whose_token_lapsed_goes_on_when_nobody_took_over(cache, describe, server):
    claims, bus, outcome = DiskClaims(cache.root), LocalBus(), []
    action = describe(slow(3))
    place = Workplace(
        cache=cache, claims=claims, bus=bus, server=server, worker="w1", again=lambda *_: None, limits=lambda _: Limits(),
        heart=Heart(claims, 0.1),
    )  # fmt: skip
    thread = threading.Thread(target=lambda: outcome.append(perform(task(action), place)))
    thread.start()
    until(bus, {"started"}, 1)
    first = claims.read([action.key()])[action.key()].claim
    claims.end(first.owner)
    deadline = time.monotonic() + 20
    while (now := claims.read([action.key()])[action.key()]).claim.owner == first.owner:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert now.claim.starts == 1
    thread.join(120)
    assert outcome == ["compiled"]
    assert claims.read([action.key()])[action.key()].claim is None


def test_result_made_while_the_shared_tier_is_away_waits_for_it(tmp_path, record, server):
    shared, outcome = tmp_path / "shared", []
    shared.mkdir()
    url = f"{tmp_path / 'one'},file://{shared}"
    with Cache.open(url) as cache:
        digest = cache.blobs.put(slow(8).encoded())
        action = Action(fragment=digest, target=parse_target("cpu/x86-64-v3"), toolchain=record)
        cache.actions.describe(action)
        claims, bus = DiskClaims(cache.root), LocalBus()
        place = Workplace(
            cache=cache, claims=claims, bus=bus, server=server, worker="w1", again=lambda *_: None,
            limits=lambda _: Limits(), heart=Heart(claims), storing=Storing(cache, Metrics(), patience=120),
        )  # fmt: skip
        thread = threading.Thread(target=lambda: outcome.append(perform(task(action), place)))
        thread.start()
        until(bus, {"started"}, 1)
        shared.rename(tmp_path / "away")
        shared.write_text("not a directory")
        deadline = time.monotonic() + 120
        while cache.tier_states()[-1].state == "up":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert claims.read([action.key()])[action.key()].claim.state == "running"
        shared.unlink()
        (tmp_path / "away").rename(shared)
        thread.join(120)
        assert outcome == ["compiled"]
        assert [e.kind for e in bus.read(0)] == ["unstored", "finished"]
    with Cache.open(f"{tmp_path / 'two'},file://{shared}") as other:
        assert other.actions.get(action.key()).status == "ok"


def test_disk_that_is_full_is_raised_to_whoever_asks(tmp_path, record):
    class Disk(FileSystem):
        full = False

        def write(self, fd, data):
            if self.full:
                raise OSError(errno.ENOSPC, "no room")
            super().write(fd, data)

    disk = Disk()
    with Cache.open(tmp_path / "cache", fs=disk) as cache:
        digest = cache.blobs.put(small(9).encoded())
        action = Action(fragment=digest, target=parse_target("cpu/x86-64-v3"), toolchain=record)
        cache.actions.describe(action)
        with LocalExecutor(cache, DiskClaims(cache.root), LocalBus(), jobs=1) as executor:
            disk.full = True
            executor.dispatch([(task(action), action)])
            executor._threads[0].join(60)
            with pytest.raises(CacheUnavailableError, match="room"):
                executor.check()
            disk.full = False


def test_executor_left_while_it_compiles_lets_go_of_its_claims(cache, describe):
    claims, bus = DiskClaims(cache.root), LocalBus()
    actions = [describe(slow(n)) for n in (4, 5, 6)]
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with LocalExecutor(cache, claims, bus, jobs=2) as executor:
        executor.dispatch((task(a), a) for a in actions)
        until(bus, {"started"}, 2)
        began = time.monotonic()
    assert time.monotonic() - began < 8
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before
    assert all(s.claim is None for s in claims.read([a.key() for a in actions]).values())
