"""One region of a model as a fragment: the same bytes for the same computation, wherever it stands.

Operators are ordered by what they compute and by what becomes of it (a hash in each direction), inputs by first use,
outputs by definition; symbols are renamed by first use.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from spyre_build.frontend.ir import IRNode, ModelGraph, arg_texts, map_arg, map_spec, spec_texts, symbols_in
from spyre_build.frontend.sizes import spell, strip
from spyre_cache.objects import fragment as f

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Canonical:
    """A fragment with its wiring.

    Attributes:
        inputs: model value (or, for sizes, model symbol) of each fragment input.
        outputs: model value of each fragment output.
        order: node indices of the model in the order of the fragment's nodes.
    """

    fragment: f.Fragment
    inputs: tuple[int | str, ...]
    outputs: tuple[int, ...]
    order: tuple[int, ...]


def canonicalise(
    graph: ModelGraph, indices: Sequence[int], wanted: set[int], mutations: Sequence[tuple[int, int]]
) -> Canonical:
    """Makes a fragment of some nodes.

    Args:
        graph: the model.
        indices: the nodes; everything else is outside.
        wanted: values made inside that are read outside.
        mutations: (outside value, inside value): the first takes the contents of the second at the end.
    """
    nodes = [graph.nodes[index] for index in indices]
    made = {value for node in nodes for value in node.values}
    order = _order(graph, nodes, wanted, mutations)
    ordered = [nodes[place] for place in order]
    inputs: list[int] = []
    for node in ordered:
        for value in node.reads():
            if value not in made and value not in inputs:
                inputs.append(value)
    for target, _ in mutations:
        if target not in inputs:
            inputs.append(target)
    number = {value: place for place, value in enumerate(inputs)}
    renamer = _Symbols(graph, inputs, ordered)
    count = len(inputs) + len(renamer.given)  # sizes take the numbers after the tensors
    for node in ordered:
        for value in node.values:
            number[value] = count
            count += 1
    outputs = [value for node in ordered for value in node.values if value in wanted]
    written = {target for target, _ in mutations}
    record = f.Graph(
        inputs=tuple(
            f.Input(
                kind="state" if value in written else "tensor",
                spec=map_spec(graph.specs[value], renamer.text),
            )
            for value in inputs
        )
        + tuple(f.Input(kind="symint", spec=f.SymSpec(kind="int", expr=renamer.names[name])) for name in renamer.given),
        nodes=tuple(_node(node, number, renamer) for node in ordered),
        outputs=tuple(
            f.Output(
                v=number[value],
                spec=map_spec(graph.specs[value], renamer.text),
                alias_of=_alias(nodes, value, made, number, mutations),
            )
            for value in outputs
        ),
        mutations=tuple(
            sorted(
                (f.Mutation(input=number[target], v=number[value]) for target, value in mutations), key=_mutation_key
            )
        ),
    )
    fragment = f.Fragment(graph=record, symbols=renamer.symbols(), constraints=renamer.constraints())
    return Canonical(
        fragment=fragment,
        inputs=(*inputs, *renamer.given),
        outputs=tuple(outputs),
        order=tuple(indices[place] for place in order),
    )


def _mutation_key(mutation: f.Mutation) -> tuple[int, int]:
    return mutation.input, mutation.v


def _node(node: IRNode, number: dict[int, int], renamer: _Symbols) -> f.Node:
    return f.Node(
        op=node.op,
        args=tuple(map_arg(arg, number.__getitem__, renamer.text) for arg in node.args),
        kwargs=tuple((name, map_arg(arg, number.__getitem__, renamer.text)) for name, arg in node.kwargs),
        results=tuple(map_spec(spec, renamer.text) for spec in node.results),
        pack=node.pack,
    )


def alias_root(nodes: Sequence[IRNode], value: int, made: set[int]) -> int:
    """The value whose memory `value` may share, as far up as these nodes go; itself for fresh memory."""
    maker = {v: node for node in nodes for v in node.values}
    while value in made:
        aliases = maker[value].aliases
        if not aliases:
            return value
        value = aliases[0]
    return value


def _alias(
    nodes: Sequence[IRNode],
    value: int,
    made: set[int],
    number: dict[int, int],
    mutations: Sequence[tuple[int, int]],
) -> int | None:
    root = alias_root(nodes, value, made)
    if root not in made:
        return number[root]
    # A compiler may make a value right where it is to be written, and hand that out as the result.
    homes = {alias_root(nodes, source, made): target for target, source in mutations}
    return number[homes[root]] if root in homes else None


# --- order ------------------------------------------------------------------------------------------------------------


def _order(
    graph: ModelGraph, nodes: Sequence[IRNode], wanted: set[int], mutations: Sequence[tuple[int, int]]
) -> list[int]:
    """A topological order that depends on the computation alone (and, between equals, on the order given)."""
    maker = {value: place for place, node in enumerate(nodes) for value in node.values}
    forward = _forward(graph, nodes, maker)
    backward = _backward(graph, nodes, maker, forward, wanted, mutations)
    depth: list[int] = []
    waits = [0] * len(nodes)
    users: list[list[int]] = [[] for _ in nodes]
    for place, node in enumerate(nodes):
        before = {maker[value] for value in node.reads() if value in maker}
        depth.append(1 + max((depth[other] for other in before), default=-1))
        waits[place] = len(before)
        for other in before:
            users[other].append(place)
    ready = [(depth[p], forward[p], backward[p], p) for p in range(len(nodes)) if waits[p] == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)[-1]
        order.append(place)
        for user in users[place]:
            waits[user] -= 1
            if waits[user] == 0:
                heapq.heappush(ready, (depth[user], forward[user], backward[user], user))
    return order


def _forward(graph: ModelGraph, nodes: Sequence[IRNode], maker: dict[int, int]) -> list[bytes]:
    hashes: list[bytes] = []
    for node in nodes:
        hasher = blake3(node.op.encode())
        for name, arg in (*(("", arg) for arg in node.args), *node.kwargs):
            hasher.update(name.encode() + b"=")
            for part in _parts(graph, nodes, maker, hashes, arg):
                hasher.update(part)
        hasher.update(msgspec.json.encode(node.results))
        hashes.append(hasher.digest())
    return hashes


def _parts(
    graph: ModelGraph, nodes: Sequence[IRNode], maker: dict[int, int], hashes: list[bytes], arg: f.Arg
) -> Iterator[bytes]:
    if isinstance(arg, f.Ref):
        place = maker.get(arg.v)
        if place is None:
            yield b"in" + msgspec.json.encode(graph.specs[arg.v])
        else:
            yield hashes[place] + (arg.v - nodes[place].first).to_bytes(4, "little")
    elif isinstance(arg, f.ListArg):
        yield b"["
        for item in arg.items:
            yield from _parts(graph, nodes, maker, hashes, item)
        yield b"]"
    else:
        yield msgspec.json.encode(arg)


def _backward(
    graph: ModelGraph,
    nodes: Sequence[IRNode],
    maker: dict[int, int],
    forward: list[bytes],
    wanted: set[int],
    mutations: Sequence[tuple[int, int]],
) -> list[bytes]:
    uses: list[list[bytes]] = [[] for _ in nodes]
    for place, node in enumerate(nodes):
        for offset, value in enumerate(node.values):
            if value in wanted:
                uses[place].append(b"out" + offset.to_bytes(4, "little"))
    for target, value in mutations:
        if value in maker:
            uses[maker[value]].append(b"write" + msgspec.json.encode(graph.specs[target]))
    hashes: list[bytes] = [b""] * len(nodes)
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        hashes[place] = blake3(forward[place] + b"".join(sorted(uses[place]))).digest()
        for position, value in enumerate(node.reads()):
            other = maker.get(value)
            if other is not None:
                offset = value - nodes[other].first
                mark = position.to_bytes(4, "little") + offset.to_bytes(4, "little")
                uses[other].append(hashes[place] + mark)
    return hashes


# --- symbols ----------------------------------------------------------------------------------------------------------


class _Symbols:
    """The model's symbols under the fragment's names.

    `given` are symbols that no input tensor has as a whole dimension: they come as sizes.
    """

    def __init__(self, graph: ModelGraph, inputs: Sequence[int], ordered: Sequence[IRNode]) -> None:
        self._graph = graph
        self.names: dict[str, str] = {}
        self.given: list[str] = []
        self._texts: dict[str, str] = {}
        if not graph.symbols:
            return
        plain: set[str] = set()
        for value in inputs:
            for text in spec_texts(graph.specs[value]):
                self._use(text)
                if text in graph.symbols:
                    plain.add(text)
        for node in ordered:
            for arg in (*node.args, *(arg for _, arg in node.kwargs)):
                for text in arg_texts(arg):
                    self._use(text)
            for spec in node.results:
                for text in spec_texts(spec):
                    self._use(text)
        self.given = [name for name in self.names if name not in plain]

    def _use(self, text: str) -> None:
        for name in sorted(symbols_in(text), key=lambda item: (len(item), item)):
            self.names.setdefault(name, f"s{len(self.names)}")

    def text(self, text: str) -> str:
        """A model expression over the fragment's symbols."""
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = rename(text, self._graph.exprs, self.names)
        return known

    def symbols(self) -> tuple[f.Symbol, ...]:
        return tuple(
            f.Symbol(name=new, min=self._graph.symbols[old].min, max=self._graph.symbols[old].max)
            for old, new in self.names.items()
        )

    def constraints(self) -> tuple[str, ...]:
        """Guards of the model over this fragment's symbols alone."""
        mine = [text for text in self._graph.guards if symbols_in(text) <= self.names.keys()]
        return tuple(sorted({self.text(text) for text in mine}))


def rename(text: str, exprs: dict[str, Any], names: dict[str, str]) -> str:
    """An expression with other symbols, spelled anew (order inside a sum depends on names)."""
    import sympy

    expr = exprs[text]
    mapping = {symbol: sympy.Symbol(names[str(symbol)], integer=True, positive=True) for symbol in expr.free_symbols}
    return strip(spell(expr.xreplace(mapping)))
