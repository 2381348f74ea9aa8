"""The CPU driver on libraries that the workers compile here."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from clipping import soft_clip
from handmade import (
    clipped,
    f32,
    fragment,
    linear,
    linear_program,
    node,
    program,
    put_manifest,
    ref,
    slot,
    state_input,
    tensor_argument,
    tensor_input,
    weight_entry,
)

from spyre_cache import Cache
from spyre_cache.objects import fragment as f
from spyre_cache.objects import program as p
from spyre_cache.objects.action import Action
from spyre_cache.objects.fragment import Symbol
from spyre_cache.objects.manifest import Artifact
from spyre_cache.objects.target import TARGETS
from spyre_runtime import load
from spyre_runtime.host import cpu_features, machine
from spyre_workers.client import CompileServer
from spyre_workers.compile import compile_action
from spyre_workers.toolchain import toolchain

TARGET = "cpu/x86-64-v3" if set(TARGETS["cpu/x86-64-v3"].features) <= cpu_features() else "cpu/x86-64-v2"

pytestmark = [
    pytest.mark.skipif(machine() != "x86_64", reason="compiles for x86-64"),
    pytest.mark.xdist_group("compiles"),
]


def sized():
    """x of s0 rows, and the number of rows as a size of its own."""
    return fragment(
        [tensor_input(f32("s0", 6)), f.Input(kind="symint", spec=f.SymSpec(kind="int", expr="s0"))],
        [
            node("aten::mul.Scalar", ref(0), 2.0, results=f32("s0", 6)),
            node("aten::view.default", ref(2), [{"sym": "s0 // 2"}, 12], results=f32("s0 // 2", 12)),
        ],
        [3],
        symbols=[("s0", 2, 64)],
        constraints=["s0 % 2 == 0"],
    )


def accumulate():
    return fragment(
        [state_input(f32(3)), tensor_input(f32(3))],
        [
            node("aten::add.Tensor", ref(0), ref(1), results=f32(3)),
            node("aten::mul.Scalar", ref(2), 2.0, results=f32(3)),
        ],
        [3],
        mutations=[(0, 2)],
    )


FRAGMENTS = (linear(), sized(), accumulate(), clipped())
WEIGHT, BIAS = torch.randn(4, 3), torch.randn(3)


def programs():
    rows = program(
        name="rows",
        arguments=(tensor_argument("args.0", 0, "x"),),
        slots=(
            slot("input", f32("s0", 6)),
            slot("symint", f.SymSpec(kind="int", expr="s0")),
            slot("temp", f32("s0 // 2", 12)),
        ),
        symbols=(p.SymbolSource(symbol=Symbol(name="s0", min=2, max=64), slot=0, dim=0),),
        guards=(p.Guard(expr="s0 % 2 == 0", text="dim 0 of x is even"),),
        steps=(p.Step(fragment=1, inputs=(0, 1), outputs=(2,)),),
        output=p.TupleTree(items=(p.Leaf(v=2), p.SymLeaf(expr="s0 * 6"))),
    )
    total = program(
        name="total",
        arguments=(tensor_argument("args.0", 0, "x"),),
        slots=(slot("input", f32(3)), slot("state", f32(3), "total"), slot("temp", f32(3))),
        steps=(p.Step(fragment=2, inputs=(1, 0), outputs=(2,)),),
        output=p.Leaf(v=2),
    )
    clip = program(
        name="clip",
        arguments=(tensor_argument("args.0", 0, "x"),),
        slots=(slot("input", f32(3)), slot("temp", f32(3))),
        steps=(p.Step(fragment=3, inputs=(0,), outputs=(1,)),),
        output=p.Leaf(v=1),
    )
    return [linear_program(name="linear"), rows, total, clip]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A cache and a manifest whose fragments are all compiled."""
    cache = Cache.open(tmp_path_factory.mktemp("cpu") / "cache")
    artifacts = []
    with CompileServer(imports=(str(Path(__file__).parent / "clipping.py"),)) as server:
        for index, described in enumerate(FRAGMENTS):
            action = Action(
                fragment=cache.blobs.put(described.encoded()), target=TARGETS[TARGET], toolchain=toolchain()
            )
            result = compile_action(action, cache.blobs, server=server)
            assert result.status == "ok", result.failure
            artifacts.append(
                Artifact(
                    fragment=index, target=TARGET, action=action.key(), outputs=result.outputs, requires=result.requires
                )
            )
    weights = [
        weight_entry(cache, "lin.weight", WEIGHT),
        weight_entry(cache, "lin.bias", BIAS, kind="buffer"),
        weight_entry(cache, "total", torch.zeros(3), kind="buffer"),
    ]
    return cache, put_manifest(
        cache,
        programs(),
        FRAGMENTS,
        weights,
        artifacts,
        targets=(TARGET,),
        custom_ops=("spyretests::soft_clip.default",),
    )


def test_compiled_model_agrees_with_the_interpreted_one(built):
    compiled, eager = load(*built), load(*built, device="eager")
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled.entry("linear")(x), eager.entry("linear")(x))
    torch.testing.assert_close(compiled.entry("linear")(x), x @ WEIGHT + BIAS)


@pytest.mark.parametrize("rows", [2, 8, 64])
def test_symbolic_size_reaches_the_compiled_code(built, rows):
    x = torch.randn(rows, 6)
    out, elements = load(*built).entry("rows")(x)
    assert torch.equal(out, (2 * x).view(rows // 2, 12))
    assert elements == rows * 6


def test_compiled_state_is_written_in_place_and_owned_by_the_copy(built):
    model, other = load(*built), load(*built)
    x = torch.ones(3)
    for calls in (1, 2, 3):
        assert torch.equal(model.entry("total")(x), 2.0 * calls * x)
    assert torch.equal(other.entry("total")(x), 2 * x)


def test_compiled_model_from_many_threads_gives_every_caller_its_own(built):
    entry = load(*built).entry("linear")
    wrong = []

    def work(seed):
        x = torch.full((2, 4), float(seed))
        expected = x @ WEIGHT + BIAS
        wrong.extend(1 for _ in range(200) if not torch.allclose(entry(x), expected, atol=1e-5))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_custom_operator_is_called_from_compiled_code_by_many_threads(built):
    entry, x = load(*built).entry("clip"), torch.randn(3)
    expected = soft_clip(soft_clip(x, 0.5), 0.25)
    right = []
    threads = [
        threading.Thread(target=lambda: right.extend(torch.equal(entry(x), expected) for _ in range(100)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert right == [True] * 400


def test_custom_operator_that_is_absent_is_named_before_anything_is_mapped(built):
    cache, digest = built
    code = (
        "from spyre_cache import Cache\nfrom spyre_cache.digest import Digest\nfrom spyre_runtime import load, SpyreRuntimeError\n"
        f"try:\n    load(Cache.open({str(cache.path)!r}), Digest({digest.hash!r}, {digest.size}))\n"
        "except SpyreRuntimeError as error:\n    print(type(error).__name__, error)"
    )
    env = {"PYTHONPATH": ":".join(x for x in sys.path if x)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.startswith("IncompatibleHostError")
    assert "spyretests::soft_clip.default is not registered" in done.stdout


def test_call_overhead_is_small(built):
    entry, x = load(*built).entry("linear"), torch.randn(2, 4)
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(50):
            entry(x)
        best = min(best, (time.perf_counter() - start) / 50)
    assert best < 200e-6


def test_fresh_process_loads_and_runs_without_a_compiler(built, tmp_path):
    cache, digest = built
    code = (
        "import sys, torch\nfrom spyre_cache import Cache\nfrom spyre_cache.digest import Digest\nfrom spyre_runtime import load\n"
        f"model = load(Cache.open({str(cache.path)!r}), Digest({digest.hash!r}, {digest.size}), entry='linear')\n"
        "print(model.entry('linear')(torch.ones(2, 4)).shape[1])\n"
        "print([m for m in ('sympy', 'torch._dynamo', 'torch._inductor', 'spyre_workers', 'spyre_build') if m in sys.modules])"
    )
    env = {"PYTHONPATH": ":".join(x for x in sys.path if x), "PATH": str(tmp_path), "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split("\n")[:2] == ["3", "[]"]


def test_library_that_is_gone_is_a_missing_piece(built, tmp_path):
    cache, digest = built
    other = Cache.open(tmp_path / "other")
    manifest = cache.blobs.get(digest)
    other.blobs.put(manifest)
    from spyre_runtime.errors import MissingPieceError

    with pytest.raises(MissingPieceError, match=r"artifact of fragment .* is not in this cache"):
        load(other, digest)
