"""The local executor and its compile server: limits, starting ahead, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from fragments import fragment_of

from spyre_cache.cache import Cache
from spyre_cache.claims_disk import DiskClaims
from spyre_cache.codec import decode
from spyre_cache.objects import fragment as f
from spyre_cache.objects.action import Action, ActionResult
from spyre_cache.objects.target import parse_target
from spyre_workers.bus import LocalBus
from spyre_workers.client import Cancelled
from spyre_workers.compile import Limits, compile_action, replay
from spyre_workers.errors import WorkerError
from spyre_workers.local import LocalExecutor
from spyre_workers.messages import Task


def scaled(n):
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
def action_of(cache, record):
    def make(fragment):
        digest = cache.blobs.put(fragment.encoded())
        action = Action(fragment=digest, target=parse_target("cpu/x86-64-v3"), toolchain=record)
        cache.actions.describe(action)
        return action

    return make


def executor_of(cache, **more):
    return LocalExecutor(cache, DiskClaims(cache.root), LocalBus(), jobs=1, **more)


def outcome_of(cache, executor, action):
    """The result of one action, cached or not."""
    executor.dispatch([(Task(action=action.key(), build="b"), action)])
    deadline = time.monotonic() + 300
    while True:
        executor.check()
        for event in executor.bus.read(1):
            if event.kind == "finished":
                return cache.actions.get(action.key())
            if event.kind == "failed":
                return decode(cache.blobs.get(event.result), ActionResult)
        assert time.monotonic() < deadline


@pytest.mark.slow
def test_first_compilation_of_a_machine_finds_the_headers_built_while_the_server_started(
    cache, action_of, record, monkeypatch, tmp_path
):
    monkeypatch.setenv("SPYRE_BUILD_TOOLCHAIN_DIR", str(tmp_path / "toolchain"))
    action = action_of(scaled(7))
    with executor_of(cache) as pool:
        pool.start(record, [action.target])
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob("toolchain/*/isa-*/index.json")):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        result = outcome_of(cache, pool, action)
    assert result.status == "ok"
    assert b"building the shared state" not in cache.blobs.get(result.log)


def test_executor_left_while_its_server_starts_ends_at_once(cache, record):
    with executor_of(cache) as pool:
        pool.start(record, [])
        deadline = time.monotonic() + 30
        while not psutil.Process().children():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        started = time.monotonic()
    assert time.monotonic() - started < 5


def test_server_cancelled_tells_whoever_waits(cache, server, action_of):
    def function(x):
        return tuple(torch.softmax(torch.tanh(x.narrow(0, k, 40 + k)), -1) for k in range(30))

    action, outcome = action_of(fragment_of(function, torch.randn(200, 64))), []

    def wait():
        try:
            outcome.append(compile_action(action, cache.blobs, server=server))
        except Cancelled as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    pid = server.start()
    thread.start()
    deadline = time.monotonic() + 60
    while not psutil.Process(pid).children():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.cancel()
    thread.join(30)
    assert isinstance(outcome[0], Cancelled)
    assert compile_action(action_of(scaled(8)), cache.blobs, server=server).status == "ok"


def test_limits_of_the_executor_hold_for_each(cache, action_of):
    with executor_of(cache, limits=Limits(memory_bytes=64 << 20)) as pool:
        result = outcome_of(cache, pool, action_of(scaled(5)))
    assert result.failure.kind == "out-of-memory"


def test_operator_library_that_cannot_be_imported_fails_each_with_its_name(cache, action_of):
    with executor_of(cache, imports=("no_such_module_anywhere",)) as pool:
        result = outcome_of(cache, pool, action_of(scaled(6)))
    assert result.failure.kind == "infrastructure"
    assert "no_such_module_anywhere" in result.failure.message


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_process_leaves_no_process(tmp_path, signum):
    script = textwrap.dedent(
        """
        import sys, torch
        from pathlib import Path
        sys.path.insert(0, sys.argv[2])
        from fragments import fragment_of
        from spyre_cache.cache import Cache
        from spyre_cache.claims_disk import DiskClaims
        from spyre_cache.objects.action import Action
        from spyre_cache.objects.target import parse_target
        from spyre_workers.bus import LocalBus
        from spyre_workers.local import LocalExecutor
        from spyre_workers.messages import Task
        from spyre_workers.toolchain import toolchain
        cache = Cache.open(Path(sys.argv[1]))
        def action(n):
            def function(x):
                return tuple(torch.softmax(torch.tanh(x.narrow(0, k, 40 + k) * n), -1) for k in range(40))
            fragment = cache.blobs.put(fragment_of(function, torch.randn(200, 64)).encoded())
            made = Action(fragment=fragment, target=parse_target("cpu/x86-64-v3"), toolchain=toolchain())
            cache.actions.describe(made)
            return made
        actions = [action(n) for n in range(4)]
        with LocalExecutor(cache, DiskClaims(cache.root), LocalBus(), jobs=2) as pool:
            pool.start(toolchain(), [])
            print("go", flush=True)
            pool.dispatch((Task(action=a.key(), build="b"), a) for a in actions)
            while True:
                pool.bus.read(1)
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", script, str(tmp_path / "cache"), str(Path(__file__).parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
    assert process.stdout.readline() == "go\n"
    deadline = time.monotonic() + 90
    tree = []
    while not any("cc1plus" in p.name() for p in tree):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
        tree = [p for p in psutil.Process(process.pid).children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
    process.send_signal(signum)
    process.wait(30)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    deadline = time.monotonic() + 15
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in tree):
        assert time.monotonic() < deadline, tree
        time.sleep(0.1)
    if signum == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
    while list(tmp_path.glob("spyre-compile-*")):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_failure_replayed_gives_its_log_again(cache, server, record):
    fragment = cache.blobs.put(refused().encoded())
    action = Action(fragment=fragment, target=parse_target("cpu/x86-64-v3"), toolchain=record)
    with pytest.raises(WorkerError, match="document"):
        replay(cache, action.key(), server=server)
    cache.actions.describe(action)
    result, log = replay(cache, action.key(), server=server)
    assert result.failure.kind == "infrastructure"
    assert action.key() in log
    assert "nowhere::op" in log
