from __future__ import annotations

import subprocess
import sys
import weakref

import torch
from handmade import f32, program, slot, tensor_argument

from spyre_cache.objects import program as p
from spyre_runtime.program import Executable


def chain(length):
    """x through `length` fragments, each temporary freed once it was read."""
    return program(
        arguments=(tensor_argument("args.0", 0, "x"),),
        slots=(slot("input", f32(2)), *(slot("temp", f32(2)) for _ in range(length))),
        steps=tuple(p.Step(fragment=0, inputs=(i,), outputs=(i + 1,), frees=(i,) if i else ()) for i in range(length)),
        output=p.Leaf(v=length),
    )


def test_intermediates_die_after_their_last_use():
    made, alive = [], []

    def call(inputs):
        alive.append(sum(ref() is not None for ref in made))
        result = inputs[0] + 1
        made.append(weakref.ref(result))
        return [result]

    out = Executable(chain(6), {0: call}, {})(torch.zeros(2))
    assert torch.equal(out, torch.full((2,), 6.0))
    assert max(alive) == 1
    assert sum(ref() is not None for ref in made) == 1


def test_runtime_imports_torch_and_the_codecs_and_nothing_else():
    code = (
        "import sys, time, torch\nbefore, start = set(sys.modules), time.perf_counter()\nimport spyre_runtime\n"
        "took = time.perf_counter() - start\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
        "print(sorted(new), took < 1.0)"
    )
    env = {"PYTHONPATH": ":".join(x for x in sys.path if x)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    packages, quick = done.stdout.rsplit(" ", 1)
    allowed = {"torch", "msgspec", "blake3", "zstandard", "backports", "spyre_cache", "spyre_runtime"}
    assert set(eval(packages)) <= allowed
    assert quick.strip() == "True"
