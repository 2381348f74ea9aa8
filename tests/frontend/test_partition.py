"""Where models are cut, on plain graphs that need no torch."""

from __future__ import annotations

import pytest

from spyre_build.errors import PartitionError
from spyre_build.frontend.ir import IRNode, ModelGraph
from spyre_build.frontend.partition import BlockPartition
from spyre_cache.objects.fragment import FloatArg, Ref, TensorSpec

X = TensorSpec(dtype="float32", shape=(2, 3), stride=(3, 1))


class Builder:
    """A chain of operators under module calls."""

    def __init__(self) -> None:
        self.nodes: list[IRNode] = []
        self.next = 1

    def add(self, op: str, *reads: int, calls: tuple[str, ...] = (), kind: str = "Block", extra: float = 0.0) -> int:
        stack = tuple((name.partition("@")[0], f"m.{kind}{depth}", name) for depth, name in enumerate(calls))
        args = (*(Ref(v=value) for value in reads), FloatArg.of(extra))
        self.nodes.append(IRNode(op, args, (), self.next, (X,), "single", calls=stack))
        self.next += 1
        return self.next - 1

    def block(self, value: int, *calls: str, count: int = 4, extra: float = 0.0) -> int:
        for index in range(count):
            inner = (*calls, f"{calls[-1]}.part") if index else calls
            value = self.add(f"aten::op{index}", value, calls=inner, extra=extra)
        return value

    def graph(self, *outputs: int) -> ModelGraph:
        specs = dict.fromkeys(range(self.next), X)
        return ModelGraph([X], self.nodes, list(outputs), [], specs)


def test_repeated_siblings_are_regions_of_their_own() -> None:
    b = Builder()
    value = b.add("aten::embedding", 0)
    for layer in range(3):
        value = b.block(value, f"layers.{layer}")
    value = b.add("aten::mm", value)
    regions = BlockPartition().regions(b.graph(value))
    assert [len(region) for region in regions] == [1, 4, 4, 4, 1]


def test_every_node_is_in_one_region_and_order_is_topological() -> None:
    b = Builder()
    value = b.add("aten::embedding", 0)
    mask = b.add("aten::mask", 0)
    for layer in range(4):
        value = b.block(value, f"layers.{layer}", extra=float(layer))
        value = b.add("aten::add", value, mask)
    graph = b.graph(value)
    regions = BlockPartition().regions(graph)
    flat = [index for region in regions for index in region]
    assert sorted(flat) == list(range(len(graph.nodes)))
    made = set(range(len(graph.inputs)))
    for index in flat:
        assert set(graph.nodes[index].reads()) <= made
        made.update(graph.nodes[index].values)


def test_stages_of_other_shapes_are_cut_at_the_blocks_inside() -> None:
    b = Builder()
    value = 0
    for stage in range(2):
        for block in range(4):
            value = b.block(value, f"stages.{stage}", f"stages.{stage}.blocks.{block}", extra=float(stage))
    regions = BlockPartition().regions(b.graph(value))
    assert [len(region) for region in regions] == [4] * 8


def test_a_tower_called_twice_is_cut_at_its_layers() -> None:
    b = Builder()
    value = 0
    for call in ("tower", "tower@1"):
        for layer in range(6):
            suffix = call.partition("@")[2]
            value = b.block(value, call, f"tower.layers.{layer}" + (f"@{suffix}" if suffix else ""))
    regions = BlockPartition().regions(b.graph(value))
    assert [len(region) for region in regions] == [4] * 12


def test_calls_of_one_module_back_to_back_do_not_melt() -> None:
    b = Builder()
    value = b.block(0, "block")
    value = b.block(value, "block@1")
    assert [len(r) for r in BlockPartition().regions(b.graph(value))] == [4, 4]


def test_rest_that_needs_nothing_between_joins_the_rest_before() -> None:
    b = Builder()
    ids = b.add("aten::mm", 0)
    value = ids
    for layer in range(2):
        value = b.block(value, f"layers.{layer}")
    other = b.add("aten::mm", ids)
    last = b.add("aten::mm", other)
    for layer in range(2, 4):
        value = b.block(value, f"layers.{layer}")
    regions = BlockPartition().regions(b.graph(value, last))
    assert [len(region) for region in regions] == [3, 4, 4, 4, 4]


def test_sliver_between_shared_blocks_stays_alone() -> None:
    b = Builder()
    value = b.block(0, "layers.0")
    value = b.add("aten::gelu", value)
    value = b.block(value, "layers.1")
    assert [len(r) for r in BlockPartition().regions(b.graph(value))] == [4, 1, 4]


def test_sliver_beside_an_unshared_block_joins_it() -> None:
    b = Builder()
    value = b.block(0, "layers.0", extra=1.0)
    value = b.add("aten::gelu", value)
    value = b.block(value, "layers.1", extra=2.0)
    assert [len(r) for r in BlockPartition().regions(b.graph(value))] == [5, 4]


def test_long_run_is_cut_where_fewest_values_cross() -> None:
    b = Builder()
    value = 0
    for _ in range(3):
        wide = [b.add("aten::mul", value) for _ in range(4)]
        value = b.add("aten::cat", *wide)
    regions = BlockPartition(max_nodes=7).regions(b.graph(value))
    assert [len(region) for region in regions] == [5, 5, 5]


def test_text_form_parses_to_what_it_was() -> None:
    partition = BlockPartition(max_nodes=50, min_nodes=7)
    assert BlockPartition.parse(str(partition)) == partition
    assert BlockPartition.parse("blocks") == BlockPartition()


@pytest.mark.parametrize(
    "text", ["", "block", "blocks(max-nodes=0)", "blocks(size=3)", "blocks(max-nodes=x)", "blocks()x"]
)
def test_malformed_text_form_is_refused(text: str) -> None:
    with pytest.raises(PartitionError, match="partition"):
        BlockPartition.parse(text)


def test_empty_graph_has_no_regions() -> None:
    assert BlockPartition().regions(ModelGraph([X], [], [0], [], {0: X})) == []
