"""Failures are typed by what went wrong, and none of them leaves a process or a file behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from fragments import fragment_of

from spyre_cache.objects import fragment as f
from spyre_cache.objects.action import Action
from spyre_cache.objects.target import Target, parse_target
from spyre_workers.backends.cxx import failure_of, host_arch
from spyre_workers.backends.warm import toolchain_directory
from spyre_workers.client import CompileServer
from spyre_workers.compile import Limits, compile_action

SPEC = f.TensorSpec(dtype="float32", shape=(4, 4), stride=(4, 1))


@pytest.fixture(autouse=True)
def own_temporary_directory(monkeypatch, tmp_path):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    # This process's own torch makes its folder when it is first used, in whichever test that is.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


def simple():
    return fragment_of(lambda x: (torch.tanh(x) + 1,), torch.randn(4, 4))


def heavy():
    """Enough distinct kernels to keep the C++ compiler busy for many seconds."""

    def function(x):
        outs = []
        for n in range(60):
            y = x.narrow(0, n, 40 + n)
            outs.append(torch.softmax(torch.tanh(y * (n + 1)) @ torch.sin(y.t() + n), -1))
        return tuple(outs)

    return fragment_of(function, torch.randn(200, 64))


def graph_of(*nodes, out):
    return f.Fragment(
        graph=f.Graph(inputs=(f.Input(kind="tensor", spec=SPEC),), nodes=nodes, outputs=(f.Output(v=out, spec=SPEC),))
    )


def test_operator_inductor_refuses_is_unsupported_and_names_the_node(blobs, server, action_of):
    good = f.Node(op="aten::sin.default", args=(f.Ref(v=0),), results=(SPEC,))
    # A sparse result has no strided layout to lower to.
    bad = f.Node(op="aten::to_sparse.default", args=(f.Ref(v=1),), results=(SPEC,))
    back = f.Node(op="aten::to_dense.default", args=(f.Ref(v=2),), results=(SPEC,))
    result = compile_action(action_of(graph_of(good, bad, back, out=3)), blobs, server=server)
    assert result.status == "failed"
    assert result.outputs == ()
    assert result.failure.kind == "unsupported"
    assert 1 in result.failure.nodes or 2 in result.failure.nodes
    assert any("sparse" in op or "dense" in op for op in result.failure.ops)
    assert b"unsupported" in blobs.get(result.log)


def test_unknown_operator_is_a_failure_that_names_it(blobs, server, action_of):
    node = f.Node(op="nowhere::soft_clip.default", args=(f.Ref(v=0),), results=(SPEC,))
    result = compile_action(action_of(graph_of(node, out=1)), blobs, server=server)
    assert result.failure.kind == "infrastructure"
    assert "nowhere::soft_clip" in result.failure.message


def test_bytes_that_are_no_fragment_are_unsupported(blobs, server, record):
    action = Action(fragment=blobs.put(b"{}"), target=parse_target("cpu/x86-64-v3"), toolchain=record)
    result = compile_action(action, blobs, server=server)
    assert result.failure.kind == "unsupported"
    assert "Fragment" in result.failure.message or "fragment" in result.failure.message


def test_fragment_absent_from_the_cache_is_infrastructure(blobs, server, record):
    from spyre_cache.digest import Digest

    action = Action(fragment=Digest.of(b"gone"), target=parse_target("cpu/x86-64-v3"), toolchain=record)
    assert compile_action(action, blobs, server=server).failure.kind == "infrastructure"


def test_time_limit_passed_is_a_timeout_and_ends_the_compilers(blobs, server, action_of):
    started = time.monotonic()
    result = compile_action(action_of(heavy()), blobs, server=server, limits=Limits(seconds=2.0))
    assert result.failure.kind == "timeout"
    assert time.monotonic() - started < 30
    assert_nothing_runs(server)


def test_memory_limit_passed_is_out_of_memory(blobs, server, action_of):
    result = compile_action(action_of(simple()), blobs, server=server, limits=Limits(memory_bytes=64 << 20))
    assert result.failure.kind == "out-of-memory"
    assert "64 MiB" in result.failure.message
    assert_nothing_runs(server)


def test_child_killed_from_outside_is_a_crash_and_the_next_compiles(blobs, server, action_of):
    pid = server.start()
    results = []
    action = action_of(heavy())
    thread = threading.Thread(target=lambda: results.append(compile_action(action, blobs, server=server)))
    thread.start()
    for _ in range(200):
        children = psutil.Process(pid).children()
        if children:
            break
        time.sleep(0.05)
    children[0].send_signal(signal.SIGKILL)
    thread.join(60)
    assert results[0].failure.kind == "crash"
    assert "SIGKILL" in results[0].failure.message
    assert compile_action(action_of(simple()), blobs, server=server).status == "ok"


@pytest.mark.slow
def test_server_killed_is_a_crash_ends_its_children_and_the_next_starts_another(blobs, action_of):
    with CompileServer() as mine:
        pid = mine.start()
        results = []
        action = action_of(heavy())
        thread = threading.Thread(target=lambda: results.append(compile_action(action, blobs, server=mine)))
        thread.start()
        deadline = time.monotonic() + 60
        while not (tree := psutil.Process(pid).children(recursive=True)) or not any(
            "cc1plus" in p.name() for p in tree
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        thread.join(60)
        assert results[0].failure.kind == "crash"
        deadline = time.monotonic() + 10
        while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in tree):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert compile_action(action_of(simple()), blobs, server=mine).status == "ok"
        assert mine.start() != pid
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_no_compiler_on_the_path_is_infrastructure_with_the_remedy(blobs, action_of, monkeypatch):
    action = action_of(simple())
    monkeypatch.setenv("PATH", "/nonexistent")
    with CompileServer() as mine:
        result = compile_action(action, blobs, server=mine)
    assert result.failure.kind == "infrastructure"
    assert "g++" in result.failure.message


def test_toolchain_directory_that_cannot_be_made_is_infrastructure(blobs, action_of, monkeypatch, tmp_path):
    action = action_of(simple())
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("SPYRE_BUILD_TOOLCHAIN_DIR", str(tmp_path / "file" / "below"))
    with CompileServer() as mine:
        result = compile_action(action, blobs, server=mine)
    assert result.failure.kind == "infrastructure"
    assert "SPYRE_BUILD_TOOLCHAIN_DIR" in result.failure.message


@pytest.mark.skipif(host_arch() != "x86_64", reason="asks for the other architecture")
def test_other_architecture_without_cross_compiler_is_refused_with_the_package(blobs, server, action_of):
    result = compile_action(action_of(simple(), "cpu/aarch64"), blobs, server=server)
    if shutil.which("aarch64-linux-gnu-g++"):
        assert result.status == "ok"
    else:
        assert result.failure.kind == "infrastructure"
        assert "g++-aarch64-linux-gnu" in result.failure.message


def test_target_of_another_kind_is_unsupported(blobs, server, record):
    target = Target(kind="spyre", name="spyre/aiu-32c", arch="aiu", isa="32c")
    action = Action(fragment=blobs.put(simple().encoded()), target=target, toolchain=record)
    result = compile_action(action, blobs, server=server)
    assert result.failure.kind == "unsupported"
    assert "spyre/aiu-32c" in result.failure.message


def test_unknown_option_is_refused_by_name(blobs, server, action_of):
    result = compile_action(action_of(simple(), options=(("speed", "warp"),)), blobs, server=server)
    assert result.failure.kind == "unsupported"
    assert "speed" in result.failure.message


@pytest.mark.slow
def test_damaged_shared_header_is_rebuilt(blobs, action_of, monkeypatch, tmp_path):
    action = action_of(simple())
    with CompileServer() as mine:
        assert compile_action(action, blobs, server=mine).status == "ok"
    shutil.copytree(toolchain_directory(), tmp_path / "toolchain", ignore=shutil.ignore_patterns("isa-x86-64-v[24]"))
    monkeypatch.setenv("SPYRE_BUILD_TOOLCHAIN_DIR", str(tmp_path / "toolchain"))
    with CompileServer() as mine:
        first = compile_action(action, blobs, server=mine)
        assert first.status == "ok"
        assert b"building the shared state" not in blobs.get(first.log)
        header = max(
            (tmp_path / "toolchain").glob("*/isa-x86-64-v3/kernel.h.gch"), key=lambda p: p.parent.parent.stat().st_mtime
        )
        header.chmod(0o600)
        data = bytearray(header.read_bytes())
        data[len(data) // 2] ^= 0xFF
        header.write_bytes(data)
        again = compile_action(action, blobs, server=mine)
    assert again.outputs == first.outputs
    assert b"building the shared state" in blobs.get(again.log)
    assert not list((tmp_path / "toolchain").glob("*/*.new-*"))


def test_compilation_sees_no_secret_of_the_caller(blobs, action_of, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    with CompileServer() as mine:
        environment = Path(f"/proc/{mine.start()}/environ").read_bytes()
        assert compile_action(action_of(simple()), blobs, server=mine).status == "ok"
    assert b"hunter2" not in environment


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (1, "cc1plus: out of memory allocating 64 bytes", "out-of-memory"),
        (1, "fatal error: error writing to wrapper.o: No space left on device", "infrastructure"),
        (1, "kernels.cpp:3:1: error: 's9' was not declared in this scope", "unsupported"),
        (
            1,
            "kernels.cpp:(.text+0x5): undefined reference to `s9'\ncollect2: error: ld returned 1 exit status",
            "unsupported",
        ),
        (1, "internal compiler error: Segmentation fault", "infrastructure"),
        (1, "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.", "crash"),
        (1, "collect2: fatal error: ld terminated with signal 9 [Killed]\ncompilation terminated.", "crash"),
        (1, "collect2: error: ld returned 1 exit status", "infrastructure"),
        (3, "", "infrastructure"),
        (-11, "", "crash"),
    ],
)
def test_compiler_exit_is_read_by_its_words(code, text, kind):
    assert failure_of(code, text).kind == kind


def assert_nothing_runs(server):
    deadline = time.monotonic() + 10
    while psutil.Process(server.start()).children(recursive=True):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not list(Path(tempfile.gettempdir()).glob("*"))
