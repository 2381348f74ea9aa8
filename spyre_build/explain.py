"""Why an action is not the one in the cache: a diff of two stored documents, down to one argument of one operator.

Pure: documents in, differences out. What is nearest is decided by the fewest and mildest differences.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal

from spyre_build.spelling import Spelling, readable_op, shown_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import msgspec

    from spyre_cache.objects.action import Action
    from spyre_cache.objects.fragment import Fragment, Graph, Node

    ArgumentName = Callable[[str, int], str]

Area = Literal["toolchain", "target", "options", "salt", "inputs", "nodes", "outputs", "symbols"]

MAX_SHOWN = 50
MAX_ALIGNED_NODES = 4000


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One ingredient that differs; `text` says it whole, `before` and `after` are its two values."""

    area: Area
    where: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """`layer norm epsilon 1e-05 → 1e-06 in node 12 aten::native_layer_norm`."""
        if not self.before:
            return f"{self.where}: {self.after} added"
        if not self.after:
            return f"{self.where}: {self.before} gone"
        name, _, place = self.where.partition(" in ")
        return f"{name} {self.before} → {self.after}" + (f" in {place}" if place else "")

    def as_json(self) -> dict[str, str]:
        """For `--json`."""
        return {"area": self.area, "where": self.where, "before": self.before, "after": self.after, "text": self.text}


def diff_actions(
    before: Action,
    after: Action,
    fragment_of: Callable[[str], Fragment] | None = None,
    argument_name: ArgumentName | None = None,
) -> tuple[Difference, ...]:
    """What differs between two actions, compiler first.

    Args:
        before: the one that is in the cache.
        after: the one that was asked for.
        fragment_of: gives the fragment of a digest's hex hash; without it, fragments are only said to differ.
        argument_name: gives the name of an operator's positional argument, or an empty string.
    """
    found = [
        *_fields("toolchain", before.toolchain, after.toolchain),
        *_fields("target", before.target, after.target),
        *_options(dict(before.options), dict(after.options)),
    ]
    if before.salt != after.salt:
        found.append(Difference(area="salt", where="tenant", before=before.salt or "none", after=after.salt or "none"))
    if before.fragment != after.fragment:
        if fragment_of is None:
            found.append(
                Difference(area="nodes", where="fragment", before=before.fragment.short, after=after.fragment.short)
            )
        else:
            one, other = fragment_of(before.fragment.hash), fragment_of(after.fragment.hash)
            found += diff_fragments(one, other, argument_name)
    return tuple(found)


def _fields(area: Literal["toolchain", "target"], before: msgspec.Struct, after: msgspec.Struct) -> list[Difference]:
    found = []
    for name in before.__struct_fields__:
        one, other = getattr(before, name), getattr(after, name)
        if one == other or name in {"schema", "kind"}:
            continue
        label = _LABELS.get(name, name.replace("_", " "))
        if isinstance(one, tuple):
            gone, added = [v for v in one if v not in other], [v for v in other if v not in one]
            # The same words in another order are shown whole.
            one, other = (gone, added) if gone or added else (one, other)
            one, other = " ".join(one), " ".join(other)
        found.append(Difference(area=area, where=label, before=_short(str(one)), after=_short(str(other))))
    return found


_LABELS = {
    "torch_git": "torch revision",
    "torch_sources": "torch's compiler sources",
    "backend_sources": "sources of the back end",
    "cxx": "C++ compiler",
    "flags": "compiler flags",
    "name": "target",
    "isa": "instruction set",
    "features": "CPU features",
}


def _short(text: str) -> str:
    if len(text) == 64 and not set(text) - set("0123456789abcdef"):
        return text[:12]
    return text if len(text) <= 160 else text[:159] + "…"


def _options(before: dict[str, str], after: dict[str, str]) -> list[Difference]:
    return [
        Difference(
            area="options", where=f"option {name}", before=before.get(name, "default"), after=after.get(name, "default")
        )
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def diff_fragments(before: Fragment, after: Fragment, argument_name: ArgumentName | None = None) -> list[Difference]:
    """What differs between two graphs: inputs, operators and their arguments, outputs, symbols; at most `MAX_SHOWN`."""
    found: list[Difference] = []
    if before.opset != after.opset:
        found.append(Difference(area="nodes", where="opset", before=str(before.opset), after=str(after.opset)))
    for name in ("symbols", "constraints"):
        one = [_symbol(s) for s in getattr(before, name)]
        other = [_symbol(s) for s in getattr(after, name)]
        found += _sequences("symbols", name.removesuffix("s"), one, other)
    found += _diff_graphs(before.graph, after.graph, argument_name)
    if len(found) > MAX_SHOWN:
        rest = len(found) - MAX_SHOWN
        found = [*found[:MAX_SHOWN], Difference(area="nodes", where="and", before="", after=f"{rest} more differences")]
    return found


def _symbol(symbol: object) -> str:
    name = getattr(symbol, "name", None)
    if name is None:
        return str(symbol)
    high = getattr(symbol, "max", None)
    return f"{name} in [{getattr(symbol, 'min', '')}, {'∞' if high is None else high}]"


def _sequences(area: Area, label: str, before: Sequence[str], after: Sequence[str]) -> list[Difference]:
    """Differences of two lists whose members have no identity of their own."""
    found = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for k in range(max(i2 - i1, j2 - j1)):
            one = before[i1 + k] if i1 + k < i2 else ""
            other = after[j1 + k] if j1 + k < j2 else ""
            index = i1 + k if one else j1 + k
            found.append(Difference(area=area, where=f"{label} {index}", before=one, after=other))
    return found


def _diff_graphs(before: Graph, after: Graph, argument_name: ArgumentName | None) -> list[Difference]:
    found = _sequences(
        "inputs",
        "input",
        [f"{i.kind} {shown_spec(i.spec)}" for i in before.inputs],
        [f"{i.kind} {shown_spec(i.spec)}" for i in after.inputs],
    )
    # Values are numbered through the graph, so one inserted node renumbers all after it: compare them by where they
    # came from, through the alignment.
    same: dict[int, int] = {i: i for i in range(min(len(before.inputs), len(after.inputs)))}
    numbers = (_first_results(before), _first_results(after))
    for index, other in _aligned([n.op for n in before.nodes], [n.op for n in after.nodes]):
        if index is not None and other is not None:
            one_node, other_node = before.nodes[index], after.nodes[other]
            found += _diff_nodes(index, one_node, other_node, same, argument_name)
            for k in range(min(len(one_node.results), len(other_node.results))):
                same[numbers[0][index] + k] = numbers[1][other] + k
        elif index is not None:
            found.append(Difference(area="nodes", where=f"node {index}", before=before.nodes[index].op, after=""))
        elif other is not None:
            found.append(Difference(area="nodes", where=f"node {other}", before="", after=after.nodes[other].op))
    spell = (Spelling(same), Spelling())
    found += _sequences(
        "outputs",
        "output",
        [f"{spell[0].value(o.v)}{_alias(o.alias_of)}" for o in before.outputs],
        [f"{spell[1].value(o.v)}{_alias(o.alias_of)}" for o in after.outputs],
    )
    found += _sequences(
        "outputs",
        "write to input",
        [f"{m.input} ← {spell[0].value(m.v)}" for m in before.mutations],
        [f"{m.input} ← {spell[1].value(m.v)}" for m in after.mutations],
    )
    return found


def _alias(of: int | None) -> str:
    return "" if of is None else f" sharing input {of}"


def _first_results(graph: Graph) -> list[int]:
    numbers, value = [], len(graph.inputs)
    for node in graph.nodes:
        numbers.append(value)
        value += len(node.results)
    return numbers


def _aligned(before: Sequence[str], after: Sequence[str]) -> Iterable[tuple[int | None, int | None]]:
    """Pairs of indices of nodes that correspond; one side is None for a node that the other graph lacks."""
    head = 0
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    yield from ((i, i) for i in range(head))
    one, other = before[head : len(before) - tail], after[head : len(after) - tail]
    # The matcher takes quadratic time in the worst case; autojunk makes it coarse, but quick, on the very large.
    large = max(len(one), len(other)) > MAX_ALIGNED_NODES
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, one, other, autojunk=large).get_opcodes():
        if tag == "equal":
            yield from ((head + i1 + k, head + j1 + k) for k in range(i2 - i1))
        else:
            both = min(i2 - i1, j2 - j1) if tag == "replace" else 0
            yield from ((head + i1 + k, head + j1 + k) for k in range(both))
            yield from ((i, None) for i in range(head + i1 + both, head + i2))
            yield from ((None, j) for j in range(head + j1 + both, head + j2))
    yield from ((len(before) - tail + k, len(after) - tail + k) for k in range(tail))


def _diff_nodes(
    index: int, before: Node, after: Node, same: dict[int, int], argument_name: ArgumentName | None
) -> list[Difference]:
    place = f"node {index} {before.op.partition('.')[0]}"
    if before.op != after.op:
        return [Difference(area="nodes", where=f"operator in node {index}", before=before.op, after=after.op)]
    found = []
    one, other = Spelling(same), Spelling()
    for position in range(max(len(before.args), len(after.args))):
        mine = one.argument(before.args[position]) if position < len(before.args) else "default"
        theirs = other.argument(after.args[position]) if position < len(after.args) else "default"
        if mine != theirs:
            name = argument_name(before.op, position) if argument_name else ""
            label = f"{readable_op(before.op)} {_ARGUMENTS.get(name, name) or f'argument {position}'}"
            found.append(Difference(area="nodes", where=f"{label} in {place}", before=mine, after=theirs))
    mine_kw = {k: one.argument(v) for k, v in before.kwargs}
    theirs_kw = {k: other.argument(v) for k, v in after.kwargs}
    for name in sorted(mine_kw.keys() | theirs_kw.keys()):
        mine, theirs = mine_kw.get(name, "default"), theirs_kw.get(name, "default")
        if mine != theirs:
            label = f"{readable_op(before.op)} {_ARGUMENTS.get(name, name)}"
            found.append(Difference(area="nodes", where=f"{label} in {place}", before=mine, after=theirs))
    shapes = [shown_spec(r) for r in before.results], [shown_spec(r) for r in after.results]
    if shapes[0] != shapes[1]:
        where = f"{readable_op(before.op)} result in {place}"
        found.append(Difference(area="nodes", where=where, before=", ".join(shapes[0]), after=", ".join(shapes[1])))
    return found


_ARGUMENTS = {"eps": "epsilon", "dim": "dimension", "dims": "dimensions", "p": "probability", "self": "input"}


def distance(before: Action, after: Action, ops: Callable[[str], Counter[str]]) -> tuple[int, int]:
    """How far an action is from another: differing operators and inputs first, then other ingredients.

    Args:
        before: one action.
        after: the other.
        ops: gives the multiset of a fragment's features by its digest's hex hash (see `features`).
    """
    other = sum(getattr(before.toolchain, n) != getattr(after.toolchain, n) for n in before.toolchain.__struct_fields__)
    other += 2 * (before.target != after.target) + (before.options != after.options) + (before.salt != after.salt)
    if before.fragment == after.fragment:
        return (0, other)
    one, two = ops(before.fragment.hash), ops(after.fragment.hash)
    return (1 + ((one - two) + (two - one)).total(), other)


def features(fragment: Fragment) -> Counter[str]:
    """What a fragment is made of, counted: operators with their constant arguments, and inputs."""
    spell = Spelling(numbered=False)
    graph = fragment.graph
    found = Counter(f"{n.op}({', '.join(map(spell.argument, n.args))})" for n in graph.nodes)
    found.update(n.op for n in graph.nodes)
    found.update(f"{i.kind} {shown_spec(i.spec)}" for i in graph.inputs)
    return found


def nearest(wanted: Action, candidates: Iterable[Action], ops: Callable[[str], Counter[str]]) -> Action | None:
    """The candidate that differs least from `wanted`, or None when nothing is comparable.

    Another target's artifact of the same fragment is nearer than another fragment; a fragment that shares less than
    half of its features with the wanted one is not called near at all.
    """
    best: tuple[tuple[int, int], str] | None = None
    found: Action | None = None
    for candidate in candidates:
        away = distance(candidate, wanted, ops)
        # The key breaks ties, so that the answer does not depend on the order of the listing.
        rank = (away, candidate.key())
        if (
            (best is None or rank < best)
            and candidate != wanted
            and (away[0] <= 4 or away[0] <= ops(wanted.fragment.hash).total())
        ):
            best, found = rank, candidate
    return found
