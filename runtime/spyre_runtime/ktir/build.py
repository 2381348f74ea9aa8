"""Builds kernels: buffers, blocks of work spread over cores, and tensors that are loaded, computed and stored."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any, Final, Literal

from xdsl.dialects import arith, scf, tensor
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    StringAttr,
    TensorType,
    f16,
    f32,
    i1,
    i32,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from spyre_runtime.errors import KtirBuildError
from spyre_runtime.ktir import dialect
from spyre_runtime.ktir.affine import box
from spyre_runtime.ktir.bodies import Scalars, Spelling
from spyre_runtime.ktir.compute import dtype_of, shape_of
from spyre_runtime.ktir.kernel import Buffer, Kernel, Role
from spyre_runtime.ktir.machine import CORES
from spyre_runtime.ktir.reduce import ReduceOp, combiner
from spyre_runtime.ktir.spaces import GLOBAL, MemorySpaceAttr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TYPES: Final[dict[str, Any]] = {"f16": f16, "f32": f32, "i32": i32, "i1": i1}
Reduction = Literal["sum", "max", "min"]
_REDUCTIONS: Final[dict[str, tuple[type[Operation], float]]] = {
    "sum": (arith.AddfOp, 0.0),
    "max": (arith.MaximumfOp, -math.inf),
    "min": (arith.MinimumfOp, math.inf),
}
Place = SSAValue | int


@dataclasses.dataclass(frozen=True)
class Ref:
    """A view of a buffer.

    Attributes:
        value: the view.
        sizes: of the view.
        dtype: of its elements.
        argument: the buffer's offset.
    """

    value: SSAValue
    sizes: tuple[int, ...]
    dtype: str
    argument: SSAValue


@dataclasses.dataclass(frozen=True)
class Run:
    """Equal blocks of a dim, one after the other: `count` of `size`, from `start`."""

    start: int
    count: int
    size: int


def runs(size: int, block: int) -> tuple[Run, ...]:
    """A dim in blocks, and what is left as a last, smaller one."""
    whole, rest = divmod(size, block)
    found = [Run(0, whole, block)] if whole else []
    return (*found, Run(whole * block, 1, rest)) if rest else tuple(found)


class KernelBuilder:
    """Builds one kernel, from the first operation to the last.

    Args:
        name: of the function.
        cores: how many run it.
        spelling: see `bodies`.
    """

    def __init__(self, name: str, *, cores: int = CORES, spelling: Spelling = "plain") -> None:
        self.name, self.cores, self.spelling = name, cores, spelling
        self._buffers: list[Buffer] = []
        self._entry = Block()
        self._block = self._entry
        self._constants: dict[tuple[Block, int], SSAValue] = {}
        self._core: SSAValue | None = None

    # Buffers.

    def buffer(self, buffer: Buffer) -> Ref:
        """Adds an argument for a buffer, and views it as its tensor lies in it."""
        argument = self._entry.insert_arg(IndexType(), len(self._buffers))
        argument.name_hint = buffer.name
        self._buffers.append(buffer)
        return self._view(argument, buffer.shape, buffer.strides, buffer.dtype, buffer.name)

    def rows(self, name: str, dtype: str, shape: Sequence[int], role: Role = "in") -> Ref:
        """Adds a row-major buffer whose rows begin at sticks."""
        return self.buffer(Buffer.rows(name, dtype, shape, role))

    def view(self, ref: Ref, sizes: Sequence[int], strides: Sequence[int], *, offset: int = 0) -> Ref:
        """Another view of the same buffer."""
        base = self.add(ref.argument, offset) if offset else ref.argument
        return self._view(base, sizes, strides, ref.dtype, "view")

    def _view(self, base: SSAValue, sizes: Sequence[int], strides: Sequence[int], dtype: str, name: str) -> Ref:
        space = MemorySpaceAttr(GLOBAL)
        op = dialect.ConstructMemoryViewOp(base, sizes, strides, space, box(sizes), TYPES[dtype])
        op.result.name_hint = f"{name}_view"
        self._add(op)
        return Ref(op.result, tuple(sizes), dtype, base)

    # Places.

    @property
    def core(self) -> SSAValue:
        """The number of the core."""
        if self._core is None:
            op = dialect.GetComputeTileIdOp()
            op.ids[0].name_hint = "core"
            self._entry.add_op(op) if self._entry.first_op is None else self._entry.insert_op_before(
                op, self._entry.first_op
            )
            self._core = op.ids[0]
        return self._core

    def index(self, place: Place) -> SSAValue:
        """A place as a value."""
        if isinstance(place, SSAValue):
            return place
        key = (self._block, place)
        if key not in self._constants:
            op = arith.ConstantOp(IntegerAttr(place, IndexType()))
            op.result.name_hint = f"c{place}" if place >= 0 else None
            self._constants[key] = self._add(op)
        return self._constants[key]

    def add(self, a: Place, b: Place) -> SSAValue:
        """A + b."""
        return self._integer(arith.AddiOp, a, b, 0)

    def mul(self, a: Place, b: Place) -> SSAValue:
        """A * b."""
        return self._integer(arith.MuliOp, a, b, 1)

    def div(self, a: Place, b: Place) -> SSAValue:
        """A / b, rounded down."""
        return self._integer(arith.DivUIOp, a, b, 1)

    def rem(self, a: Place, b: Place) -> SSAValue:
        """What is left of a / b."""
        return self._integer(arith.RemUIOp, a, b, None)

    def _integer(self, kind: Callable[..., Operation], a: Place, b: Place, neutral: int | None) -> SSAValue:
        if isinstance(b, int) and b == neutral:
            return self.index(a)
        return self._add(kind(self.index(a), self.index(b)))

    # Moving.

    def load(self, ref: Ref, starts: Sequence[Place], sizes: Sequence[int]) -> SSAValue:
        """Loads a box of a view."""
        op = dialect.LoadOp(self._tile(ref, starts, sizes), TensorType(TYPES[ref.dtype], sizes))
        return self._add(op)

    def store(self, value: SSAValue, ref: Ref, starts: Sequence[Place]) -> None:
        """Stores a tensor as a box of a view."""
        self._block.add_op(dialect.StoreOp(value, self._tile(ref, starts, shape_of(value.type))))

    def gather(self, table: Ref, indices: Ref, start: Place, count: int) -> SSAValue:
        """Loads `count` rows of a table: those whose numbers lie in `indices` from `start` on."""
        width = table.sizes[1]
        first = self.index(start)
        place, column = (AffineExpr.dimension(number) for number in (1, 2))
        op = dialect.ConstructIndirectAccessTileOp(
            table.value,
            [
                (indices.value, AffineMap(3, 0, (AffineExpr.dimension(0) + place,))),
                (None, AffineMap(3, 0, (column,))),
            ],
            [first],
            [count, width],
            box([count, width]),
            AffineMap.identity(2),
        )
        return self._add(dialect.LoadOp(self._add(op), TensorType(TYPES[table.dtype], [count, width])))

    def _tile(self, ref: Ref, starts: Sequence[Place], sizes: Sequence[int]) -> SSAValue:
        if len(starts) != len(ref.sizes) or len(sizes) != len(ref.sizes):
            raise KtirBuildError(f"a tile of a view of {len(ref.sizes)} dims has as many starts and sizes")
        values = [self.index(start) for start in starts]
        identity = AffineMap.identity(len(values))
        return self._add(dialect.ConstructAccessTileOp(ref.value, identity, values, sizes, box(sizes), identity))

    # Control flow.

    @contextlib.contextmanager
    def loop(self, low: Place, high: Place, step: Place, carried: Sequence[SSAValue] = ()) -> Iterator[Loop]:
        """A loop; what is built inside runs in it."""
        bounds = [self.index(place) for place in (low, high, step)]
        block = Block(arg_types=[IndexType(), *(value.type for value in carried)])
        block.args[0].name_hint = "i"
        outer, self._block = self._block, block
        made = Loop(block.args[0], tuple(block.args[1:]))
        try:
            yield made
        finally:
            self._block = outer
        block.add_op(scf.YieldOp(*made.next))
        op = scf.ForOp(bounds[0], bounds[1], bounds[2], list(carried), Region(block))
        outer.add_op(op)
        made.results = tuple(op.results)

    def blocks(self, *dims: Sequence[Run]) -> Iterator[tuple[tuple[SSAValue, ...], tuple[int, ...]]]:
        """Spreads blocks over the cores: gives the starts and sizes of a block, to build what is done with it.

        The last dim runs fastest. Blocks of one size are one loop; each core takes as many that follow one another, so
        that what it touches lies close together. Smaller blocks at the ends of dims are loops of their own, run by the
        last cores, whose other blocks lie beside them.
        """
        core = self.core
        for number, kinds in enumerate(itertools.product(*dims)):
            total = math.prod(kind.count for kind in kinds)
            share = -(-total // self.cores)
            used = -(-total // share)
            turn = self.rem(self.add(core, used), self.cores) if number and used < self.cores else core
            low = self.mul(turn, share)
            high = self.add(low, share)
            if share * self.cores != total:
                # A new constant: some readers take a loop right after another for a part of it.
                end = self._add(arith.ConstantOp(IntegerAttr(total, IndexType())))
                high = self._add(arith.MinSIOp(high, end))
            with self.loop(low, high, 1) as loop:
                rest, left = loop.index, total
                starts: list[SSAValue] = []
                for kind in reversed(kinds):
                    if kind.count == 1:
                        starts.insert(0, self.index(kind.start))
                        continue
                    left = left // kind.count
                    place = rest if left == 1 else self.rem(rest, kind.count)
                    rest = rest if left == 1 else self.div(rest, kind.count)
                    starts.insert(0, self.add(self.mul(place, kind.size), kind.start))
                yield tuple(starts), tuple(kind.size for kind in kinds)

    # Computing.

    def full(self, shape: Sequence[int], dtype: str, value: float) -> SSAValue:
        """A tensor of one number."""
        kind = TensorType(TYPES[dtype], shape)
        if not math.isfinite(value):  # in `dense<…>` readers disagree on what 0xFC00 is
            number = self._add(arith.ConstantOp(FloatAttr(value, TYPES[dtype])))
            return self._add(tensor.SplatOp(number, [], kind))
        return self._add(arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(kind, [value]), kind))

    def empty(self, shape: Sequence[int], dtype: str) -> SSAValue:
        """A tensor without contents."""
        return self._add(tensor.EmptyOp([], TensorType(TYPES[dtype], shape)))

    def pointwise(
        self,
        values: Sequence[SSAValue | tuple[SSAValue, Sequence[int]]],
        body: Callable[..., SSAValue],
        *,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> SSAValue:
        """One fused operation on elements.

        Args:
            values: tensors of the shape, or tensors with the dims of the shape that theirs are.
            body: called with a `Scalars` and an element a value; gives the result.
            shape: of the result; by default that of the first value.
            dtype: of the result; by default that of the first value.
        """
        pairs = [pair if isinstance(pair, tuple) else (pair, None) for pair in values]
        full = tuple(shape) if shape is not None else shape_of(pairs[0][0].type)
        kind = TYPES[dtype or dtype_of(pairs[0][0].type)]
        rank = len(full)
        maps = [_projection(rank, range(rank) if dims is None else dims) for _, dims in pairs]
        block = Block(arg_types=[*(_element(value) for value, _ in pairs), kind])
        computed = f32 if self.spelling == "plain" else kind
        scalars = Scalars(block, computed, self.spelling)
        result = body(scalars, *(scalars.widen(argument) for argument in block.args[:-1]))
        block.add_op(linalg.YieldOp(scalars.narrow(result, kind)))
        out = self.empty(full, dtype_of(kind))
        return self._add(
            linalg.GenericOp(
                [value for value, _ in pairs],
                [out],
                Region(block),
                [AffineMapAttr(mapping) for mapping in (*maps, AffineMap.identity(rank))],
                [IteratorTypeAttr.parallel()] * rank,
                [out.type],
            )
        )

    def convert(self, value: SSAValue, dtype: str) -> SSAValue:
        """The same numbers in another type."""
        if dtype_of(value.type) == dtype:
            return value
        kind = TensorType(TYPES[dtype], shape_of(value.type))
        return self._add((arith.ExtFOp if dtype == "f32" else arith.TruncFOp)(value, kind))

    def reduce(self, value: SSAValue, dims: Sequence[int], kind: Reduction) -> SSAValue:
        """Sums, or takes the largest or smallest, along dims; those dims go."""
        op, start = _REDUCTIONS[kind]
        shape = [size for dim, size in enumerate(shape_of(value.type)) if dim not in dims]
        dtype = dtype_of(value.type)
        # The gate takes reductions without an initial value only.
        init = self.full(shape, dtype, start) if self.spelling == "plain" else self.empty(shape, dtype)
        return self._add(ReduceOp(value, init, dims, combiner(op, TYPES[dtype])))

    def matmul(self, left: SSAValue, right: SSAValue, into: SSAValue) -> SSAValue:
        """A product of matrices, added to a tensor; all in fp32 in the plain spelling."""
        if self.spelling == "gated":
            return self._product(left, right, into)
        a, b = self.convert(left, "f32"), self.convert(right, "f32")
        return self._add(linalg.MatmulOp(inputs=[a, b], outputs=[into], res=[into.type]))

    def _product(self, left: SSAValue, right: SSAValue, into: SSAValue) -> SSAValue:
        kind = _element(into)
        block = Block(arg_types=[_element(left), _element(right), kind])
        product = arith.MulfOp(block.args[0], block.args[1])
        total = arith.AddfOp(block.args[2], product.result)
        block.add_ops([product, total, linalg.YieldOp(total.result)])
        maps = [_projection(3, dims) for dims in ((0, 2), (2, 1), (0, 1))]
        loops = [IteratorTypeAttr.parallel(), IteratorTypeAttr.parallel(), IteratorTypeAttr.reduction()]
        attributes = [AffineMapAttr(mapping) for mapping in maps]
        return self._add(linalg.GenericOp([left, right], [into], Region(block), attributes, loops, [into.type]))

    def transpose(self, value: SSAValue, order: Sequence[int]) -> SSAValue:
        """Dims in another order."""
        shape, dtype = shape_of(value.type), dtype_of(value.type)
        out = self.empty([shape[dim] for dim in order], dtype)
        permutation = DenseArrayBase.from_list(i64, list(order))
        return self._add(linalg.TransposeOp(value, out, permutation, out.type))

    def reshape(self, value: SSAValue, groups: Sequence[Sequence[int]], shape: Sequence[int]) -> SSAValue:
        """Dims taken together (fewer dims than before) or apart (more); `groups` says which belong together."""
        kind = TensorType(_element(value), shape)
        parts = ArrayAttr([ArrayAttr([IntegerAttr(dim, i64) for dim in group]) for group in groups])
        if len(shape) < len(shape_of(value.type)):
            op: Operation = tensor.CollapseShapeOp.build(
                operands=[value], properties={"reassociation": parts}, result_types=[kind]
            )
        else:
            sizes = DenseArrayBase.from_list(i64, list(shape))
            op = tensor.ExpandShapeOp.build(
                operands=[value, []],
                properties={"reassociation": parts, "static_output_shape": sizes},
                result_types=[kind],
            )
        return self._add(op)

    # The end.

    def finish(self) -> Kernel:
        """The kernel."""
        self._entry.add_op(ReturnOp())
        func = FuncOp(self.name, ([IndexType()] * len(self._buffers), []), Region(self._entry))
        func.attributes["grid"] = ArrayAttr([IntegerAttr(self.cores, i64)])
        func.sym_name = StringAttr(self.name)
        return Kernel(name=self.name, func=func, buffers=tuple(self._buffers), cores=self.cores)

    def _add(self, op: Operation) -> SSAValue:
        # A name of its own: some readers take %1 in a subscript for the number 1.
        if op.results[0].name_hint is None:
            op.results[0].name_hint = op.name.partition(".")[2].removeprefix("construct_")
        self._block.add_op(op)
        return op.results[0]


class Loop:
    """The inside of a loop.

    Attributes:
        index: the round.
        carried: what is carried from round to round.
        next: what the next round carries; set it inside.
        results: what is carried at the end; there afterwards.
    """

    def __init__(self, index: SSAValue, carried: tuple[SSAValue, ...]) -> None:
        self.index, self.carried = index, carried
        self.next: Sequence[SSAValue] = ()
        self.results: tuple[SSAValue, ...] = ()


def _element(value: SSAValue) -> Attribute:
    return value.type.element_type if isinstance(value.type, TensorType) else value.type


def _projection(rank: int, dims: Sequence[int]) -> AffineMap:
    return AffineMap(rank, 0, tuple(AffineExpr.dimension(dim) for dim in dims))


__all__ = ["KernelBuilder", "Loop", "Ref", "Run", "Scalars", "runs"]
