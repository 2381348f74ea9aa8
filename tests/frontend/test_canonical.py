"""Fragments are the same bytes for the same computation, however it was traced."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyre_build.frontend.canonical import canonicalise
from spyre_build.frontend.ir import IRNode, ModelGraph, map_arg
from spyre_cache.objects.fragment import FloatArg, IntArg, Ref, TensorSpec

SPECS = [
    TensorSpec(dtype="float32", shape=(2, 3), stride=(3, 1)),
    TensorSpec(dtype="float32", shape=(3, 2), stride=(2, 1)),
    TensorSpec(dtype="int64", shape=(2,), stride=(1,)),
]


@st.composite
def graphs(draw: st.DrawFn) -> ModelGraph:
    count = draw(st.integers(1, 4))
    inputs = [draw(st.sampled_from(SPECS)) for _ in range(count)]
    specs = dict(enumerate(inputs))
    nodes: list[IRNode] = []
    for index in range(draw(st.integers(1, 12))):
        reads = draw(st.lists(st.integers(0, count + index - 1), min_size=1, max_size=3))
        op = draw(st.sampled_from(["aten::add.Tensor", "aten::mul.Tensor", "aten::relu"]))
        extra = draw(st.sampled_from([IntArg(v=1), FloatArg.of(0.5)]))
        spec = draw(st.sampled_from(SPECS))
        number = count + index
        nodes.append(IRNode(op, (*(Ref(v=r) for r in reads), extra), (), number, (spec,), "single"))
        specs[number] = spec
    return ModelGraph(list(inputs), nodes, [count + len(nodes) - 1], [], specs)


def fragment(graph: ModelGraph, wanted: set[int] | None = None) -> bytes:
    outputs = wanted if wanted is not None else {v for v in graph.outputs if v is not None}
    return canonicalise(graph, range(len(graph.nodes)), outputs, []).fragment.encoded()


def shuffled(graph: ModelGraph, seed: int) -> ModelGraph:
    """The same computation in another topological order, under other numbers."""
    rng = random.Random(seed)
    inputs = len(graph.inputs)
    left, order, made = list(range(len(graph.nodes))), [], set(range(inputs))
    while left:
        ready = [i for i in left if set(graph.nodes[i].reads()) <= made]
        chosen = rng.choice(ready)
        left.remove(chosen)
        order.append(chosen)
        made.update(graph.nodes[chosen].values)
    places = rng.sample(range(inputs), inputs)
    new = dict(enumerate(places))
    for position, index in enumerate(order):
        new[graph.nodes[index].first] = inputs + position
    nodes = [
        replace(
            graph.nodes[index],
            first=new[graph.nodes[index].first],
            args=tuple(map_arg(arg, new.__getitem__, str) for arg in graph.nodes[index].args),
        )
        for index in order
    ]
    specs = {new[old]: spec for old, spec in graph.specs.items()}
    return ModelGraph(
        [specs[n] for n in range(inputs)], nodes, [new[v] for v in graph.outputs if v is not None], [], specs
    )


def distinct(graph: ModelGraph) -> bool:
    """Whether no two nodes do exactly the same: between twins the given order decides, as it must."""
    seen = set()
    for node in graph.nodes:
        key = (node.op, tuple(str(a) for a in node.args), node.results)
        if key in seen:
            return False
        seen.add(key)
    return True


@given(graphs(), st.integers(0, 2**32))
def test_other_topological_order_gives_the_same_nodes_and_wiring_counts(graph: ModelGraph, seed: int) -> None:
    if not distinct(graph):
        return
    one = canonicalise(graph, range(len(graph.nodes)), {graph.outputs[0]}, [])  # type: ignore[arg-type]
    other_graph = shuffled(graph, seed)
    other = canonicalise(other_graph, range(len(other_graph.nodes)), {other_graph.outputs[0]}, [])  # type: ignore[arg-type]
    assert [n.op for n in one.fragment.graph.nodes] == [n.op for n in other.fragment.graph.nodes]
    assert len(one.inputs) == len(other.inputs)


@pytest.mark.parametrize("seed", range(20))
def test_attention_like_graph_in_any_order_gives_the_same_bytes(seed: int) -> None:
    x, w = SPECS[0], SPECS[1]
    names = ["q", "k", "v"]
    nodes = [IRNode("aten::mm", (Ref(v=0), Ref(v=1 + i)), (), 4 + i, (x,), "single") for i in range(len(names))]
    nodes += [
        IRNode("aten::scale", (Ref(v=4), FloatArg.of(0.125)), (), 7, (x,), "single"),
        IRNode("aten::attention", (Ref(v=7), Ref(v=5), Ref(v=6)), (), 8, (x,), "single"),
    ]
    graph = ModelGraph([x, w, w, w], nodes, [8], [], {0: x, 1: w, 2: w, 3: w} | dict.fromkeys(range(4, 9), x))
    assert fragment(graph) == fragment(shuffled(graph, seed))


def test_inputs_come_in_order_of_first_use() -> None:
    x = SPECS[0]
    nodes = [IRNode("aten::sub.Tensor", (Ref(v=1), Ref(v=0)), (), 2, (x,), "single")]
    made = canonicalise(ModelGraph([x, x], nodes, [2], [], dict.fromkeys(range(3), x)), [0], {2}, [])
    assert made.inputs == (1, 0)


def test_value_that_is_written_to_an_input_may_share_its_memory() -> None:
    x = SPECS[0]
    nodes = [IRNode("aten::index_put", (Ref(v=0), Ref(v=1)), (), 2, (x,), "single")]
    graph = ModelGraph([x, x], nodes, [2], [(0, 2)], dict.fromkeys(range(3), x))
    made = canonicalise(graph, [0], {2}, [(0, 2)])
    assert made.fragment.graph.outputs[0].alias_of == 0
    assert made.fragment.graph.inputs[0].kind == "state"
    assert [(m.input, m.v) for m in made.fragment.graph.mutations] == [(0, 2)]


@pytest.mark.parametrize(
    "change",
    [
        lambda n: replace(n, op="aten::mul.Tensor"),
        lambda n: replace(n, args=(*n.args[:-1], FloatArg.of(1e-6))),
        lambda n: replace(n, args=(*n.args[:-1], IntArg(v=1))),
        lambda n: replace(n, results=(SPECS[1],)),
        lambda n: replace(n, results=(TensorSpec(dtype="float64", shape=(2, 3), stride=(3, 1)),)),
        lambda n: replace(n, results=(TensorSpec(dtype="float32", shape=(2, 3), stride=(1, 2)),)),
        lambda n: replace(n, pack="seq"),
        lambda n: replace(n, kwargs=(("rounding_mode", IntArg(v=0)),)),
    ],
)
def test_anything_that_changes_the_computation_changes_the_bytes(change) -> None:
    x = SPECS[0]
    node = IRNode("aten::add.Tensor", (Ref(v=0), Ref(v=1), FloatArg.of(1e-5)), (), 2, (x,), "single")
    graph = ModelGraph([x, x], [node], [2], [], dict.fromkeys(range(3), x))
    other = replace(graph, nodes=[change(node)], specs={**graph.specs, 2: change(node).results[0]})
    assert fragment(graph) != fragment(other)


def test_names_of_modules_and_lines_do_not_change_the_bytes() -> None:
    x = SPECS[0]
    node = IRNode("aten::relu", (Ref(v=0),), (), 1, (x,), "single", calls=(("a", "A", "a"),), source="a.py:1")
    graph = ModelGraph([x], [node], [1], [], {0: x, 1: x})
    assert fragment(graph) == fragment(replace(graph, nodes=[replace(node, calls=(("b", "B", "b"),), source="")]))
