"""What a text must be before it is walked: types, shapes and sets that agree, and operations used as they are meant."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from xdsl.dialects.builtin import AffineMapAttr, MemRefType, TensorType
from xdsl.dialects.linalg import ops as linalg

from spyre_runtime.ktir import dialect
from spyre_runtime.ktir.affine import box_sizes
from spyre_runtime.ktir.compute import dtype_of, loops_of, shape_of
from spyre_runtime.ktir.machine import BUFFER_DTYPES
from spyre_runtime.ktir.spaces import GLOBAL, AccessTileType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdsl.ir import Block, Operation, SSAValue

    from spyre_runtime.ktir.findings import Findings
    from spyre_runtime.ktir.kernel import Kernel

MAX_RANK: Final = 8
MAX_SIZE: Final = 1 << 31
TENSOR_DTYPES: Final = frozenset({"f16", "f32", "i32", "i1", "index"})
_SCALARS: Final = TENSOR_DTYPES | {"i64", "?"}


def check_structure(kernel: Kernel, findings: Findings) -> None:
    """Records what the text of a kernel breaks."""
    for op in kernel.func.walk():
        for value in (*op.results, *(argument for region in op.regions for b in region.blocks for argument in b.args)):
            _check_type(op, value, findings)
        if op.name == "ktdp.get_compute_tile_id" and len(op.results) != len(kernel.grid):
            findings.add("grid", op, f"{len(op.results)} ids in a grid of {len(kernel.grid)} dims")
        check = _CHECKS.get(op.name)
        if op.name.startswith("linalg."):
            _outputs(op, findings)
        if check is not None:
            check(op, findings)


def _check_type(op: Operation, value: SSAValue, findings: Findings) -> None:
    kind, dtype = value.type, dtype_of(value.type)
    if isinstance(kind, (TensorType, MemRefType, AccessTileType)):
        shape = kind.sizes if isinstance(kind, AccessTileType) else shape_of(kind)
        if any(size < 0 for size in shape):
            findings.add("dynamic", op, f"a shape has an open dim: {list(shape)}")
        elif len(shape) > MAX_RANK or any(not 0 < size < MAX_SIZE for size in shape):
            findings.add("ir", op, f"shapes have at most {MAX_RANK} dims of 1 to 2^31, but {list(shape)[:9]} came")
    if isinstance(kind, TensorType) and dtype not in TENSOR_DTYPES:
        findings.add("dtype", op, f"a tensor of {dtype if dtype != '?' else kind.element_type}")
    elif isinstance(kind, MemRefType) and dtype not in BUFFER_DTYPES:
        findings.add("dtype", op, f"a view of {dtype if dtype != '?' else kind.element_type}")
    elif dtype not in _SCALARS:
        findings.add("dtype", op, f"a value of {dtype}")


def _view(op: dialect.ConstructMemoryViewOp, findings: Findings) -> None:
    sizes, shape = [int(size) for size in op.static_sizes.get_values()], shape_of(op.result.type)
    strides = list(op.static_strides.get_values())
    if op.sizes or op.strides:
        findings.add("dynamic", op, "sizes and strides are constants")
    elif tuple(sizes) != shape or len(strides) != len(shape):
        findings.add("ir", op, f"sizes {sizes} and {len(strides)} strides for a view of {list(shape)}")
    elif box_sizes(op.coordinate_set.data) != shape:
        findings.add("set", op, f"the coordinates are not those of {list(shape)}")
    if op.memory_space.space != GLOBAL:  # type: ignore[attr-defined]  # one of two attributes that have it
        findings.add("space", op, "a view of a core's memory")


def _distributed(op: Operation, findings: Findings) -> None:
    findings.add("space", op, "a view made of several")


def _identity(mapping: AffineMapAttr, rank: int) -> bool:
    return mapping.data.num_dims == rank and mapping.data == mapping.data.identity(rank)


def _tile(op: dialect.ConstructAccessTileOp, findings: Findings) -> None:
    rank, shape = len(shape_of(op.base.type)), op.result.type.sizes
    if op.symbol_operands:
        findings.add("dynamic", op, "a set with symbols")
    elif len(shape) != rank or len(op.base_map.data.results) != rank or op.base_map.data.num_symbols:
        findings.add("ir", op, f"a tile of {len(shape)} dims, begun by {len(op.base_map.data.results)}, of {rank}")
    elif op.base_map.data.num_dims != len(op.indices):
        findings.add("ir", op, f"{len(op.indices)} indices for a map of {op.base_map.data.num_dims}")
    elif box_sizes(op.access_tile_set.data) != shape or not _identity(op.access_tile_order, rank):
        findings.add("set", op, f"the set is not {list(shape)} in order")


def _indirect(op: dialect.ConstructIndirectAccessTileOp, findings: Findings) -> None:
    rank, shape = len(shape_of(op.base.type)), op.result.type.sizes
    kinds = [bool(kind.value.data) for kind in op.per_dim_subscript_kinds.data]
    maps = [attribute.data for attribute in op.per_dim_subscript_maps.data]
    inputs = len(op.captured_variables) + len(shape)
    ranks = iter([len(shape_of(memref.type)) for memref in op.indirect_memrefs])
    if op.symbol_operands:
        findings.add("dynamic", op, "a set with symbols")
    elif len(kinds) != rank or len(maps) != rank or sum(kinds) != len(op.indirect_memrefs):
        findings.add("ir", op, f"{len(kinds)} subscripts, {sum(kinds)} of them read, for a view of {rank} dims")
    elif len(op.variables.block.args) != len(shape):
        findings.add("ir", op, f"{len(op.variables.block.args)} variables for a tile of {len(shape)} dims")
    elif any(
        mapping.num_dims != inputs or mapping.num_symbols or len(mapping.results) != (next(ranks) if read else 1)
        for mapping, read in zip(maps, kinds, strict=True)
    ):
        findings.add("ir", op, "subscripts that do not fit the views they index")
    elif box_sizes(op.variables_space_set.data) != shape or not _identity(op.variables_space_order, len(shape)):
        findings.add("set", op, f"the set is not {list(shape)} in order")
    if any(dtype_of(memref.type) != "i32" for memref in op.indirect_memrefs):
        findings.add("dtype", op, "indices are read from views of i32")


def _moved(op: Operation, findings: Findings) -> None:
    """ktdp.load and ktdp.store."""
    data, tile = (op.results[0], op.operands[0]) if op.results else (op.operands[0], op.operands[1])
    owner: Operation | Block = tile.owner
    makers = (dialect.ConstructAccessTileOp, dialect.ConstructIndirectAccessTileOp)
    if not isinstance(owner, makers) or not isinstance(tile.type, AccessTileType):
        findings.add("ir", op, "a tile is used where it is constructed, and is not passed around")
        return
    if not isinstance(owner.base.owner, dialect.ConstructMemoryViewOp):
        findings.add("ir", op, "a view is used where it is constructed, and is not passed around")
        return
    if shape_of(data.type) != tile.type.sizes:
        findings.add("ir", op, f"a tensor of {list(shape_of(data.type))} for a tile of {list(tile.type.sizes)}")
    if dtype_of(data.type) != dtype_of(owner.base.type):
        findings.add("dtype", op, f"a tensor of {dtype_of(data.type)} for a view of {dtype_of(owner.base.type)}")


def _outputs(op: Operation, findings: Findings) -> None:
    if not op.results or not isinstance(op.results[0].type, TensorType):
        return
    place = 1 if op.name in {"linalg.transpose", "linalg.broadcast", "linalg.fill", "linalg.reduce"} else -1
    if len(op.results) != 1 or len(op.operands) < 2 or op.operands[place].type != op.results[0].type:
        findings.add("ir", op, "the result has the type of the output operand")
        return
    if any(
        operand is op.operands[place]
        for number, operand in enumerate(op.operands)
        if number != place % len(op.operands)
    ):
        findings.add("alias", op, "the output operand is an input as well")


def _generic(op: linalg.GenericOp, findings: Findings) -> None:
    args = op.body.block.args
    if len(op.outputs) != 1 or len(op.indexing_maps.data) != len(op.operands) or len(args) != len(op.operands):
        findings.add("ir", op, "a map and a body argument an operand, and one output")
        return
    count = len(op.iterator_types.data)
    if any(a.data.num_dims != count or a.data.num_symbols for a in op.indexing_maps.data) or loops_of(op) is None:
        findings.add("ir", op, "the maps and the shapes of the operands disagree")
    for argument, operand in zip(args, op.operands, strict=True):
        element: Any = operand.type.element_type if isinstance(operand.type, TensorType) else operand.type
        if argument.type != element:
            findings.add("dtype", op, f"a body argument of {argument.type} for elements of {element}")
    end = op.body.block.last_op
    if not isinstance(end, linalg.YieldOp) or len(end.operands) != 1 or end.operands[0].type != args[-1].type:
        findings.add("dtype", op, "the body yields one element of the output's type")
    for inner in op.body.block.ops:
        if inner.regions:
            findings.add("op", inner, "it is not known in a body")
        elif isinstance(inner, linalg.IndexOp) and not 0 <= inner.dim.value.data < count:
            findings.add("ir", inner, "no such loop")


def _matmul(op: linalg.MatmulOp, findings: Findings) -> None:
    shapes = [shape_of(operand.type) for operand in op.operands]
    if len(shapes) != 3 or any(len(shape) != 2 for shape in shapes):
        findings.add("ir", op, "three matrices are due")
    elif shapes[0][1] != shapes[1][0] or shapes[2] != (shapes[0][0], shapes[1][1]):
        findings.add("ir", op, f"matrices of {[list(shape) for shape in shapes]}")
    elif dtype_of(op.operands[0].type) != dtype_of(op.operands[1].type):
        findings.add("dtype", op, "factors of different types")


def _reshape(op: Operation, findings: Findings) -> None:
    before, after = op.operands[0].type, op.results[0].type
    if math.prod(shape_of(before)) != math.prod(shape_of(after)) or dtype_of(before) != dtype_of(after):
        findings.add("ir", op, f"{list(shape_of(before))} cannot be {list(shape_of(after))}")


def _transpose(op: linalg.TransposeOp, findings: Findings) -> None:
    shape, order = shape_of(op.operands[0].type), [int(dim) for dim in op.permutation.get_values()]
    if sorted(order) != list(range(len(shape))):
        findings.add("ir", op, f"{order} is no permutation of {len(shape)} dims")
    elif tuple(shape[dim] for dim in order) != shape_of(op.results[0].type):
        findings.add("ir", op, f"{list(shape)} in the order {order} is not {list(shape_of(op.results[0].type))}")


def _broadcast(op: linalg.BroadcastOp, findings: Findings) -> None:
    before, after = shape_of(op.operands[0].type), shape_of(op.results[0].type)
    dims = [int(dim) for dim in op.dimensions.get_values()]
    if not all(0 <= dim < len(after) for dim in dims) or before != _without(after, dims):
        findings.add("ir", op, f"{list(before)} cannot be {list(after)} with the dims {dims} added")


def _without(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for dim, size in enumerate(shape) if dim not in dims)


def _same_shapes(op: Operation, findings: Findings) -> None:
    if len({operand.type for operand in op.operands}) != 1:
        findings.add("ir", op, "operands of one type are due")


def _fill(op: Operation, findings: Findings) -> None:
    if dtype_of(op.operands[0].type) != dtype_of(op.results[0].type) or shape_of(op.operands[0].type):
        findings.add("dtype", op, f"an element of {op.operands[0].type} for a tensor of {op.results[0].type}")


def _extract(op: Operation, findings: Findings) -> None:
    if len(op.operands) - 1 != len(shape_of(op.operands[0].type)):
        findings.add("ir", op, "an index a dim is due")


def _empty(op: Operation, findings: Findings) -> None:
    if op.operands:
        findings.add("dynamic", op, "sizes are constants")


_CHECKS: Final[dict[str, Callable[[Any, Findings], None]]] = {
    "ktdp.construct_memory_view": _view,
    "ktdp.construct_distributed_memory_view": _distributed,
    "ktdp.construct_access_tile": _tile,
    "ktdp.construct_indirect_access_tile": _indirect,
    "ktdp.load": _moved,
    "ktdp.store": _moved,
    "linalg.generic": _generic,
    "linalg.matmul": _matmul,
    "linalg.transpose": _transpose,
    "linalg.broadcast": _broadcast,
    "linalg.add": _same_shapes,
    "linalg.sub": _same_shapes,
    "linalg.mul": _same_shapes,
    "linalg.fill": _fill,
    "tensor.splat": _fill,
    "tensor.expand_shape": _reshape,
    "tensor.collapse_shape": _reshape,
    "tensor.extract": _extract,
    "tensor.empty": _empty,
}
