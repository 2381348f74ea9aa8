"""Where a model is cut: at calls of repeated blocks, found from the module calls that each node carries.

A pass with a text form, `blocks(max-nodes=600,min-nodes=3)`. Its result is a list of regions, each a list of node
indices; regions follow each other in topological order and cover every node once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from spyre_build.errors import PartitionError
from spyre_cache.objects.fragment import Ref

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spyre_build.frontend.ir import IRNode, ModelGraph

_TEXT = re.compile(r"blocks(?:\(([a-z0-9=,-]*)\))?")
_PAYS = 0.8
"""Cutting a block further pays when it leaves at most this share of the nodes to compile."""


@dataclass(frozen=True)
class BlockPartition:
    """The pass.

    Attributes:
        max_nodes: a region with more nodes is cut where the fewest values cross.
        min_nodes: a module call with fewer nodes is no block.
    """

    max_nodes: int = 600
    min_nodes: int = 3

    @classmethod
    def parse(cls, text: str) -> BlockPartition:
        """Reads the text form; options left out have their defaults.

        Raises:
            PartitionError: not of this form, or a number out of range.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise PartitionError(f"a partition is written {cls()}, but {text[:80]!r} came")
        values: dict[str, int] = {}
        known = {item.name.replace("_", "-"): item.name for item in fields(cls)}
        for part in filter(None, (match[1] or "").split(",")):
            name, _, number = part.partition("=")
            if name not in known or not number.isdecimal() or not 1 <= int(number) <= 1_000_000:
                raise PartitionError(f"partition option {part!r} is none of {', '.join(known)} with a positive number")
            values[known[name]] = int(number)
        return cls(**values)

    def __str__(self) -> str:
        inside = ",".join(f"{item.name.replace('_', '-')}={getattr(self, item.name)}" for item in fields(self))
        return f"blocks({inside})"

    def regions(self, graph: ModelGraph) -> list[list[int]]:
        """Cuts a graph. Deterministic: the same graph gives the same regions anywhere."""
        if not graph.nodes:
            return []
        signatures = [_signature(node) for node in graph.nodes]
        labels = _labels(graph.nodes, signatures, self.min_nodes)
        runs = _runs(labels)
        runs = _gather_rests(graph, runs)
        runs = _merge_slivers(graph, runs, signatures, self.min_nodes)
        return [part for _, indices in runs for part in _split(graph, indices, self.max_nodes)]


# --- blocks -----------------------------------------------------------------------------------------------------------


@dataclass
class _Call:
    """A module call in the tree of calls."""

    name: str
    kind: str
    nodes: list[int] = field(default_factory=list)
    children: dict[str, _Call] = field(default_factory=dict)

    def digest(self, signatures: list[bytes]) -> bytes:
        hasher = blake3()
        for index in self.nodes:
            hasher.update(signatures[index])
        return hasher.digest()


def _call_tree(nodes: list[IRNode]) -> _Call:
    root = _Call("", "")
    for index, node in enumerate(nodes):
        here = root
        here.nodes.append(index)
        for _, kind, name in node.calls:
            here = here.children.setdefault(name, _Call(name, kind))
            here.nodes.append(index)
    return root


def _signature(node: IRNode) -> bytes:
    """What a node computes, apart from where its operands come from."""
    hasher = blake3(node.op.encode())
    for arg in (*node.args, *(arg for _, arg in node.kwargs)):
        hasher.update(b"ref" if isinstance(arg, Ref) else msgspec.json.encode(arg))
    hasher.update(msgspec.json.encode(node.results))
    return hasher.digest()


def _labels(nodes: list[IRNode], signatures: list[bytes], min_nodes: int) -> list[str]:
    """For each node the block call it belongs to, or nothing."""
    labels = [""] * len(nodes)
    blocks = _choose(_call_tree(nodes), signatures, min_nodes)
    for block in blocks:
        for index in block.nodes:
            labels[index] = block.name
    return labels


def _choose(call: _Call, signatures: list[bytes], min_nodes: int) -> list[_Call]:
    """Blocks below a call: siblings of one class, at the level where the least is left to compile."""
    groups: dict[str, list[_Call]] = {}
    for child in call.children.values():
        groups.setdefault(child.kind, []).append(child)
    chosen: list[_Call] = []
    for group in groups.values():
        inner = [_choose(child, signatures, min_nodes) for child in group]
        if _is_group(group, min_nodes) and not _pays_to_descend(group, inner, signatures):
            chosen.extend(group)
        else:
            chosen.extend(block for blocks in inner for block in blocks)
    return chosen


def _is_group(group: list[_Call], min_nodes: int) -> bool:
    return len(group) >= 2 and all(child.children and len(child.nodes) >= min_nodes for child in group)


def _pays_to_descend(group: list[_Call], inner: list[list[_Call]], signatures: list[bytes]) -> bool:
    if not any(inner):
        return False
    distinct = {child.digest(signatures): (child, blocks) for child, blocks in zip(group, inner, strict=True)}
    if 3 * len(distinct) <= len(group):
        return False  # repeated often enough as it is
    whole = sum(len(child.nodes) for child, _ in distinct.values())
    pieces = {block.digest(signatures): len(block.nodes) for _, blocks in distinct.values() for block in blocks}
    rest = sum(len(child.nodes) - sum(len(b.nodes) for b in blocks) for child, blocks in distinct.values())
    return sum(pieces.values()) + rest <= _PAYS * whole


# --- runs -------------------------------------------------------------------------------------------------------------

_Run = tuple[str, list[int]]


def _runs(labels: list[str]) -> list[_Run]:
    """Contiguous runs of one label; a gap inside one block call belongs to the block."""
    runs: list[_Run] = []
    for index, label in enumerate(labels):
        if runs and runs[-1][0] == label:
            runs[-1][1].append(index)
        elif label and len(runs) >= 2 and not runs[-1][0] and runs[-2][0] == label:
            _, gap = runs.pop()
            runs[-1][1].extend([*gap, index])
        else:
            runs.append((label, [index]))
    return runs


def _gather_rests(graph: ModelGraph, runs: list[_Run]) -> list[_Run]:
    """Moves a run outside of blocks up to the one before it where nothing between is needed, so that they are one."""
    made_in: dict[int, int] = {}
    out: list[_Run] = []
    for label, indices in runs:
        reads = {value for index in indices for value in graph.nodes[index].reads()}
        latest = max((made_in[value] for value in reads if value in made_in), default=-1)
        place = next((k for k in range(len(out) - 1, -1, -1) if not out[k][0] and k >= latest), None)
        if label or place is None:
            out.append((label, list(indices)))
            place = len(out) - 1
        else:
            out[place][1].extend(indices)
        for index in indices:
            for value in graph.nodes[index].values:
                made_in[value] = place
    return out


def _merge_slivers(graph: ModelGraph, runs: list[_Run], signatures: list[bytes], min_nodes: int) -> list[_Run]:
    """Joins a run of a few cheap nodes with a neighbour that nothing else shares."""

    def content(run: _Run) -> bytes:
        return blake3(b"".join(signatures[index] for index in run[1])).digest()

    contents = [content(run) for run in runs]
    shared = [contents.count(mine) > 1 for mine in contents]
    out: list[tuple[str, list[int], bool]] = []
    for (label, indices), is_shared in zip(runs, shared, strict=True):
        sliver = not label and not is_shared and _is_sliver(graph, indices, min_nodes)
        if sliver and out and not out[-1][2]:
            out[-1][1].extend(indices)
        elif out and not is_shared and not out[-1][0] and not out[-1][2] and _is_sliver(graph, out[-1][1], min_nodes):
            _, waiting, _ = out.pop()  # a sliver that found no neighbour before it goes to the one after it
            out.append((label, [*waiting, *indices], False))
        else:
            out.append((label, list(indices), is_shared))
    return [(label, indices) for label, indices, _ in out]


def _is_sliver(graph: ModelGraph, indices: list[int], min_nodes: int) -> bool:
    return len(indices) < min_nodes and all(not _heavy(graph.nodes[index]) for index in indices)


def _heavy(node: IRNode) -> bool:
    name = node.op.partition("::")[2].partition(".")[0]
    return (
        name in {"mm", "bmm", "addmm", "baddbmm", "convolution", "embedding"}
        or "attention" in name
        or (node.op.startswith("higher_order::"))
    )


# --- size -------------------------------------------------------------------------------------------------------------


def _split(graph: ModelGraph, indices: list[int], limit: int) -> Iterator[list[int]]:
    """Cuts a long run where the fewest values cross, in the second half of each stretch of `limit` nodes."""
    while len(indices) > limit:
        crossing = _crossings(graph, indices)
        window = range(max(1, limit // 2), limit + 1)
        cut = min(window, key=lambda position: (crossing[position], -position))
        yield indices[:cut]
        indices = indices[cut:]
    if indices:
        yield indices


def _crossings(graph: ModelGraph, indices: list[int]) -> list[int]:
    """For each position, how many values made before it are read after it (within the run)."""
    position = {index: place for place, index in enumerate(indices)}
    made = {value: position[index] for index in indices for value in graph.nodes[index].values}
    last = dict.fromkeys(made, -1)
    for index in indices:
        for value in graph.nodes[index].reads():
            if value in last:
                last[value] = position[index]
    delta = [0] * (len(indices) + 2)
    for value, start in made.items():
        if last[value] > start:
            delta[start + 1] += 1
            delta[last[value] + 1] -= 1
    out, live = [], 0
    for step in delta[: len(indices) + 1]:
        live += step
        out.append(live)
    return out
