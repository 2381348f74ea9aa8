"""The local pool: many at once, failures kept apart, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from fragments import fragment_of

from spyre_cache.objects import fragment as f
from spyre_workers.client import Cancelled
from spyre_workers.compile import Limits, compile_action, replay
from spyre_workers.errors import WorkerError
from spyre_workers.local import LocalPool


def scaled(n):
    return fragment_of(lambda x: (x * n,), torch.randn(4))


def refused():
    spec = f.TensorSpec(dtype="float32", shape=(4,), stride=(1,))
    node = f.Node(op="nowhere::op.default", args=(f.Ref(v=0),), results=(spec,))
    graph = f.Graph(inputs=(f.Input(kind="tensor", spec=spec),), nodes=(node,), outputs=(f.Output(v=1, spec=spec),))
    return f.Fragment(graph=graph)


@pytest.mark.slow
def test_many_actions_with_one_bad_all_have_results(blobs, action_of):
    actions = [action_of(scaled(n)) for n in range(3)] + [action_of(refused())]
    with LocalPool(blobs, jobs=2) as pool:
        results = {action.key(): result for action, result in pool.run(actions)}
        assert [results[a.key()].status for a in actions] == ["ok", "ok", "ok", "failed"]
        assert len({results[a.key()].outputs for a in actions[:3]}) == 3
        again = list(pool.run(actions[:1]))
        assert again[0][1].agrees(results[actions[0].key()])


@pytest.mark.slow
def test_first_compilation_of_a_machine_finds_the_headers_built_while_the_server_started(
    blobs, action_of, record, monkeypatch, tmp_path
):
    monkeypatch.setenv("SPYRE_BUILD_TOOLCHAIN_DIR", str(tmp_path / "toolchain"))
    action = action_of(scaled(7))
    with LocalPool(blobs, jobs=1) as pool:
        pool.start(record, [action.target])
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob("toolchain/*/isa-*/index.json")):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        ((_, result),) = pool.run([action])
    assert result.status == "ok"
    assert b"building the shared state" not in blobs.get(result.log)


def test_no_actions_gives_nothing_and_starts_nothing(blobs):
    with LocalPool(blobs) as pool:
        assert list(pool.run([])) == []


def test_caller_that_stops_early_ends_what_runs(blobs, action_of, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    actions = [action_of(scaled(n)) for n in range(4)]
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with LocalPool(blobs, jobs=2) as pool:
        for _ in pool.run(actions):
            break
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before
    assert not list(tmp_path.glob("spyre-compile-*"))


def test_pool_left_while_its_server_starts_ends_at_once(blobs):
    with LocalPool(blobs, jobs=1) as pool:
        pool.start()
        deadline = time.monotonic() + 30
        while not psutil.Process().children():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        started = time.monotonic()
    assert time.monotonic() - started < 5


def test_server_cancelled_tells_whoever_waits(blobs, server, action_of):
    def function(x):
        return tuple(torch.softmax(torch.tanh(x.narrow(0, k, 40 + k)), -1) for k in range(30))

    action, outcome = action_of(fragment_of(function, torch.randn(200, 64))), []

    def wait():
        try:
            outcome.append(compile_action(action, blobs, server=server))
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
    assert compile_action(action_of(scaled(8)), blobs, server=server).status == "ok"


def test_limits_of_the_pool_hold_for_each(blobs, action_of):
    with LocalPool(blobs, jobs=1, limits=Limits(memory_bytes=64 << 20)) as pool:
        ((_, result),) = pool.run([action_of(scaled(5))])
    assert result.failure.kind == "out-of-memory"


def test_operator_library_that_cannot_be_imported_fails_each_with_its_name(blobs, action_of):
    with LocalPool(blobs, jobs=1, imports=("no_such_module_anywhere",)) as pool:
        ((_, result),) = pool.run([action_of(scaled(6))])
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
        from spyre_cache.objects.action import Action
        from spyre_cache.objects.target import parse_target
        from spyre_cache.root import Root
        from spyre_cache.stores.disk import DiskStore
        from spyre_workers.local import LocalPool
        from spyre_workers.toolchain import toolchain
        blobs = DiskStore(Root(Path(sys.argv[1])))
        def action(n):
            def function(x):
                return tuple(torch.softmax(torch.tanh(x.narrow(0, k, 40 + k) * n), -1) for k in range(40))
            fragment = blobs.put(fragment_of(function, torch.randn(200, 64)).encoded())
            return Action(fragment=fragment, target=parse_target("cpu/x86-64-v3"), toolchain=toolchain())
        actions = [action(n) for n in range(4)]
        with LocalPool(blobs, jobs=2) as pool:
            pool.start()
            print("go", flush=True)
            for _ in pool.run(actions):
                pass
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


def test_failure_replayed_gives_its_log_again(tmp_path, server, record):
    from spyre_cache.cache import Cache
    from spyre_cache.objects.action import Action
    from spyre_cache.objects.target import parse_target

    cache = Cache.open(tmp_path / "cache")
    fragment = cache.blobs.put(refused().encoded())
    action = Action(fragment=fragment, target=parse_target("cpu/x86-64-v3"), toolchain=record)
    with pytest.raises(WorkerError, match="document"):
        replay(cache, action.key(), server=server)
    cache.actions.describe(action)
    result, log = replay(cache, action.key(), server=server)
    assert result.failure.kind == "infrastructure"
    assert action.key() in log
    assert "nowhere::op" in log
