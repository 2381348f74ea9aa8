"""A lowered model as plain data: what partition and canonicalisation work on, without torch.

Values are numbered over the whole model: inputs first, then each node's results. Sizes are expressions over the model's
symbols (`s0`, `s1` in order of first use by the inputs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from spyre_cache.objects.fragment import (
    Arg,
    Graph,
    GraphArg,
    ListArg,
    Ref,
    SymArg,
    Symbol,
    SymSpec,
    TensorSpec,
    ValueSpec,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SYMBOL = re.compile(r"\bs\d+\b")

Call = tuple[str, str, str]
"""One module call on a node's stack: path, class, and a name that tells calls of one module apart."""


@dataclass(frozen=True, slots=True)
class IRNode:
    """One operator call.

    Attributes:
        first: number of its first result; results are consecutive.
        aliases: values whose memory a result may share.
        calls: module calls around it, outermost first.
        source: line of the user's model.
        mutates: values that it writes in place (custom operators alone; ATen is functional here).
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    first: int
    results: tuple[ValueSpec, ...]
    pack: Literal["single", "seq", "none"]
    aliases: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    source: str = ""

    @property
    def values(self) -> range:
        """Numbers of its results."""
        return range(self.first, self.first + len(self.results))

    def reads(self) -> Iterator[int]:
        """Values read, in order of the arguments, repeats included."""
        for arg in self.args:
            yield from arg_refs(arg)
        for _, arg in self.kwargs:
            yield from arg_refs(arg)


@dataclass
class ModelGraph:
    """Attributes:
    inputs: what each input value is; numbers 0 to n - 1.
    nodes: in topological order.
    outputs: value numbers; None where the graph returns None.
    mutations: (input, value): after the call, input holds value.
    specs: of every value.
    exprs: the sympy expression behind each text in specs and arguments.
    """

    inputs: list[ValueSpec]
    nodes: list[IRNode]
    outputs: list[int | None]
    mutations: list[tuple[int, int]]
    specs: dict[int, ValueSpec]
    symbols: dict[str, Symbol] = field(default_factory=dict)
    exprs: dict[str, Any] = field(default_factory=dict)
    guards: list[str] = field(default_factory=list)


def arg_refs(arg: Arg) -> Iterator[int]:
    """Values an argument reads. A branch's own values are its own; it closes over nothing."""
    if isinstance(arg, Ref):
        yield arg.v
    elif isinstance(arg, ListArg):
        for item in arg.items:
            yield from arg_refs(item)


def map_arg(arg: Arg, value: Callable[[int], int], size: Callable[[str], str]) -> Arg:
    """The argument with other value numbers and other size expressions."""
    if isinstance(arg, Ref):
        return Ref(v=value(arg.v))
    if isinstance(arg, ListArg):
        return ListArg(items=tuple(map_arg(item, value, size) for item in arg.items))
    if isinstance(arg, GraphArg):
        return GraphArg(graph=map_graph(arg.graph, size))
    if isinstance(arg, SymArg):
        return SymArg(expr=size(arg.expr))
    return arg


def map_graph(graph: Graph, size: Callable[[str], str]) -> Graph:
    """A branch with other size expressions; its value numbers are its own and stay."""

    def same(value: int) -> int:
        return value

    nodes = tuple(
        type(node)(
            op=node.op,
            args=tuple(map_arg(arg, same, size) for arg in node.args),
            kwargs=tuple((name, map_arg(arg, same, size)) for name, arg in node.kwargs),
            results=tuple(map_spec(spec, size) for spec in node.results),
            pack=node.pack,
        )
        for node in graph.nodes
    )
    inputs = tuple(type(item)(kind=item.kind, spec=map_spec(item.spec, size)) for item in graph.inputs)
    outputs = tuple(
        type(item)(v=item.v, spec=map_spec(item.spec, size), alias_of=item.alias_of) for item in graph.outputs
    )
    return Graph(inputs=inputs, nodes=nodes, outputs=outputs, mutations=graph.mutations)


def map_spec(spec: ValueSpec, size: Callable[[str], str]) -> ValueSpec:
    """A spec with other size expressions."""
    if isinstance(spec, TensorSpec):
        shape = tuple(d if isinstance(d, int) else _int(size(d)) for d in spec.shape)
        stride = tuple(d if isinstance(d, int) else _int(size(d)) for d in spec.stride)
        return TensorSpec(dtype=spec.dtype, shape=shape, stride=stride, layout=spec.layout)
    if isinstance(spec, SymSpec):
        return SymSpec(kind=spec.kind, expr=size(spec.expr))
    return spec


def _int(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def spec_texts(spec: ValueSpec) -> Iterator[str]:
    """Size expressions in a spec."""
    if isinstance(spec, TensorSpec):
        for dim in (*spec.shape, *spec.stride):
            if isinstance(dim, str):
                yield dim
    elif isinstance(spec, SymSpec):
        yield spec.expr


def arg_texts(arg: Arg) -> Iterator[str]:
    """Size expressions in an argument, branches included."""
    if isinstance(arg, ListArg):
        for item in arg.items:
            yield from arg_texts(item)
    elif isinstance(arg, GraphArg):
        for node in arg.graph.nodes:
            for inner in node.args:
                yield from arg_texts(inner)
            for spec in node.results:
                yield from spec_texts(spec)
        for spec in (*(i.spec for i in arg.graph.inputs), *(o.spec for o in arg.graph.outputs)):
            yield from spec_texts(spec)
    elif isinstance(arg, SymArg):
        yield arg.expr


def symbols_in(text: str) -> set[str]:
    """Names of the model's symbols in a size expression."""
    return set(_SYMBOL.findall(text))


def substitute(graph: ModelGraph, same: dict[int, int]) -> ModelGraph:
    """The graph with every read of a key of `same` turned into a read of its value."""
    if not same:
        return graph

    def final(value: int) -> int:
        while value in same:
            value = same[value]
        return value

    def text(expr: str) -> str:
        return expr

    nodes = [
        replace(
            node,
            args=tuple(map_arg(arg, final, text) for arg in node.args),
            kwargs=tuple((name, map_arg(arg, final, text)) for name, arg in node.kwargs),
            aliases=tuple(final(value) for value in node.aliases),
        )
        for node in graph.nodes
    ]
    return replace(
        graph,
        nodes=nodes,
        outputs=[None if value is None else final(value) for value in graph.outputs],
        mutations=[(target, final(value)) for target, value in graph.mutations],
    )


def drop_dead(graph: ModelGraph) -> ModelGraph:
    """The graph without nodes that no output and no mutation needs."""
    live = {value for value in graph.outputs if value is not None} | {value for _, value in graph.mutations}
    kept: list[IRNode] = []
    for node in reversed(graph.nodes):
        if any(value in live for value in node.values):
            live.update(node.reads())
            kept.append(node)
    return replace(graph, nodes=kept[::-1])
