"""Regions of a model's graph, and where its inputs are written: in a region, or after the last."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spyre_build.frontend.ir import IRNode, ModelGraph, map_arg
from spyre_cache.objects import fragment as f

if TYPE_CHECKING:
    from spyre_build.frontend.partition import BlockPartition


@dataclass(frozen=True)
class Cut:
    """A graph cut into regions, with the write-backs that go along in a region and those left for the end."""

    graph: ModelGraph
    regions: list[list[int]]
    sunk: list[list[tuple[int, int]]]
    late: list[tuple[int, int]]


def cut(graph: ModelGraph, partition: BlockPartition) -> Cut:
    """Partitions and decides where inputs are written.

    A write goes into the region that makes its value when no later region and no output still needs the old contents;
    then readers outside take the input itself instead of a second copy of the value.
    """
    graph = _freeze_old_outputs(graph)
    regions = partition.regions(graph)
    region_of = {
        value: place for place, indices in enumerate(regions) for i in indices for value in graph.nodes[i].values
    }
    readers = readers_of(graph, regions)
    root = _roots(graph)
    family: dict[int, list[int]] = {}
    for value, top in root.items():
        family.setdefault(top, []).append(value)
    sunk: list[list[tuple[int, int]]] = [[] for _ in regions]
    late: list[tuple[int, int]] = []
    same: dict[int, int] = {}
    for target, written in graph.mutations:
        home = region_of.get(written)
        last = max((max(readers.get(member, [-1])) for member in family.get(target, [target])), default=-1)
        if home is None or last > home:
            late.append((target, written))
            continue
        sunk[home].append((target, written))
        if graph.specs[target] == graph.specs[written]:
            same[written] = target
    graph = _read_inputs_instead(graph, regions, region_of, same)
    return Cut(graph, regions, sunk, late)


def _roots(graph: ModelGraph) -> dict[int, int]:
    root = {number: number for number in range(len(graph.inputs))}
    for node in graph.nodes:
        for value in node.values:
            root[value] = root[node.aliases[0]] if node.aliases else value
    return root


def readers_of(graph: ModelGraph, regions: list[list[int]]) -> dict[int, list[int]]:
    """Regions that read each value; outputs count as a region after the last."""
    readers: dict[int, list[int]] = {}
    for place, indices in enumerate(regions):
        for index in indices:
            for value in graph.nodes[index].reads():
                readers.setdefault(value, []).append(place)
    for result in graph.outputs:
        if result is not None:
            readers.setdefault(result, []).append(len(regions))
    return readers


def _freeze_old_outputs(graph: ModelGraph) -> ModelGraph:
    """An output that shows the old contents of an input that is written becomes a copy."""
    root = _roots(graph)
    written = {target for target, _ in graph.mutations}
    nodes, specs, outputs = list(graph.nodes), dict(graph.specs), list(graph.outputs)
    number = max(specs, default=-1) + 1
    for place, value in enumerate(outputs):
        if value is None or root[value] not in written:
            continue
        spec = specs[value]
        nodes.append(
            IRNode(op="aten::clone", args=(f.Ref(v=value),), kwargs=(), first=number, results=(spec,), pack="single")
        )
        specs[number] = spec
        outputs[place] = number
        number += 1
    return replace(graph, nodes=nodes, specs=specs, outputs=outputs)


def _read_inputs_instead(
    graph: ModelGraph, regions: list[list[int]], region_of: dict[int, int], same: dict[int, int]
) -> ModelGraph:
    """Regions after the one that writes an input read that input, not the value written."""
    if not same:
        return graph
    nodes = list(graph.nodes)
    for place, indices in enumerate(regions):

        def value_here(value: int, here: int = place) -> int:
            return same[value] if value in same and region_of[value] < here else value

        for index in indices:
            node = nodes[index]
            if any(value_here(value) != value for value in node.reads()):
                nodes[index] = replace(
                    node,
                    args=tuple(map_arg(arg, value_here, str) for arg in node.args),
                    kwargs=tuple((name, map_arg(arg, value_here, str)) for name, arg in node.kwargs),
                    aliases=tuple(value_here(value) for value in node.aliases),
                )
    # Results stay values of their own: where eager gives the argument itself, the capture says so.
    return replace(graph, nodes=nodes)
