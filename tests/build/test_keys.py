"""Keys: what they depend on, and what they do not. Nothing is compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from factories import Fn, Layer, Renamed, golden_specs, keys, spec, stack
from torch import nn
from torch.export import Dim

from spyre_build import Entry, ModelSpec
from spyre_cache.digest import Digest
from spyre_cache.objects.action import Action
from spyre_cache.objects.target import parse_target
from spyre_workers.toolchain import toolchain

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden_keys.json").read_text())
pytestmark = pytest.mark.xdist_group("build-keys")


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_fragment_has_the_key_it_always_had(name):
    assert keys(golden_specs()[name]) == GOLDEN[name]


def test_golden_fragments_are_all_different():
    found = [key for some in GOLDEN.values() for key in some]
    assert len(set(found)) == len(found) >= 12


@pytest.mark.parametrize(
    ("seed", "locale", "words"), [("1", "C", []), ("77", "C.UTF-8", ["--backwards"])], ids=["forwards", "backwards"]
)
def test_keys_in_another_process_are_the_same(tmp_path, seed, locale, words):
    directory = tmp_path / "größe and space"
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "golden_keys.py"), *words],
        cwd=directory, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": "Asia/Kathmandu", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == GOLDEN


def test_names_and_order_of_attributes_do_not_change_the_key():
    assert keys(spec(Renamed(), torch.zeros(2, 16))) == keys(spec(Layer(), torch.zeros(2, 16)))


def test_values_of_weights_and_inputs_do_not_change_the_key():
    first, second = Layer(), Layer()
    torch.nn.init.ones_(second.up.weight)
    assert keys(spec(first, torch.zeros(2, 16))) == keys(spec(second, torch.full((2, 16), 7.0)))


def test_forty_identical_layers_are_at_most_four_fragments():
    assert len(keys(spec(stack(40), torch.zeros(2, 16)))) <= 4


def test_depth_does_not_change_the_keys():
    assert keys(spec(stack(40), torch.zeros(2, 16))) == keys(spec(stack(6), torch.zeros(2, 16)))


@pytest.mark.parametrize("change", [{"eps": 1e-6}, {"scale": 0.5}], ids=["eps", "constant"])
def test_one_changed_layer_brings_one_new_key(change):
    plain, changed = keys(spec(stack(6), torch.zeros(2, 16))), keys(spec(stack(6, 3, **change), torch.zeros(2, 16)))
    assert len(set(changed) - set(plain)) == 1
    assert set(plain) <= set(changed)


def fn(function, *args, **more):
    return spec(Fn(function), *args, **more)


X = torch.zeros(4, 8)
DYNAMIC = {"args": ({0: Dim("seq", max=64)},)}
DIFFERENCES = {
    "constant": (lambda: fn(lambda m, a: a @ m.weight + 1, X), lambda: fn(lambda m, a: a @ m.weight + 2, X)),
    "constant in its last bit": (
        lambda: fn(lambda _m, a: a * 0.1, X), lambda: fn(lambda _m, a: a * 0.10000000000000002, X),
    ),
    "sign of zero": (lambda: fn(lambda _m, a: a + 0.0, X), lambda: fn(lambda _m, a: a + -0.0, X)),
    "integer or real constant": (lambda: fn(lambda _m, a: a * 2, X), lambda: fn(lambda _m, a: a * 2.0, X)),
    "eps": (lambda: spec(nn.LayerNorm(8), X), lambda: spec(nn.LayerNorm(8, eps=1e-6), X)),
    "stride of an input": (lambda: fn(lambda _m, a: a * 2, X), lambda: fn(lambda _m, a: a * 2, torch.zeros(8, 4).t())),
    "stride of a result": (lambda: fn(lambda _m, a: a * 2, X), lambda: fn(lambda _m, a: (a * 2).t(), X)),
    "dtype": (lambda: fn(lambda _m, a: a * 2, X), lambda: fn(lambda _m, a: a * 2, X.double())),
    "shape": (lambda: fn(lambda _m, a: a * 2, X), lambda: fn(lambda _m, a: a * 2, torch.zeros(4, 9))),
    "a symbolic size": (lambda: fn(lambda m, a: a @ m.weight, X), lambda: fn(lambda m, a: a @ m.weight, X, dynamic_shapes=DYNAMIC)),
    "range of a symbolic size": (
        lambda: fn(lambda m, a: a @ m.weight, X, dynamic_shapes=DYNAMIC),
        lambda: fn(lambda m, a: a @ m.weight, X, dynamic_shapes={"args": ({0: Dim("seq", max=65)},)}),
    ),
    "result that is a view of another": (
        lambda: fn(lambda _m, a: (a * 2, a * 2), X), lambda: fn(lambda _m, a: (a * 2, a.mul(2).view(8, 4)), X),
    ),
    "an input is written": (lambda: fn(lambda _m, a: a + 1, X), lambda: fn(lambda _m, a: a.add_(1), X)),
    "which input is written": (
        lambda: fn(lambda _m, a, b: a.copy_(a - b), X, X), lambda: fn(lambda _m, a, b: b.copy_(a - b), X, X),
    ),
    "order of operands": (
        lambda: fn(lambda m, a: (a @ m.weight) - a, X), lambda: fn(lambda m, a: a - (a @ m.weight), X),
    ),
    "which inputs are one": (
        lambda: fn(lambda m, a, b: (a + b) @ m.weight, X, X), lambda: fn(lambda m, a, b: (a + a) @ m.weight + 0 * b, X, X),
    ),
    "dimension": (lambda: fn(lambda _m, a: a.softmax(0), X), lambda: fn(lambda _m, a: a.softmax(1), X)),
    "text": (
        lambda: fn(lambda m, a: nn.functional.gelu(a), X), lambda: fn(lambda m, a: nn.functional.gelu(a, approximate="tanh"), X),
    ),
    "a branch of cond": (
        lambda: fn(lambda _m, a: torch.cond(a.sum() > 0, lambda v: v + 1, lambda v: v - 1, (a,)), X),
        lambda: fn(lambda _m, a: torch.cond(a.sum() > 0, lambda v: v + 1, lambda v: v - 2, (a,)), X),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_difference_changes_the_key(name):
    one, other = (keys(make()) for make in DIFFERENCES[name])
    assert set(one) != set(other)
    assert one == keys(DIFFERENCES[name][0]())


def test_tied_weights_are_one_input_and_change_the_key():
    tied, loose = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    tied[1].weight = tied[0].weight
    assert keys(spec(tied, X)) != keys(spec(loose, X))


def test_entries_of_the_same_computation_share_a_fragment():
    entries = {"a": Entry((torch.zeros(2, 16),)), "b": Entry((torch.ones(2, 16),)), "c": Entry((torch.zeros(3, 16),))}
    assert len(keys(ModelSpec(Layer().eval(), entries))) == 2


def test_action_key_depends_on_target_toolchain_and_salt():
    fragment = Digest.of(b"fragment")
    tools = toolchain()
    one = Action(fragment=fragment, target=parse_target("cpu/x86-64-v3"), toolchain=tools)
    others = [
        Action(fragment=Digest.of(b"other"), target=one.target, toolchain=tools),
        Action(fragment=fragment, target=parse_target("cpu/x86-64-v2"), toolchain=tools),
        Action(fragment=fragment, target=one.target, toolchain=tools, salt="tenant"),
    ]
    assert len({one.key(), *(other.key() for other in others)}) == 4
    assert one.key() == Action(fragment=fragment, target=one.target, toolchain=toolchain()).key()
