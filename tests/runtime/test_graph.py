from __future__ import annotations

import contextlib
import math
import subprocess
import sys

import msgspec
import pytest
import torch
from handmade import arg, f32, fragment, graph, linear, node, ref, spec, state_input, tensor_input
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spyre_cache.objects import fragment as f
from spyre_runtime.errors import InvalidFragmentError, OperatorMissingError, SpyreRuntimeError, SymbolError
from spyre_runtime.graph import decode_fragment, to_fx


def quarters():
    return fragment(
        [tensor_input(f32("s0", 6)), tensor_input(f32(6, 3)), state_input(f32("s0", 3))],
        [
            node("aten::mm.default", ref(0), ref(1), results=f32("s0", 3)),
            node("aten::reshape.default", ref(3), [4, {"sym": "s0 // 4"}, 3], results=f32(4, "s0 // 4", 3)),
            node("aten::max.dim", ref(4), 0, results=(f32("s0 // 4", 3), spec("int64", "s0 // 4", 3)), pack="seq"),
        ],
        [5, 6],
        mutations=[(2, 3)],
        symbols=[("s0", 2, 64)],
        constraints=["s0 % 4 == 0"],
    )


def conditional():
    def branch(op):
        return f.GraphArg(graph=graph([tensor_input(f32(3))], [node(op, ref(0), results=f32(3))], [1]))

    return fragment(
        [tensor_input(spec("bool")), tensor_input(f32(3))],
        [
            node(
                "higher_order::cond",
                ref(0),
                branch("aten::sin.default"),
                branch("aten::cos.default"),
                [ref(1)],
                results=(f32(3),),
                pack="seq",
            )
        ],
        [2],
    )


def test_fragment_with_sizes_and_mutation_runs_as_eager_does():
    x, w, state = torch.randn(8, 6), torch.randn(6, 3), torch.zeros(8, 3)
    values, indices = to_fx(quarters(), fake=False)(x, w, state)
    expected = (x @ w).reshape(4, 2, 3).max(0)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)
    assert torch.equal(state, x @ w)


def test_fragment_with_sizes_gets_symbolic_values_that_match_what_is_recorded():
    module = to_fx(quarters(), check=True)
    first = module.graph.find_nodes(op="placeholder")[0].meta["val"]
    assert str(first.shape[0]) == "s0"
    assert first.fake_mode.shape_env is not None
    assert all("val" in n.meta for n in module.graph.nodes)


def test_conditional_runs_its_branches():
    module = to_fx(conditional(), fake=False)
    x = torch.randn(3)
    assert torch.equal(module(torch.tensor(True), x)[0], x.sin())
    assert torch.equal(module(torch.tensor(False), x)[0], x.cos())


def test_conditional_gets_fake_values_in_its_branches_too():
    module = to_fx(conditional(), check=True)
    assert all("val" in n.meta for n in module.branch0.graph.nodes)


def test_decoding_without_fakes_imports_neither_sympy_nor_a_compiler():
    code = (
        "import sys, torch\nfrom handmade import linear\nfrom spyre_runtime.graph import to_fx\n"
        "out = to_fx(linear(), fake=False)(torch.ones(2, 4), torch.ones(4, 3), torch.ones(3))\n"
        "assert out[0].sum() == 30\n"
        "print([m for m in ('sympy', 'torch._dynamo', 'torch._inductor') if m in sys.modules])"
    )
    env = {"PYTHONPATH": ":".join(p for p in sys.path if p), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "[]"


def test_recorded_shape_that_differs_from_the_operator_is_found_by_the_check():
    wrong = fragment(
        [tensor_input(f32(2, 4)), tensor_input(f32(4, 3))],
        [node("aten::mm.default", ref(0), ref(1), results=f32(2, 4))],
        [2],
    )
    with pytest.raises(InvalidFragmentError, match=r"node 0 .*shape \[2, 3\], not \[2, 4\]"):
        to_fx(wrong, check=True)


def test_call_that_torch_refuses_names_its_node():
    wrong = fragment([tensor_input(f32(2, 4))], [node("aten::mm.default", ref(0), ref(0), results=f32(2, 4))], [1])
    with pytest.raises(InvalidFragmentError, match=r"node 0 \(aten.mm.default\): torch refuses it"):
        to_fx(wrong)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("os::system", "declared custom operator"),
        ("aten::from_file.default", "outside the process"),
        ("aten::copy_.default", "writes to its arguments"),
        ("aten::__class__.default", "not an operator"),
        ("aten::name", "not an operator"),
        ("aten::mm.__init__", "not an overload"),
        ("higher_order::print", "higher-order operator is one of"),
        ("sym::exec", "arithmetic on sizes"),
        ("aten.mm.default", "namespace::name.overload"),
        ("aten::mm.default; import os", "namespace::name.overload"),
    ],
)
def test_operator_that_is_not_allowed_is_refused(op, words):
    bad = fragment([tensor_input(f32(2, 2))], [node(op, ref(0), ref(0), results=f32(2, 2))], [1])
    with pytest.raises(SpyreRuntimeError, match=words):
        to_fx(bad, fake=False)


def test_operator_that_is_not_registered_is_named():
    bad = fragment([tensor_input(f32(2))], [node("mylib::gone.default", ref(0), results=f32(2))], [1])
    with pytest.raises(OperatorMissingError, match=r"mylib::gone.default is not registered"):
        to_fx(bad, fake=False, custom_ops=frozenset({"mylib"}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"args": (ref(7), ref(1))}, "values 0 to 2 exist"),
        ({"args": (ref(-1), ref(1))}, "values 0 to 2 exist"),
        ({"args": (arg({"sym": "s0"}),)}, "does not declare"),
        ({"args": (f.DTypeArg(v="float99"),)}, "a dtype is one of"),
        ({"args": (f.DeviceArg(v="cuda:0"),)}, "cpu or meta"),
        ({"args": (f.FloatArg(v="zz"),)}, "16 hex digits"),
        ({"args": (f.IntArg(v=1 << 63),)}, "64 bits"),
        ({"args": (f.GraphArg(graph=f.Graph(inputs=(), nodes=(), outputs=())),)}, "only a higher-order operator"),
        ({"kwargs": (("a b", f.NoneArg()),)}, "distinct identifiers"),
        ({"kwargs": (("class", f.NoneArg()),)}, "distinct identifiers"),
        ({"op": "sym::add", "args": (f.IntArg(v=1),)}, "takes 2 sizes"),
        ({"results": ()}, "cannot have 0 results"),
        ({"results": (f.TensorSpec(dtype="float32", shape=(2, -1), stride=(1, 1)),)}, "0 or more"),
        ({"results": (f.TensorSpec(dtype="float32", shape=(2,), stride=()),)}, "as many strides as dims"),
        ({"results": (f.TensorSpec(dtype="float32", shape=(2,), stride=(1,), layout="sparse_coo"),)}, "strided"),
    ],
)
def test_node_that_breaks_a_rule_is_refused_with_its_number(change, words):
    base = node("aten::mm.default", ref(0), ref(1), results=f32(2, 3))
    bad = f.Fragment(
        graph=f.Graph(inputs=linear().graph.inputs, nodes=(msgspec.structs.replace(base, **change),), outputs=())
    )
    with pytest.raises(InvalidFragmentError, match=words) as caught:
        to_fx(bad, fake=False)
    assert "node 0" in str(caught.value)


def test_mutation_of_an_input_that_is_no_state_is_refused():
    bad = fragment([tensor_input(f32(2))], [node("aten::sin.default", ref(0), results=f32(2))], [1], mutations=[(0, 1)])
    with pytest.raises(InvalidFragmentError, match="kind state"):
        to_fx(bad, fake=False)


def test_symbol_that_no_input_carries_is_refused():
    bad = fragment(
        [tensor_input(f32(4))],
        [node("aten::reshape.default", ref(0), [{"sym": "s0"}], results=f32(4))],
        [1],
        symbols=[("s0", 1, 8)],
    )
    with pytest.raises(SymbolError, match="carried by no input"):
        to_fx(bad, fake=False)


def test_symbol_inside_an_expression_is_read_off_the_input():
    doubled = fragment(
        [tensor_input(f32("2 * s0 + 1"))],
        [node("aten::expand.default", ref(0), [{"sym": "s0"}, -1], results=f32("s0", "2 * s0 + 1", stride=(0, 1)))],
        [1],
        symbols=[("s0", 1, 9)],
    )
    assert to_fx(doubled, fake=False)(torch.ones(7))[0].shape == (3, 7)
    to_fx(doubled, check=True)


def test_size_given_as_an_input_is_used():
    sized = fragment(
        [tensor_input(f32(12)), f.Input(kind="symint", spec=f.SymSpec(kind="int", expr="s0"))],
        [node("aten::reshape.default", ref(0), [{"sym": "s0"}, -1], results=f32("s0", "12 // s0"))],
        [2],
        symbols=[("s0", 1, 12)],
    )
    assert to_fx(sized, fake=False)(torch.ones(12), 4)[0].shape == (4, 3)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0, 1e-310])
def test_unusual_float_keeps_its_bits(value):
    filled = fragment(
        [], [node("aten::full.default", [2], value, dtype=f.DTypeArg(v="float64"), results=spec("float64", 2))], [0]
    )
    out = to_fx(filled, fake=False)()[0]
    assert f.float_bits(out[0].item()) == f.float_bits(value)


def test_constraint_that_cannot_be_met_is_refused():
    bad = fragment([tensor_input(f32("s0"))], [], [0], symbols=[("s0", 2, 9)], constraints=["s0 % 11 == 10"])
    with pytest.raises(SymbolError, match="no sizes were found"):
        to_fx(bad)


def test_unknown_operator_set_is_refused():
    data = msgspec.structs.replace(linear(), opset=2).encoded()
    with pytest.raises(InvalidFragmentError, match="operator set 1"):
        decode_fragment(data)


def test_deeply_nested_bytes_are_refused():
    with pytest.raises(InvalidFragmentError, match="nested at most"):
        decode_fragment(b"[" * 100_000)


def test_branches_nested_beyond_the_limit_are_refused():
    inner = graph([tensor_input(f32(3))], [], [0])
    for _ in range(12):
        call = node("higher_order::cond", ref(0), f.GraphArg(graph=inner), results=(f32(3),), pack="seq")
        inner = graph([tensor_input(f32(3))], [call], [1])
    with pytest.raises(InvalidFragmentError, match="nested at most 8"):
        to_fx(f.Fragment(graph=inner), fake=False)


BYTES = quarters().encoded()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, len(BYTES) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_decode_or_are_one_of_our_errors(changes):
    data = bytearray(BYTES)
    for position, value in changes:
        data[position] = value
    with contextlib.suppress(SpyreRuntimeError):
        to_fx(decode_fragment(bytes(data)), fake=False)


ARGS = st.recursive(
    st.one_of(
        st.integers(-3, 9).map(lambda v: f.Ref(v=v)),
        st.integers().map(lambda v: f.IntArg(v=v)),
        st.text(max_size=4).map(lambda v: f.StrArg(v=v)),
        st.text(max_size=4).map(lambda v: f.DTypeArg(v=v)),
        st.sampled_from(["s0", "s0 // 4", "s1", "s0 < 2", ""]).map(lambda v: f.SymArg(expr=v)),
        st.sampled_from(["aten::sin.default", "aten::copy_.default", "x::y", ""]).map(lambda v: f.OpArg(v=v)),
        st.just(f.GraphArg(graph=f.Graph(inputs=(), nodes=(), outputs=()))),
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: f.ListArg(items=tuple(items))),
    max_leaves=5,
)
NODES = st.builds(
    f.Node,
    op=st.sampled_from(
        [
            "aten::sin.default",
            "aten::cat.default",
            "aten::view.default",
            "higher_order::cond",
            "sym::add",
            "prims::add.default",
            "aten::zz.y",
        ]
    ),
    args=st.lists(ARGS, max_size=4).map(tuple),
    kwargs=st.lists(st.tuples(st.sampled_from(["dtype", "x", "1", ""]), ARGS), max_size=2).map(tuple),
    results=st.lists(
        st.sampled_from([f32(2), f32("s0"), f.NoneSpec(), f.SymSpec(kind="int", expr="s0")]), max_size=2
    ).map(tuple),
    pack=st.sampled_from(["single", "seq", "none"]),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(NODES, max_size=4), st.lists(st.integers(-1, 6), max_size=3))
def test_any_record_of_the_schema_decodes_with_fakes_or_is_one_of_our_errors(nodes, outputs):
    hostile = f.Fragment(
        graph=f.Graph(
            inputs=(tensor_input(f32("s0")), tensor_input(f32(2))),
            nodes=tuple(nodes),
            outputs=tuple(f.Output(v=v, spec=f32(2)) for v in outputs),
        ),
        symbols=(f.Symbol(name="s0", min=2, max=9),),
    )
    with contextlib.suppress(SpyreRuntimeError):
        to_fx(hostile, check=True)
