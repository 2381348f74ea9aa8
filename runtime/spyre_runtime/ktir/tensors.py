"""Operations of `arith`, `math`, `tensor` and `linalg` in a walk."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.linalg import ops as linalg

from spyre_runtime.ktir import compute
from spyre_runtime.ktir.compute import dtype_of, is_integer, shape_of
from spyre_runtime.ktir.integers import integer
from spyre_runtime.ktir.values import Data, Index

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdsl.dialects import tensor
    from xdsl.ir import Operation, SSAValue

    from spyre_runtime.ktir.reduce import ReduceOp
    from spyre_runtime.ktir.walk import Frame, Walk


def elementwise(walk: Walk, op: Operation, frame: Frame) -> None:
    """An operation of arith or math, on integers, scalars or tensors."""
    if integer(walk, op, frame):
        return
    if not compute.known(op):
        raise walk.stop("op", op, f"{op.name} of tensors is not among them")
    shape = shape_of(op.results[0].type)
    if shape or not is_integer(op.results[0].type):
        special = op.name in compute.SPECIAL
        walk.meter.vector(frame.cores, math.prod(shape), dtype_of(op.results[0].type), special=special)

    def make() -> torch.Tensor:
        args = [walk.elements(value, frame) for value in op.operands]
        rank = max(value.ndim for value in args)
        args = [value.view(-1, *(1 for _ in range(rank - 1))) if value.ndim == 1 else value for value in args]
        return compute.scalar(op, args, walk.formats)

    walk.give(op, frame, make)


def constant(walk: Walk, op: arith.ConstantOp, frame: Frame) -> None:
    """arith.constant."""
    if isinstance(op.value, IntegerAttr):
        frame.values[op.result] = Index(op.value.value.data)
        return
    walk.give(op, frame, lambda: compute.constant(op, walk.formats))


def empty(walk: Walk, op: tensor.EmptyOp, frame: Frame) -> None:
    """tensor.empty: poison, so that what reads it shows."""

    def make() -> torch.Tensor:
        dtype = walk.formats.torch_dtype(dtype_of(op.tensor.type))
        poison = math.nan if dtype.is_floating_point else 0
        return torch.tensor(poison, dtype=dtype).expand(1, *shape_of(op.tensor.type))

    walk.give(op, frame, make, empty=True)


def splat(walk: Walk, op: Operation, frame: Frame) -> None:
    """tensor.splat and linalg.fill: one element everywhere."""
    shape = shape_of(op.results[0].type)

    def make() -> torch.Tensor:
        value = walk.elements(op.operands[0], frame)
        return value.view(-1, *(1 for _ in shape)).expand(value.shape[0], *shape)

    walk.give(op, frame, make)


def extract(walk: Walk, op: tensor.ExtractOp, frame: Frame) -> None:
    """tensor.extract at known places."""
    places = [walk.number(index, op, frame) for index in op.indices]

    def make() -> torch.Tensor:
        source = walk.elements(op.tensor, frame)
        lead = max([source.shape[0], *(np.size(place) for place in places)])
        index = [torch.as_tensor(place).expand(lead) for place in places]
        return source.expand(lead, *source.shape[1:])[(torch.arange(lead), *index)]

    walk.give(op, frame, make)


def reshape(walk: Walk, op: Operation, frame: Frame) -> None:
    """tensor.expand_shape and tensor.collapse_shape."""
    shape = shape_of(op.results[0].type)

    def make() -> torch.Tensor:
        source = walk.elements(op.operands[0], frame)
        return source.reshape(source.shape[0], *shape)

    walk.give(op, frame, make)


def transpose(walk: Walk, op: linalg.TransposeOp, frame: Frame) -> None:
    """linalg.transpose."""
    order = [int(dim) + 1 for dim in op.permutation.get_values()]
    walk.give(op, frame, lambda: walk.elements(op.operands[0], frame).permute(0, *order))


def broadcast(walk: Walk, op: linalg.BroadcastOp, frame: Frame) -> None:
    """linalg.broadcast."""
    dims, shape = [int(dim) for dim in op.dimensions.get_values()], shape_of(op.results[0].type)

    def make() -> torch.Tensor:
        source = walk.elements(op.operands[0], frame)
        for dim in sorted(dims):
            source = source.unsqueeze(dim + 1)
        return source.expand(source.shape[0], *shape)

    walk.give(op, frame, make)


def named(walk: Walk, op: Operation, frame: Frame) -> None:
    """linalg.add, sub and mul."""
    shape = shape_of(op.results[0].type)
    walk.meter.vector(frame.cores, math.prod(shape), dtype_of(op.results[0].type))
    function = {"linalg.add": torch.add, "linalg.sub": torch.sub, "linalg.mul": torch.mul}[op.name]

    def make() -> torch.Tensor:
        args = [walk.elements(value, frame) for value in op.operands[:2]]
        return walk.formats.cast(function(*args), dtype_of(op.results[0].type))

    walk.give(op, frame, make)


def matmul(walk: Walk, op: linalg.MatmulOp, frame: Frame) -> None:
    """linalg.matmul: fp32 products and sums, rounded once to the type of the result."""
    (rows, inner), columns = shape_of(op.operands[0].type), shape_of(op.operands[1].type)[1]
    walk.meter.matrix(frame.cores, rows * inner * columns)

    def make() -> torch.Tensor:
        product = compute.matmul(*(walk.elements(value, frame) for value in op.operands[:2]))
        return _accumulate(walk, op.operands[2], product, "arith.addf", frame)

    walk.give(op, frame, make)


def reduce(walk: Walk, op: ReduceOp, frame: Frame) -> None:
    """linalg.reduce with a combiner of one operation."""
    first = op.combiner.block.first_op
    if first is None or first.name not in compute.REDUCERS or len(list(op.combiner.block.ops)) != 2:
        raise walk.stop("op", op, "a combiner is one operation that is known")
    walk.meter.vector(frame.cores, math.prod(shape_of(op.input.type)), dtype_of(op.input.type))

    def make() -> torch.Tensor:
        return _reduce(walk, walk.elements(op.input, frame), [dim + 1 for dim in op.dims], first.name, op.init, frame)

    walk.give(op, frame, make)


def _reduce(
    walk: Walk, value: torch.Tensor, dims: list[int], combiner: str, init: SSAValue, frame: Frame
) -> torch.Tensor:
    wide = value.to(torch.float32) if value.is_floating_point() else value
    return _accumulate(walk, init, compute.REDUCERS[combiner][0](wide, dims), combiner, frame)


def _accumulate(walk: Walk, init: SSAValue, value: torch.Tensor, combiner: str, frame: Frame) -> torch.Tensor:
    start = frame.get(init)
    assert isinstance(start, Data)
    if not start.empty:
        value = compute.FUNCTIONS[combiner](walk.elements(init, frame).to(value.dtype), value)
    return walk.formats.cast(value, dtype_of(init.type))


def generic(walk: Walk, op: linalg.GenericOp, frame: Frame) -> None:
    """linalg.generic whose maps are projected permutations."""
    generic = walk.generics.get(op)
    if generic is None:
        try:
            generic = walk.generics[op] = compute.Generic(op)
        except NotImplementedError as error:
            raise walk.stop("op", op, f"{error} is not among them") from None
    space = math.prod(generic.loops)
    places = generic.product()
    for inner in generic.block.ops:
        if inner.results and places is None and inner.name not in compute.CASTS and inner.name != "linalg.index":
            special = inner.name in compute.SPECIAL
            walk.meter.vector(frame.cores, space, dtype_of(inner.results[0].type), special=special)
    if places is not None:
        walk.meter.matrix(frame.cores, space)

    def make() -> torch.Tensor:
        if places is not None:
            left, right = (walk.elements(op.operands[place], frame) for place in places)
            summed = compute.contraction(generic, left, right, places)
            return _accumulate(walk, op.outputs[0], summed, "arith.addf", frame)
        value = _body(walk, generic, frame)
        if generic.combiner is not None:
            dims = [loop + 1 for loop in generic.reduced]
            value = value.expand(value.shape[0], *generic.loops)
            name = generic.combiner.name
            ordered = compute.REDUCERS[name][0](value.to(torch.float32), dims)
            ordered = ordered.permute(0, *(place + 1 for place in generic.order))
            return _accumulate(walk, op.outputs[0], ordered, name, frame)
        value = value.expand(value.shape[0], *generic.loops)
        return value.permute(0, *(place + 1 for place in generic.order))

    walk.give(op, frame, make)


def _body(walk: Walk, generic: compute.Generic, frame: Frame) -> torch.Tensor:
    rank, numbers = len(generic.loops), walk.formats
    values: dict[SSAValue, torch.Tensor] = {}
    for argument, operand, mapping in zip(generic.block.args, generic.op.operands, generic.maps, strict=True):
        if argument.uses:
            try:
                values[argument] = compute.spread(walk.elements(operand, frame), mapping, rank)
            except NotImplementedError as error:
                raise walk.stop("op", generic.op, f"{error} is not among them") from None

    def get(value: SSAValue) -> torch.Tensor:
        if value in values:
            return values[value]
        outside = walk.elements(value, frame)
        return outside.view(-1, *(1 for _ in range(rank)))

    for inner in generic.block.ops:
        if inner.name == "linalg.yield" or inner is generic.combiner:
            break
        if isinstance(inner, linalg.IndexOp):
            loop = inner.dim.value.data
            shape = [1] * (rank + 1)
            shape[loop + 1] = generic.loops[loop]
            values[inner.result] = torch.arange(generic.loops[loop]).view(shape)
        elif isinstance(inner, arith.ConstantOp):
            values[inner.result] = compute.constant(inner, numbers).view([1] * (rank + 1))
        elif compute.known(inner):
            values[inner.results[0]] = compute.scalar(inner, [get(value) for value in inner.operands], numbers)
        else:
            raise walk.stop("op", inner, f"{inner.name} is not among them")
    return get(generic.part if generic.combiner is not None else generic.result)


HANDLERS: Final[dict[str, Callable[[Walk, Any, Frame], None]]] = {
    "arith.constant": constant,
    "tensor.empty": empty,
    "tensor.splat": splat,
    "tensor.extract": extract,
    "tensor.expand_shape": reshape,
    "tensor.collapse_shape": reshape,
    "linalg.fill": splat,
    "linalg.transpose": transpose,
    "linalg.broadcast": broadcast,
    "linalg.matmul": matmul,
    "linalg.reduce": reduce,
    "linalg.generic": generic,
    "linalg.add": named,
    "linalg.sub": named,
    "linalg.mul": named,
}
