"""From a captured, lowered and cut entry to its Program: slots, steps, who writes what when."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spyre_build.frontend.canonical import Canonical, canonicalise
from spyre_build.frontend.capture import Captured, GraphResult, InputBinding, WeightBinding
from spyre_build.frontend.cutting import Cut, cut, readers_of
from spyre_build.frontend.ir import IRNode, ModelGraph, symbols_in
from spyre_build.frontend.structure import argument_stride
from spyre_cache.objects import fragment as f
from spyre_cache.objects import program as p
from spyre_runtime.plain import to_plain
from spyre_runtime.vocabulary import DTYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from spyre_build.frontend.partition import BlockPartition
    from spyre_build.frontend.weightless import Weight, WeightTable
    from spyre_build.spec import Entry
    from spyre_cache.digest import Digest


@dataclass
class FragmentPool:
    """Distinct fragments of a model, in order of first use, each with where it came from."""

    fragments: list[f.Fragment] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)
    origins: list[tuple[f.NodeOrigin, ...]] = field(default_factory=list)
    _index: dict[str, int] = field(default_factory=dict)

    def add(self, canonical: Canonical, graph: ModelGraph) -> int:
        """The index of a fragment; a new one gets the next."""
        digest = canonical.fragment.digest()
        known = self._index.get(digest.hash)
        if known is not None:
            return known
        self._index[digest.hash] = len(self.fragments)
        self.fragments.append(canonical.fragment)
        self.digests.append(digest)
        self.origins.append(tuple(_origin(graph.nodes[index]) for index in canonical.order))
        return len(self.fragments) - 1


def _origin(node: IRNode) -> f.NodeOrigin:
    return f.NodeOrigin(module=node.calls[-1][0] if node.calls else "", op=node.op, source=node.source)


# --- slots ------------------------------------------------------------------------------------------------------------


class _Slots:
    """Places of one program: one for each model value that crosses a region's edge."""

    def __init__(self, graph: ModelGraph) -> None:
        self._graph = graph
        self.slots: list[p.Slot] = []
        self.of_value: dict[int, int] = {}
        self._of_name: dict[str, int] = {}
        self._of_symbol: dict[str, int] = {}

    def weight(self, weight: Weight, *, written: bool) -> int:
        known = self._of_name.get(weight.name)
        if known is not None:
            return known
        kind = "state" if written else _SLOT_KINDS[weight.kind]
        self._of_name[weight.name] = self._add(
            p.Slot(kind=kind, name=weight.name, spec=tensor_spec(weight.tensor))  # type: ignore[arg-type]
        )
        return self._of_name[weight.name]

    def argument(self, value: int) -> int:
        return self._bind(value, p.Slot(kind="input", spec=self._graph.specs[value]))

    def loose_argument(self, spec: f.TensorSpec) -> int:
        return self._add(p.Slot(kind="input", spec=spec))

    def temp(self, value: int, aliased: int | None) -> int:
        return self._bind(value, p.Slot(kind="temp", spec=self._graph.specs[value], aliased=aliased))

    def symbol(self, name: str) -> int:
        if name not in self._of_symbol:
            self._of_symbol[name] = self._add(p.Slot(kind="symint", spec=f.SymSpec(kind="int", expr=name)))
        return self._of_symbol[name]

    def bind(self, value: int, slot: int) -> None:
        self.of_value[value] = slot

    def _bind(self, value: int, slot: p.Slot) -> int:
        self.of_value[value] = self._add(slot)
        return self.of_value[value]

    def _add(self, slot: p.Slot) -> int:
        self.slots.append(slot)
        return len(self.slots) - 1


_SLOT_KINDS = {"parameter": "weight", "buffer": "buffer", "constant": "const"}


def tensor_spec(tensor: torch.Tensor) -> f.TensorSpec:
    """Dtype, shape and strides of a tensor as a record."""
    return f.TensorSpec(dtype=DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape), stride=tuple(tensor.stride()))


def argument_spec(tensor: torch.Tensor) -> f.TensorSpec:
    """An argument as a record, with the strides it is expected with."""
    return f.TensorSpec(dtype=DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape), stride=argument_stride(tensor))


@dataclass(frozen=True)
class Captive:
    """One entry on its way to a program.

    Attributes:
        name: the entry's; `bucket` the sizes that it was made for.
        graph: its inputs are the captured graph's placeholders, then `constants`.
        sizes: expressions of the sizes that the result holds as Python integers.
    """

    name: str
    bucket: Mapping[str, int]
    module: nn.Module
    entry: Entry
    captured: Captured
    graph: ModelGraph
    constants: list[torch.Tensor]
    sizes: list[str]


def assemble(captive: Captive, table: WeightTable, partition: BlockPartition, pool: FragmentPool) -> p.Program:
    """Cuts one entry's graph, adds its fragments to the pool and wires them.

    Args:
        captive: the entry.
        table: the model's tensors.
        partition: how to cut.
        pool: takes the fragments; those that other entries brought are shared.
    """
    module, entry, captured, graph = captive.module, captive.entry, captive.captured, captive.graph
    parts = cut(graph, partition)
    graph = parts.graph
    slots = _Slots(graph)
    written = {target for target, _ in graph.mutations}
    arguments = _bind_inputs(captive, graph, table, slots, written)
    steps = _steps(parts, slots, pool)
    output, kept = _output(captured, graph, slots, arguments, captive.sizes)
    writebacks = tuple(
        p.WriteBack(target=slots.of_value[target], source=slots.of_value[value]) for target, value in parts.late
    )
    keep = kept | {back.source for back in writebacks} | {back.target for back in writebacks}
    return p.Program(
        name=captive.name,
        bucket=tuple(sorted(captive.bucket.items())),
        parameters=_parameters(module, entry),
        defaults=_defaults(module, entry),
        input_args=captured.args_tree,
        input_kwargs=captured.kwargs_tree,
        arguments=_arguments(captured, module, entry, arguments),
        slots=tuple(slots.slots),
        symbols=_symbol_sources(graph, slots, arguments),
        guards=_guards(graph, captured, module, entry, arguments, slots),
        steps=_with_frees(steps, slots.slots, keep),
        writebacks=writebacks,
        mutated_inputs=tuple(
            sorted(slots.of_value[t] for t in written if slots.slots[slots.of_value[t]].kind == "input")
        ),
        output=output,
        capture=captured.kind,
    )


def _bind_inputs(
    captive: Captive, graph: ModelGraph, table: WeightTable, slots: _Slots, written: set[int]
) -> dict[int, int]:
    """Slots for the graph's inputs; gives the slot of each tensor leaf of the arguments that is used."""
    used = {value for node in graph.nodes for value in node.reads()} | {v for v in graph.outputs if v is not None}
    used |= written | {value for _, value in graph.mutations}
    captured = captive.captured
    of_leaf: dict[int, int] = {}
    for value, binding in enumerate(captured.bindings):
        if isinstance(binding, InputBinding):
            if value in used:
                of_leaf[binding.leaf] = slots.argument(value)
        elif isinstance(binding, WeightBinding) and value in used:
            slots.bind(value, slots.weight(binding.weight, written=value in written))
    for place, tensor in enumerate(captive.constants):
        value = len(captured.bindings) + place
        if value in used:
            slots.bind(value, slots.weight(table.add_constant(tensor), written=value in written))
    for leaf in captured.results:
        if isinstance(leaf, InputBinding) and leaf.leaf not in of_leaf:
            of_leaf[leaf.leaf] = slots.loose_argument(argument_spec(captured.leaves.tensors[leaf.leaf]))
    return of_leaf


def _steps(parts: Cut, slots: _Slots, pool: FragmentPool) -> list[p.Step]:
    graph = parts.graph
    readers = readers_of(graph, parts.regions)
    late = {value for _, value in parts.late}
    steps: list[p.Step] = []
    for place, indices in enumerate(parts.regions):
        made = [value for index in indices for value in graph.nodes[index].values]
        wanted = {value for value in made if value in late or any(r > place for r in readers.get(value, ()))}
        canonical = canonicalise(graph, indices, wanted, parts.sunk[place])
        inputs = tuple(
            slots.symbol(value) if isinstance(value, str) else slots.of_value[value] for value in canonical.inputs
        )
        outputs = []
        for value, output in zip(canonical.outputs, canonical.fragment.graph.outputs, strict=True):
            aliased = None if output.alias_of is None else inputs[output.alias_of]
            outputs.append(slots.temp(value, aliased))
        steps.append(p.Step(fragment=pool.add(canonical, graph), inputs=inputs, outputs=tuple(outputs)))
    return steps


def _with_frees(steps: list[p.Step], slots: list[p.Slot], keep: set[int]) -> tuple[p.Step, ...]:
    last: dict[int, int] = {}
    for place, step in enumerate(steps):
        for slot in (*step.inputs, *step.outputs):
            last[slot] = place
    frees: list[list[int]] = [[] for _ in steps]
    for slot, place in last.items():
        if slots[slot].kind == "temp" and slot not in keep:
            frees[place].append(slot)
    return tuple(
        p.Step(fragment=step.fragment, inputs=step.inputs, outputs=step.outputs, frees=tuple(sorted(dead)))
        for step, dead in zip(steps, frees, strict=True)
    )


# --- results ----------------------------------------------------------------------------------------------------------


def _output(
    captured: Captured, graph: ModelGraph, slots: _Slots, of_leaf: dict[int, int], sizes: list[str]
) -> tuple[p.Tree, set[int]]:
    """The result's tree over slots, and the slots it needs."""
    kept: set[int] = set()
    leaves: dict[int, p.Tree] = {}
    for place, leaf in enumerate(captured.results):
        if isinstance(leaf, GraphResult):
            value = graph.outputs[leaf.index]
            if value is None:
                leaves[place] = p.Plain(type="none")
                continue
            slot = slots.of_value[value]
        elif isinstance(leaf, InputBinding):
            slot = of_leaf[leaf.leaf]
        else:
            slot = slots.weight(leaf.weight, written=False)
        kept.add(slot)
        leaves[place] = p.Leaf(v=slot)
    return _map_tree(captured.output, leaves, sizes), kept


def _map_tree(tree: p.Tree, leaves: dict[int, p.Tree], sizes: list[str]) -> p.Tree:
    match tree:
        case p.Leaf(v=number):
            return leaves[number]
        case p.SymLeaf(expr=number):
            text = sizes[int(number)]
            return p.Plain(type="int", v=int(text)) if text.lstrip("-").isdecimal() else p.SymLeaf(expr=text)
        case p.ListTree(items=items):
            return p.ListTree(items=tuple(_map_tree(item, leaves, sizes) for item in items))
        case p.TupleTree(items=items):
            return p.TupleTree(items=tuple(_map_tree(item, leaves, sizes) for item in items))
        case p.DictTree(keys=keys, items=items, cls=cls):
            return p.DictTree(keys=keys, items=tuple(_map_tree(item, leaves, sizes) for item in items), cls=cls)
        case p.ObjectTree():
            items = tuple(_map_tree(item, leaves, sizes) for item in tree.items)
            return p.ObjectTree(kind=tree.kind, cls=tree.cls, fields=tree.fields, items=items)
        case _:
            return tree


# --- arguments --------------------------------------------------------------------------------------------------------


def _signature(module: nn.Module, entry: Entry) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(getattr(module, entry.method)).parameters.values())
    except (TypeError, ValueError):  # a callable without a signature: arguments are taken as they were given
        return []


def _parameters(module: nn.Module, entry: Entry) -> tuple[tuple[str, str], ...]:
    return tuple((parameter.name, parameter.kind.name) for parameter in _signature(module, entry))


def _defaults(module: nn.Module, entry: Entry) -> tuple[tuple[str, p.Plain], ...]:
    found = []
    for parameter in _signature(module, entry):
        if parameter.default is not inspect.Parameter.empty:
            plain = to_plain(parameter.default)
            if plain is not None:
                found.append((parameter.name, plain))
    return tuple(found)


def labels(captured: Captured, module: nn.Module, entry: Entry) -> list[str]:
    """What errors call each tensor leaf: the parameter's name, then the path inside it."""
    positional = [
        parameter.name
        for parameter in _signature(module, entry)
        if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    found = []
    for path in captured.leaves.paths:
        where, _, rest = path.partition(".")
        if where == "args":
            index, dot, inner = rest.partition(".")
            place = int(index)
            found.append((positional[place] if place < len(positional) else f"args.{index}") + dot + inner)
        else:
            found.append(rest)
    return found


def _arguments(captured: Captured, module: nn.Module, entry: Entry, of_leaf: dict[int, int]) -> tuple[p.Argument, ...]:
    names = labels(captured, module, entry)
    return tuple(
        p.Argument(path=path, label=names[leaf], slot=of_leaf.get(leaf))
        if leaf in of_leaf
        else p.Argument(path=path, label=names[leaf], unused=argument_spec(captured.leaves.tensors[leaf]))
        for leaf, path in enumerate(captured.leaves.paths)
    )


def _symbol_sources(graph: ModelGraph, slots: _Slots, of_leaf: dict[int, int]) -> tuple[p.SymbolSource, ...]:
    """Where each symbol is read: the first argument that has it as a whole dimension."""
    found: dict[str, p.SymbolSource] = {}
    for slot in of_leaf.values():
        spec = slots.slots[slot].spec
        if not isinstance(spec, f.TensorSpec):
            continue
        for dim, size in enumerate(spec.shape):
            if isinstance(size, str) and size in graph.symbols and size not in found:
                found[size] = p.SymbolSource(symbol=graph.symbols[size], slot=slot, dim=dim)
    return tuple(found[name] for name in sorted(found, key=lambda item: (len(item), item)))


def _guards(
    graph: ModelGraph,
    captured: Captured,
    module: nn.Module,
    entry: Entry,
    of_leaf: dict[int, int],
    slots: _Slots,
) -> tuple[p.Guard, ...]:
    names = labels(captured, module, entry)
    spelled: dict[str, str] = {}
    for leaf, slot in of_leaf.items():
        spec = slots.slots[slot].spec
        if isinstance(spec, f.TensorSpec):
            for dim, size in enumerate(spec.shape):
                if isinstance(size, str) and size in graph.symbols:
                    spelled.setdefault(size, f"{names[leaf]}.shape[{dim}]")
    guards = []
    for expr in graph.guards:
        text = expr
        for name in sorted(symbols_in(expr), key=len, reverse=True):
            text = text.replace(name, spelled.get(name, name))
        guards.append(p.Guard(expr=expr, text=text))
    return tuple(guards)
