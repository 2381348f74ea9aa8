"""Every kind of fragment compiles and agrees with eager, or fails with a typed reason."""

from __future__ import annotations

import pytest
import torch
from artifacts import load
from fragments import fragment_of, fragment_of_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from spyre_cache.objects import fragment as f
from spyre_workers.compile import compile_action

a = torch.ops.aten


def compiled(fragment, kit, **more):
    blobs, server, action_of, tmp_path = kit
    result = compile_action(action_of(fragment, **more), blobs, server=server)
    return load(blobs, result, tmp_path / "artifact")


@pytest.fixture
def kit(blobs, server, action_of, tmp_path):
    return blobs, server, action_of, tmp_path


def close(got, want, **tolerance):
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
        torch.testing.assert_close(x, y, **tolerance)


def ints(*shape):
    return torch.randint(0, 9, shape)


def _twice(x):
    y = x * 2
    return (y, y, x)


CASES = {
    "bfloat16": (lambda x: (torch.softmax(x, -1), x.sum(0)), lambda: [torch.randn(4, 32).bfloat16()]),
    "float16": (lambda x: (x * 2 + 1, torch.exp(x)), lambda: [torch.randn(4, 32).half()]),
    "float64": (lambda x: (torch.tanh(x) @ x,), lambda: [torch.randn(6, 6).double()]),
    "integers": (lambda x, y: (x // (y + 1), x % (y + 1), x & y), lambda: [ints(5, 7), ints(5, 7)]),
    "booleans": (lambda x: (x > 0, torch.logical_not(x > 1), (x > 0).any()), lambda: [torch.randn(5, 7)]),
    "no_dimensions": (lambda x: (x + 1, x * 2.5), lambda: [torch.randn(())]),
    "zero_size": (lambda x: (x + 1, x.sum(), torch.cat([x, x])), lambda: [torch.randn(0, 3)]),
    "strided_input": (lambda x: (x + 1, x.sum(-1)), lambda: [torch.randn(7, 5).t()]),
    "transposed_output": (lambda x: ((x + 1).t(),), lambda: [torch.randn(7, 5)]),
    "view_of_input": (lambda x: (x.view(35), x.t(), x + 1), lambda: [torch.randn(7, 5)]),
    "input_itself": (lambda x, y: (x, x + y), lambda: [torch.randn(3), torch.randn(3)]),
    "output_twice": (_twice, lambda: [torch.randn(3)]),
    "no_kernels": (lambda x, w: (torch.mm(x, w),), lambda: [torch.randn(3, 4), torch.randn(4, 5)]),
    "no_inputs": (lambda: (torch.arange(10), torch.ones(3)), list),
    "convolution": (
        lambda x, w: (torch.relu(a.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)),),
        lambda: [torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)],
    ),
    "embedding": (lambda w, i: (a.embedding(w, i) * 2,), lambda: [torch.randn(10, 8), ints(2, 5)]),
    "attention": (
        lambda q, k, v: (torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),),
        lambda: [torch.randn(1, 2, 16, 8) for _ in range(3)],
    ),
    "sort_and_topk": (lambda x: (*torch.sort(x, -1), *torch.topk(x, 3)), lambda: [torch.randn(4, 9)]),
    "cumsum": (lambda x: (torch.cumsum(x, 0),), lambda: [torch.randn(9, 4)]),
    "scatter": (
        lambda x, i, s: (a.scatter_add(x, 0, i, s),),
        lambda: [torch.zeros(9, 4), ints(5, 4), torch.randn(5, 4)],
    ),
    "index_put": (
        lambda x, i, s: (a.index_put(x, [i], s),),
        lambda: [torch.zeros(9, 4), torch.tensor([1, 3]), torch.ones(2, 4)],
    ),
    "complex": (lambda x: (torch.view_as_real(torch.view_as_complex(x) * 2j),), lambda: [torch.randn(3, 4, 2)]),
    "special_functions": (
        lambda x: (torch.erf(x), torch.lgamma(x.abs() + 1), torch.digamma(x.abs() + 1)),
        lambda: [torch.randn(40)],
    ),
    "linear_algebra": (lambda x: (torch.linalg.det(x @ x.t() + torch.eye(4)),), lambda: [torch.randn(4, 4)]),
    "layer_norm": (
        lambda x, w, b: (torch.nn.functional.layer_norm(x, (16,), w, b),),
        lambda: [torch.randn(4, 16), torch.randn(16), torch.randn(16)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fragment_compiled_agrees_with_eager(name, kit):
    function, arguments = CASES[name]
    torch.manual_seed(0)
    args = arguments()
    runner = compiled(fragment_of(function, *args), kit)
    wanted = function(*args)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if args and args[0].dtype in (torch.bfloat16, torch.float16) else {}
    for _ in range(2):
        close(runner.run(list(args)), wanted, **tolerance)


def test_view_of_input_returned_shares_its_memory(kit):
    x = torch.randn(4, 4)
    got = compiled(fragment_of(lambda x: (x.t(), x), x), kit).run([x])
    x[0, 1] = 42.0
    assert got[0][1, 0] == 42.0
    assert got[1].data_ptr() == x.data_ptr()


def test_mutated_input_written_in_place(kit):
    def function(cache, x, position):
        new = a.index_put(cache, [position], x)
        return (new.sum(0), new)

    cache, x, position = torch.zeros(6, 3), torch.ones(1, 3), torch.tensor([2])
    runner = compiled(fragment_of(function, cache, x, position, mutates=(0,)), kit)
    (total,) = runner.run([cache, x, position])
    assert torch.equal(total, torch.ones(3))
    assert cache[2].eq(1).all()
    assert cache.sum() == 3
    (total,) = runner.run([cache, x, torch.tensor([4])])
    assert torch.equal(total, torch.full((3,), 2.0))
    assert cache.sum() == 6


def test_mutated_input_also_returned_is_the_new_value(kit):
    def function(x):
        new = x + 1
        return (new, new * 3, new)

    x = torch.ones(4)
    runner = compiled(fragment_of(function, x, mutates=(0,)), kit)
    first, second = runner.run([x])
    assert first.data_ptr() != x.data_ptr()
    assert torch.equal(x, torch.full((4,), 2.0))
    assert torch.equal(first, torch.full((4,), 2.0))
    assert torch.equal(second, torch.full((4,), 6.0))


def test_input_both_read_and_swapped_keeps_old_values(kit):
    x, y = torch.zeros(4), torch.ones(4)
    runner = compiled(fragment_of(lambda x, y: (x + 5, y * 1, x * 1), x, y, mutates=(0, 1)), kit)
    (out,) = runner.run([x, y])
    assert torch.equal(out, torch.full((4,), 5.0))
    assert x.eq(1).all()
    assert y.eq(0).all()


def dynamic(function, *shapes, symbols):
    """A fragment whose sizes given as strings are symbols."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    values, named = [], {}
    for shape in shapes:
        sizes = [11 + 6 * sorted(symbols).index(d) if isinstance(d, str) else d for d in shape]
        kinds = [DimDynamic.DUCK if isinstance(d, str) else DimDynamic.STATIC for d in shape]
        fake = mode.from_tensor(torch.empty(sizes), symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))
        for size, d in zip(fake.shape, shape, strict=True):
            if isinstance(d, str):
                named[str(size)] = d
        values.append(fake)
    with torch.no_grad(), mode:
        module = make_fx(function)(*values)
    text = fragment_of_module(module, values).encoded().decode()
    import re

    text = re.sub(r"\bs\d+\b", lambda m: named.get(m[0], m[0]), text)
    from spyre_cache.codec import decode

    fragment = decode(text.encode(), f.Fragment)
    import msgspec

    return msgspec.structs.replace(
        fragment, symbols=tuple(f.Symbol(name=n, min=lo, max=hi) for n, (lo, hi) in symbols.items())
    )


def test_dynamic_sizes_compiled_once_run_at_any_size(kit):
    def function(x, w):
        y = torch.relu(x @ w)
        return (y, y.sum(0), x.reshape(-1), torch.cat([x, x]))

    fragment = dynamic(function, ("s0", 8), (8, 4), symbols={"s0": (2, 512)})
    runner = compiled(fragment, kit)
    for rows in (2, 3, 16, 129, 512):
        args = [torch.randn(rows, 8), torch.randn(8, 4)]
        close(runner.run(args), function(*args))


def test_two_dynamic_sizes_compiled_once_run_at_any_size(kit):
    def function(x, y):
        return (x[:, None] * y[None, :], x.sum() + y.mean())

    runner = compiled(dynamic(function, ("s0",), ("s1",), symbols={"s0": (2, 100), "s1": (2, 100)}), kit)
    for m, n in ((2, 3), (50, 7), (100, 100)):
        args = [torch.randn(m), torch.randn(n)]
        close(runner.run(args), function(*args))


def test_size_passed_as_input_read_from_integer_tensor(kit):
    x = f.Input(kind="tensor", spec=f.TensorSpec(dtype="float32", shape=("s0", 3), stride=(3, 1)))
    n = f.Input(kind="symint", spec=f.SymSpec(kind="int", expr="s1"))
    node = f.Node(
        op="aten::full.default",
        args=(f.ListArg(items=(f.Ref(v=1), f.SymArg(expr="2*s0"))), f.FloatArg.of(1.5)),
        kwargs=(("device", f.DeviceArg(v="cpu")), ("dtype", f.DTypeArg(v="float32"))),
        results=(f.TensorSpec(dtype="float32", shape=("s1", "2*s0"), stride=("2*s0", 1)),),
    )
    out = f.Output(v=2, spec=node.results[0])
    graph = f.Graph(inputs=(x, n), nodes=(node,), outputs=(out,))
    fragment = f.Fragment(graph=graph, symbols=(f.Symbol(name="s0", min=2, max=99), f.Symbol(name="s1", min=2, max=99)))
    runner = compiled(fragment, kit)
    (got,) = runner.run([torch.randn(5, 3), torch.tensor(7)])
    assert torch.equal(got, torch.full((7, 10), 1.5))


def test_size_returned_comes_as_integer_tensor(kit):
    x = f.Input(kind="tensor", spec=f.TensorSpec(dtype="float32", shape=("s0", 3), stride=(3, 1)))
    node = f.Node(
        op="aten::sym_size.int", args=(f.Ref(v=0), f.IntArg(v=0)), results=(f.SymSpec(kind="int", expr="s0"),)
    )
    double = f.Node(op="sym::mul", args=(f.Ref(v=1), f.IntArg(v=2)), results=(f.SymSpec(kind="int", expr="2*s0"),))
    graph = f.Graph(
        inputs=(x,),
        nodes=(node, double),
        outputs=(f.Output(v=2, spec=double.results[0]), f.Output(v=0, spec=x.spec, alias_of=0)),
    )
    runner = compiled(f.Fragment(graph=graph, symbols=(f.Symbol(name="s0", min=2, max=99),)), kit)
    size, same = runner.run([torch.randn(5, 3)])
    assert size.item() == 10
    assert same.shape == (5, 3)


def test_cond_compiled_takes_the_branch_of_its_predicate(kit):
    def function(p, x):
        return torch.cond(p, lambda x: (x.sin() + 1,), lambda x: (x.cos() * 2,), (x,))

    args = [torch.tensor(True), torch.randn(4, 4)]
    runner = compiled(fragment_of(function, *args), kit)
    for flag in (True, False):
        close(runner.run([torch.tensor(flag), args[1]]), function(torch.tensor(flag), args[1]))


@pytest.mark.parametrize("target", ["cpu/x86-64-v2", "cpu/x86-64-v4"])
def test_other_level_compiled_agrees_with_eager(target, kit):
    def function(x, w):
        return (torch.softmax(x @ w, -1), torch.exp(x).bfloat16())

    args = [torch.randn(16, 32), torch.randn(32, 40)]
    close(compiled(fragment_of(function, *args), kit, target=target).run(args), function(*args))
