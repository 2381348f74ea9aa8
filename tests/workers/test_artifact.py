"""What an artifact's bytes are: the same everywhere, of one instruction set, and of no place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from artifacts import load
from fragments import fragment_of

from spyre_workers.backends.cxx import torch_root
from spyre_workers.backends.warm import toolchain_directory
from spyre_workers.client import CompileServer
from spyre_workers.compile import audit, compile_action


def example():
    torch.manual_seed(1)
    args = [torch.randn(16, 32), torch.randn(32, 64)]
    return fragment_of(lambda x, w: (torch.softmax(torch.tanh(x @ w), -1), x.sum(0)), *args), args


def code(blobs, result, directory, target):
    """Disassembly of the functions that are the fragment's own kernels, and of all others."""
    (output,) = result.outputs
    path = directory / f"{target.replace('/', '-')}.so"
    path.write_bytes(blobs.get(output.digest))
    return subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.slow
def test_action_compiled_by_two_servers_in_two_directories_gives_the_same_bytes(
    blobs, server, action_of, tmp_path, monkeypatch
):
    action = action_of(example()[0])
    first = compile_action(action, blobs, server=server)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere" / "deeper"))
    (tmp_path / "elsewhere" / "deeper").mkdir(parents=True)
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", None)
    with CompileServer() as other:
        second = compile_action(action, blobs, server=other)
        assert first.status == "ok", first.failure
        assert first.outputs == second.outputs
        assert audit(action, first, blobs, server=other) is None
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert not list((tmp_path / "elsewhere" / "deeper").glob("spyre-compile-*"))


def test_audit_of_other_bytes_names_the_file(blobs, server, action_of):
    import msgspec

    action = action_of(example()[0])
    result = compile_action(action, blobs, server=server)
    (output,) = result.outputs
    forged = msgspec.structs.replace(output, digest=blobs.put(b"other"))
    told = audit(action, msgspec.structs.replace(result, outputs=(forged,)), blobs, server=server)
    assert "fragment.so" in told


def test_artifact_names_no_place_of_this_machine(blobs, server, action_of):
    result = compile_action(action_of(example()[0]), blobs, server=server)
    data = blobs.get(result.outputs[0].digest)
    import tempfile

    for place in (
        str(torch_root()),
        sys.prefix,
        str(toolchain_directory()),
        tempfile.gettempdir(),
        str(Path.home()),
    ):
        assert place.encode() not in data
    paths = {
        p for p in re.findall(rb"/[a-z][\x21-\x7e]{6,}", data) if p.count(b"/") > 1 and not p.startswith(b"/lib64/")
    }
    assert not [p for p in paths if p.split(b"/")[1] in {b"usr", b"root", b"home", b"tmp", b"work", b"opt", b"var"}], (
        paths
    )


@pytest.mark.parametrize(
    ("target", "present", "absent"),
    [
        ("cpu/x86-64-v2", r"%xmm", r"%ymm|%zmm|\bv[a-z0-9]+ps\b"),
        ("cpu/x86-64-v3", r"%ymm", r"%zmm|%k[0-7]\b"),
        ("cpu/x86-64-v4", r"%zmm", r"\btdp[a-z]+\b|vdpbf16ps|vpdpbusd"),
    ],
)
def test_artifact_holds_only_instructions_of_its_level(blobs, server, action_of, tmp_path, target, present, absent):
    result = compile_action(action_of(example()[0], target), blobs, server=server)
    text = code(blobs, result, tmp_path, target)
    assert re.search(present, text)
    assert not re.search(absent, text)


def test_artifact_requires_the_features_of_its_target(blobs, server, action_of):
    action = action_of(example()[0], "cpu/x86-64-v3")
    result = compile_action(action, blobs, server=server)
    assert result.requires.arch == "x86_64"
    assert result.requires.features == action.target.features
    assert result.requires.torch_abi == torch.__version__.split("+")[0]
    assert result.requires.custom_ops == ()


def test_artifact_loads_many_times_and_runs_from_many_threads(blobs, server, action_of, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    fragment, args = example()
    result = compile_action(action_of(fragment), blobs, server=server)
    runner = load(blobs, result, tmp_path / "artifact")
    wanted = runner.run(args)
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: runner.run(args), range(40)):
            assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_artifact_follows_the_number_of_threads_set_at_run_time(blobs, server, action_of, tmp_path, threads):
    x = torch.randn(512, 512)
    result = compile_action(action_of(fragment_of(lambda x: (x.sum(), x.sin().sum(0)), x)), blobs, server=server)
    runner = load(blobs, result, tmp_path / "artifact")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for got, wanted in zip(runner.run([x]), (x.sum(), x.sin().sum(0)), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-3)
    finally:
        torch.set_num_threads(before)
