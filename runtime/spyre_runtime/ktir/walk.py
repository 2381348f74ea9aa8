"""Walks a kernel once for all cores: control flow and addresses exactly, tensors only where there is a number format.

A verifier walks dry: it knows every address, and no element. The emulator walks with elements. Where cores part (a
loop that some run longer, a condition that holds for some), the part is walked for those cores only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from xdsl.dialects import arith, scf, tensor
from xdsl.dialects.builtin import IntegerAttr, IntegerType
from xdsl.dialects.linalg import ops as linalg

from spyre_runtime.ktir import compute, dialect
from spyre_runtime.ktir.affine import evaluate
from spyre_runtime.ktir.compute import dtype_of, shape_of
from spyre_runtime.ktir.machine import ITEM_BYTES
from spyre_runtime.ktir.values import Data, Index, Number, Scattered, Tile, Value, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xdsl.ir import Block, Operation, SSAValue

    from spyre_runtime.ktir.cost import Meter
    from spyre_runtime.ktir.findings import Findings
    from spyre_runtime.ktir.kernel import Kernel
    from spyre_runtime.ktir.memory import Memory
    from spyre_runtime.ktir.numbers import Numbers
    from spyre_runtime.ktir.reduce import ReduceOp

MAX_STEPS: Final = 200_000
Cores = np.ndarray[Any, Any]


class StopWalkError(Exception):
    """The walk cannot go on; a finding says why."""


class Frame:
    """Values of one part of the walk, and the cores that walk it."""

    def __init__(self, cores: Cores, parent: Frame | None = None, picked: Cores | None = None) -> None:
        self.cores, self.parent, self.picked = cores, parent, picked
        self.values: dict[SSAValue, Value] = {}

    def get(self, value: SSAValue) -> Value:
        """A value as these cores see it."""
        found = self.values.get(value)
        if found is None:
            assert self.parent is not None, value
            found = self.parent.get(value)
            if self.picked is not None:
                found = found.pick(self.picked)
                self.values[value] = found
        return found


class Walk:
    """One walk.

    Args:
        kernel: what to walk; its structure is checked already.
        memory: its buffers.
        findings: where broken rules go.
        meter: what is done is counted here.
        numbers: the number formats; None for a dry walk.
    """

    def __init__(
        self, kernel: Kernel, memory: Memory, findings: Findings, meter: Meter, numbers: Numbers | None
    ) -> None:
        self.kernel, self.memory, self.findings, self.meter, self.numbers = kernel, memory, findings, meter, numbers
        self._steps = 0
        self._generics: dict[Operation, compute.Generic] = {}

    def run(self) -> None:
        """Walks the kernel to its end."""
        frame = Frame(np.arange(math.prod(self.kernel.grid)))
        block = self.kernel.func.body.block
        for number, argument in enumerate(block.args):
            buffer = self.kernel.buffers[number]
            start = 0 if buffer.address is None else buffer.address // max(1, buffer.item_bytes)
            frame.values[argument] = Index(start, number)
        try:
            self.block(block, frame)
        except StopWalkError:
            return
        self.memory.finish()

    def stop(self, rule: str, op: Operation, what: str) -> StopWalkError:
        """Records a finding after which nothing is known."""
        self.findings.add(rule, op, what)
        return StopWalkError(rule)

    def block(self, block: Block, frame: Frame) -> list[SSAValue]:
        """Walks a block; gives what its terminator yields."""
        for op in block.ops:
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise self.stop("steps", op, f"more than {MAX_STEPS} operations ran")
            if op.name in {"func.return", "scf.yield", "linalg.yield"}:
                return list(op.operands)
            handler = _HANDLERS.get(op.name)
            if handler is not None:
                handler(self, op, frame)
            elif compute.known(op) or op.name in _INTEGERS:
                self.elementwise(op, frame)
            else:
                raise self.stop("op", op, f"{op.name} is not among them")
        return []

    # Control flow.

    def loop(self, op: scf.ForOp, frame: Frame) -> None:
        """scf.for, also where cores run it for different numbers of rounds."""
        low, high, step = (self.number(value, op, frame) for value in (op.lb, op.ub, op.step))
        if int(np.min(step)) <= 0:
            raise self.stop("dynamic", op, f"the step of a loop is {int(np.min(step))}, and must be positive")
        trips = np.maximum(0, -(-(np.asarray(high) - low) // step))
        carried = [frame.get(value) for value in op.iter_args]
        longest, args = int(trips.max()), op.body.block.args
        if longest > MAX_STEPS:
            raise self.stop("steps", op, f"a loop of {longest} rounds")
        for trip in range(longest):
            inner = Frame(frame.cores, frame)
            active: Cores | None = None
            if trips.ndim and int(trips.min()) <= trip:
                active = np.flatnonzero(trips > trip)
                inner = Frame(frame.cores[active], frame, active)
            now = np.asarray(low + trip * step)
            place: Number = int(now) if now.ndim == 0 else now if active is None else now[active]
            inner.values[args[0]] = Index(place)
            for argument, value in zip(args[1:], carried, strict=True):
                inner.values[argument] = value if active is None else value.pick(active)
            yielded = [inner.get(value) for value in self.block(op.body.block, inner)]
            if active is None:
                carried = yielded
            else:
                carried = [
                    self.merge(op, frame.cores.size, [(active, new)], old)
                    for old, new in zip(carried, yielded, strict=True)
                ]
        for result, value in zip(op.results, carried, strict=True):
            frame.values[result] = value

    def branch(self, op: scf.IfOp, frame: Frame) -> None:
        """scf.if, also where it holds for some cores only."""
        holds = np.broadcast_to(np.asarray(self.number(op.cond, op, frame)) != 0, (frame.cores.size,))
        parts: list[tuple[Cores, list[Value]]] = []
        for region, chosen in ((op.true_region, holds), (op.false_region, ~holds)):
            cores = np.flatnonzero(chosen)
            if not cores.size or not region.blocks:
                continue
            picked = None if cores.size == frame.cores.size else cores
            inner = Frame(frame.cores[cores], frame, picked)
            parts.append((cores, [inner.get(value) for value in self.block(region.block, inner)]))
        for number, result in enumerate(op.results):
            if len(parts) == 1:
                frame.values[result] = parts[0][1][number]
            else:
                merged = [(cores, values[number]) for cores, values in parts]
                frame.values[result] = self.merge(op, frame.cores.size, merged, merged[0][1])

    def merge(self, op: Operation, cores: int, parts: Sequence[tuple[Cores, Value]], old: Value) -> Value:
        """One value for all cores, of values that some of them have."""
        if all(isinstance(value, Data) for _, value in parts) and isinstance(old, Data):
            if any(value.tensor is None for _, value in parts if isinstance(value, Data)):
                return Data(old.dtype, old.shape)
            kept: Any = old.tensor
            full = kept.expand(cores, *old.shape).clone() if kept.shape[0] in {1, cores} else None
            if full is None:
                full = torch.empty((cores, *old.shape), dtype=kept.dtype)
            for chosen, value in parts:
                full[torch.from_numpy(chosen)] = value.tensor  # type: ignore[union-attr]
            return Data(old.dtype, old.shape, full)
        if all(isinstance(value, Index) for _, value in parts) and isinstance(old, Index):
            before: Any = old.number
            if before is None or any(value.number is None for _, value in parts if isinstance(value, Index)):
                return Index(None)
            numbers: Any = np.zeros(cores, dtype=np.int64)
            if np.shape(before) in {(), (cores,)}:
                numbers[:] = before
            for chosen, value in parts:
                numbers[chosen] = value.number if isinstance(value, Index) else 0
            return Index(numbers, old.buffer)
        raise self.stop("dynamic", op, "a view or tile differs between cores by the way they took")

    # Integers.

    def number(self, value: SSAValue, op: Operation, frame: Frame) -> Number:
        """A known integer."""
        found = frame.get(value)
        if not isinstance(found, Index) or found.number is None:
            raise self.stop("dynamic", op, "it depends on elements of tensors")
        return found.number

    def integer(self, op: Operation, frame: Frame) -> bool:
        """Arithmetic of known integers; False where an operand is none."""
        operands = [frame.get(value) for value in op.operands]
        if not all(isinstance(operand, Index) for operand in operands):
            return False
        args: list[Any] = [operand.number for operand in operands if isinstance(operand, Index)]
        if isinstance(op, arith.CmpiOp):
            result: Any = _COMPARE[op.predicate.value.data](*args) if None not in _nones(args) else None
        elif op.name not in _INTEGERS:
            return False
        elif None in _nones(args):
            result = None
        else:
            if op.name in _DIVIDES and int(np.min(args[1])) <= 0:
                raise self.stop("dynamic", op, "a divisor of an address is not positive")
            result = _INTEGERS[op.name](*args)
        buffers = {operand.buffer for operand in operands if isinstance(operand, Index)} - {None}
        if isinstance(result, np.ndarray) and result.ndim == 0:
            result = int(result)
        frame.values[op.results[0]] = Index(result, buffers.pop() if len(buffers) == 1 else None)
        return True

    # Memory.

    def view(self, op: dialect.ConstructMemoryViewOp, frame: Frame) -> None:
        """ktdp.construct_memory_view."""
        offset = frame.get(op.offset)
        base = self.number(op.offset, op, frame)
        assert isinstance(offset, Index)
        dtype = dtype_of(op.result.type)
        buffer = offset.buffer
        if buffer is None:
            buffer = self._by_address(int(np.min(base)) * ITEM_BYTES.get(dtype, 1))
        if buffer is None:
            raise self.stop("view", op, f"no buffer begins at or contains element {int(np.min(base))}")
        owner = self.kernel.buffers[buffer]
        if owner.dtype != dtype:
            raise self.stop("dtype", op, f"{owner.name!r} is of {owner.dtype}, and the view of {dtype}")
        base = base - (owner.address or 0) // owner.item_bytes
        sizes = tuple(int(size) for size in op.static_sizes.get_values())
        strides = tuple(int(stride) for stride in op.static_strides.get_values())
        frame.values[op.result] = self.memory.view(op, View(buffer, base, sizes, strides, dtype))

    def _by_address(self, byte: int) -> int | None:
        for number, buffer in enumerate(self.kernel.buffers):
            if buffer.address is not None and buffer.address <= byte < buffer.address + buffer.bytes:
                return number
        return None

    def tile(self, op: dialect.ConstructAccessTileOp, frame: Frame) -> None:
        """ktdp.construct_access_tile."""
        view = frame.get(op.base)
        assert isinstance(view, View)
        values: list[Any] = [self.number(index, op, frame) for index in op.indices]
        try:
            starts: list[Any] = [evaluate(result, values) for result in op.base_map.data.results]
        except ZeroDivisionError as error:
            raise self.stop("set", op, str(error)) from None
        frame.values[op.result] = self.memory.tile(op, view, starts, op.result.type.sizes)

    def indirect(self, op: dialect.ConstructIndirectAccessTileOp, frame: Frame) -> None:
        """ktdp.construct_indirect_access_tile."""
        view = frame.get(op.base)
        assert isinstance(view, View)
        sizes = op.result.type.sizes
        captured: list[Any] = [self.number(value, op, frame) for value in op.captured_variables]
        leading = any(isinstance(value, np.ndarray) for value in [*captured, view.base])
        lead = frame.cores.size if leading else 1
        dims = [_column(value, len(sizes)) for value in captured]
        for axis, size in enumerate(sizes):
            shape = [1] * (len(sizes) + 1)
            shape[axis + 1] = size
            dims.append(torch.arange(size).view(shape))
        memrefs, known, read = iter(op.indirect_memrefs), True, 0
        total = torch.as_tensor(_column(view.base, len(sizes)))
        for dim, (kind, attribute) in enumerate(
            zip(op.per_dim_subscript_kinds.data, op.per_dim_subscript_maps.data, strict=True)
        ):
            try:
                coords: list[Any] = [evaluate(result, dims) for result in attribute.data.results]
            except ZeroDivisionError as error:
                raise self.stop("set", op, str(error)) from None
            place: Any = coords[0]
            if kind.value.data:
                source = frame.get(next(memrefs))
                assert isinstance(source, View)
                place, count = self._read_indices(op, source, coords, len(sizes))
                read += count
                if place is None:
                    known = False
                    continue
            self._within(op, place, view.sizes[dim], "gather" if kind.value.data else "tile")
            total = total + torch.as_tensor(place) * view.strides[dim]
        offsets = total.expand(lead if total.shape[0] == 1 else total.shape[0], *sizes) if known else None
        frame.values[op.result] = Scattered(view, sizes, offsets, read)

    def _read_indices(
        self, op: Operation, source: View, coords: Sequence[Any], rank: int
    ) -> tuple[torch.Tensor | None, int]:
        """Coordinates that lie in a view, and how many bytes they have."""
        offsets = torch.as_tensor(_column(source.base, rank))
        for dim, coord in enumerate(coords):
            self._within(op, coord, source.sizes[dim], "tile")
            offsets = offsets + torch.as_tensor(coord) * source.strides[dim]
        count = (offsets.numel() // offsets.shape[0]) * ITEM_BYTES.get(source.dtype, 4)
        if self.memory.contents is None:
            return None, count
        return self.memory.contents[source.buffer][offsets.reshape(-1)].view(offsets.shape).to(torch.int64), count

    def _within(self, op: Operation, place: Any, size: int, rule: str) -> None:
        values = torch.as_tensor(place)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= size:
            raise self.stop(rule, op, f"a view of {size} coordinates is indexed from {low} to {high}")

    def load(self, op: dialect.LoadOp, frame: Frame) -> None:
        """ktdp.load."""
        tile = frame.get(op.access_tile)
        dtype, shape = dtype_of(op.result.type), shape_of(op.result.type)
        if isinstance(tile, Scattered):
            self.meter.move(frame.cores, tile.index_bytes)
            found = self.memory.gather(op, tile)
        else:
            assert isinstance(tile, Tile)
            found = self.memory.load(op, tile, frame.cores)
        self.meter.move(frame.cores, math.prod(shape) * ITEM_BYTES.get(dtype, 1))
        frame.values[op.result] = Data(dtype, shape, found)

    def store(self, op: dialect.StoreOp, frame: Frame) -> None:
        """ktdp.store."""
        tile, data = frame.get(op.access_tile), frame.get(op.data_tile)
        assert isinstance(data, Data)
        self.meter.move(frame.cores, math.prod(data.shape) * ITEM_BYTES.get(data.dtype, 1))
        if isinstance(tile, Scattered):
            self.memory.scatter(op, data, tile, frame.cores)
        else:
            assert isinstance(tile, Tile)
            self.memory.store(op, data, tile, frame.cores)

    def identity(self, op: dialect.GetComputeTileIdOp, frame: Frame) -> None:
        """ktdp.get_compute_tile_id: the last dim of the grid runs fastest."""
        rest = frame.cores.astype(np.int64)
        for value, size in reversed(list(zip(op.ids, self.kernel.grid, strict=False))):
            frame.values[value] = Index(rest % size)
            rest = rest // size

    # Tensors.

    def elements(self, value: SSAValue, frame: Frame) -> torch.Tensor:
        """The elements of a value, with an axis of cores."""
        found = frame.get(value)
        if isinstance(found, Index):
            number = torch.as_tensor(found.number)
            number = number if number.ndim else number.view(1)
            assert self.numbers is not None
            return number.to(self.numbers.torch_dtype(dtype_of(value.type)))
        assert isinstance(found, Data)
        assert found.tensor is not None, value
        return found.tensor

    def give(
        self, op: Operation, frame: Frame, make: Callable[[], torch.Tensor] | None, *, empty: bool = False
    ) -> None:
        """Sets the result of an operation; elements are made only where there is a number format."""
        kind = op.results[0].type
        made = make() if make is not None and self.numbers is not None else None
        if made is None and self.numbers is None and _is_integer(kind) and not shape_of(kind):
            frame.values[op.results[0]] = Index(None)
            return
        frame.values[op.results[0]] = Data(dtype_of(kind), shape_of(kind), made, empty)

    def elementwise(self, op: Operation, frame: Frame) -> None:
        """An operation of arith or math, on integers, scalars or tensors."""
        if self.integer(op, frame):
            return
        if not compute.known(op):
            raise self.stop("op", op, f"{op.name} of tensors is not among them")
        shape = shape_of(op.results[0].type)
        if shape or not _is_integer(op.results[0].type):
            special = op.name in compute.SPECIAL
            self.meter.vector(frame.cores, math.prod(shape), dtype_of(op.results[0].type), special=special)

        def make() -> torch.Tensor:
            assert self.numbers is not None
            args = [self.elements(value, frame) for value in op.operands]
            rank = max(value.ndim for value in args)
            args = [value.view(-1, *(1 for _ in range(rank - 1))) if value.ndim == 1 else value for value in args]
            return compute.scalar(op, args, self.numbers)

        self.give(op, frame, make)

    def constant(self, op: arith.ConstantOp, frame: Frame) -> None:
        """arith.constant."""
        if isinstance(op.value, IntegerAttr):
            frame.values[op.result] = Index(op.value.value.data)
            return
        self.give(op, frame, lambda: compute.constant(op, self._numbers()))

    def _numbers(self) -> Numbers:
        assert self.numbers is not None
        return self.numbers

    def empty(self, op: tensor.EmptyOp, frame: Frame) -> None:
        """tensor.empty: poison, so that what reads it shows."""

        def make() -> torch.Tensor:
            dtype = self._numbers().torch_dtype(dtype_of(op.tensor.type))
            poison = math.nan if dtype.is_floating_point else 0
            return torch.tensor(poison, dtype=dtype).expand(1, *shape_of(op.tensor.type))

        self.give(op, frame, make, empty=True)

    def splat(self, op: Operation, frame: Frame) -> None:
        """tensor.splat and linalg.fill: one element everywhere."""
        shape = shape_of(op.results[0].type)

        def make() -> torch.Tensor:
            value = self.elements(op.operands[0], frame)
            return value.view(-1, *(1 for _ in shape)).expand(value.shape[0], *shape)

        self.give(op, frame, make)

    def extract(self, op: tensor.ExtractOp, frame: Frame) -> None:
        """tensor.extract at known places."""
        places = [self.number(index, op, frame) for index in op.indices]

        def make() -> torch.Tensor:
            source = self.elements(op.tensor, frame)
            lead = max([source.shape[0], *(np.size(place) for place in places)])
            index = [torch.as_tensor(place).expand(lead) for place in places]
            return source.expand(lead, *source.shape[1:])[(torch.arange(lead), *index)]

        self.give(op, frame, make)

    def reshape(self, op: Operation, frame: Frame) -> None:
        """tensor.expand_shape and tensor.collapse_shape."""
        shape = shape_of(op.results[0].type)

        def make() -> torch.Tensor:
            source = self.elements(op.operands[0], frame)
            return source.reshape(source.shape[0], *shape)

        self.give(op, frame, make)

    def transpose(self, op: linalg.TransposeOp, frame: Frame) -> None:
        """linalg.transpose."""
        order = [int(dim) + 1 for dim in op.permutation.get_values()]
        self.give(op, frame, lambda: self.elements(op.operands[0], frame).permute(0, *order))

    def broadcast(self, op: linalg.BroadcastOp, frame: Frame) -> None:
        """linalg.broadcast."""
        dims, shape = [int(dim) for dim in op.dimensions.get_values()], shape_of(op.results[0].type)

        def make() -> torch.Tensor:
            source = self.elements(op.operands[0], frame)
            for dim in sorted(dims):
                source = source.unsqueeze(dim + 1)
            return source.expand(source.shape[0], *shape)

        self.give(op, frame, make)

    def named(self, op: Operation, frame: Frame) -> None:
        """linalg.add, sub and mul."""
        shape = shape_of(op.results[0].type)
        self.meter.vector(frame.cores, math.prod(shape), dtype_of(op.results[0].type))
        function = {"linalg.add": torch.add, "linalg.sub": torch.sub, "linalg.mul": torch.mul}[op.name]

        def make() -> torch.Tensor:
            args = [self.elements(value, frame) for value in op.operands[:2]]
            return self._numbers().cast(function(*args), dtype_of(op.results[0].type))

        self.give(op, frame, make)

    def matmul(self, op: linalg.MatmulOp, frame: Frame) -> None:
        """linalg.matmul: fp32 products and sums, rounded once to the type of the result."""
        (rows, inner), columns = shape_of(op.operands[0].type), shape_of(op.operands[1].type)[1]
        self.meter.matrix(frame.cores, rows * inner * columns)

        def make() -> torch.Tensor:
            product = compute.matmul(*(self.elements(value, frame) for value in op.operands[:2]))
            return self._accumulate(op.operands[2], product, "arith.addf", frame)

        self.give(op, frame, make)

    def reduce(self, op: ReduceOp, frame: Frame) -> None:
        """linalg.reduce with a combiner of one operation."""
        first = op.combiner.block.first_op
        if first is None or first.name not in compute.REDUCERS or len(list(op.combiner.block.ops)) != 2:
            raise self.stop("op", op, "a combiner is one operation that is known")
        self.meter.vector(frame.cores, math.prod(shape_of(op.input.type)), dtype_of(op.input.type))

        def make() -> torch.Tensor:
            return self._reduce(
                self.elements(op.input, frame), [dim + 1 for dim in op.dims], first.name, op.init, frame
            )

        self.give(op, frame, make)

    def _reduce(
        self, value: torch.Tensor, dims: list[int], combiner: str, init: SSAValue, frame: Frame
    ) -> torch.Tensor:
        wide = value.to(torch.float32) if value.is_floating_point() else value
        return self._accumulate(init, compute.REDUCERS[combiner][0](wide, dims), combiner, frame)

    def _accumulate(self, init: SSAValue, value: torch.Tensor, combiner: str, frame: Frame) -> torch.Tensor:
        start = frame.get(init)
        assert isinstance(start, Data)
        if not start.empty:
            value = compute.FUNCTIONS[combiner](self.elements(init, frame).to(value.dtype), value)
        return self._numbers().cast(value, dtype_of(init.type))

    def generic(self, op: linalg.GenericOp, frame: Frame) -> None:
        """linalg.generic whose maps are projected permutations."""
        generic = self._generics.get(op)
        if generic is None:
            try:
                generic = self._generics[op] = compute.Generic(op)
            except NotImplementedError as error:
                raise self.stop("op", op, f"{error} is not among them") from None
        space = math.prod(generic.loops)
        places = generic.product()
        for inner in generic.block.ops:
            if inner.results and places is None and inner.name not in compute.CASTS and inner.name != "linalg.index":
                special = inner.name in compute.SPECIAL
                self.meter.vector(frame.cores, space, dtype_of(inner.results[0].type), special=special)
        if places is not None:
            self.meter.matrix(frame.cores, space)

        def make() -> torch.Tensor:
            if places is not None:
                left, right = (self.elements(op.operands[place], frame) for place in places)
                summed = compute.contraction(generic, left, right, places)
                return self._accumulate(op.outputs[0], summed, "arith.addf", frame)
            value = self._body(generic, frame)
            if generic.combiner is not None:
                dims = [loop + 1 for loop in generic.reduced]
                value = value.expand(value.shape[0], *generic.loops)
                name = generic.combiner.name
                ordered = compute.REDUCERS[name][0](value.to(torch.float32), dims)
                ordered = ordered.permute(0, *(place + 1 for place in generic.order))
                return self._accumulate(op.outputs[0], ordered, name, frame)
            value = value.expand(value.shape[0], *generic.loops)
            return value.permute(0, *(place + 1 for place in generic.order))

        self.give(op, frame, make)

    def _body(self, generic: compute.Generic, frame: Frame) -> torch.Tensor:
        rank, numbers = len(generic.loops), self._numbers()
        values: dict[SSAValue, torch.Tensor] = {}
        for argument, operand, mapping in zip(generic.block.args, generic.op.operands, generic.maps, strict=True):
            if argument.uses:
                try:
                    values[argument] = compute.spread(self.elements(operand, frame), mapping, rank)
                except NotImplementedError as error:
                    raise self.stop("op", generic.op, f"{error} is not among them") from None

        def get(value: SSAValue) -> torch.Tensor:
            if value in values:
                return values[value]
            outside = self.elements(value, frame)
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
                raise self.stop("op", inner, f"{inner.name} is not among them")
        return get(generic.part if generic.combiner is not None else generic.result)


def _nones(values: Iterable[Any]) -> list[Any]:
    return [None for value in values if value is None]


def _is_integer(kind: Any) -> bool:
    return isinstance(kind, IntegerType) or dtype_of(kind) == "index"


def _column(value: Number, rank: int) -> Any:
    """A number, or numbers a core as a tensor that broadcasts along a tile."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()).view(-1, *(1 for _ in range(rank)))
    return torch.as_tensor(value).view(1, *(1 for _ in range(rank)))


_INTEGERS: Final[dict[str, Callable[..., Any]]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divui": lambda a, b: a // b,
    "arith.divsi": lambda a, b: np.sign(a) * (abs(a) // b) if isinstance(a, np.ndarray) else int(a / b),
    "arith.floordivsi": lambda a, b: a // b,
    "arith.ceildivui": lambda a, b: -(-a // b),
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.remui": lambda a, b: a % b,
    "arith.remsi": np.fmod,
    "arith.minsi": lambda a, b: np.minimum(a, b) if _arrays(a, b) else min(a, b),
    "arith.minui": lambda a, b: np.minimum(a, b) if _arrays(a, b) else min(a, b),
    "arith.maxsi": lambda a, b: np.maximum(a, b) if _arrays(a, b) else max(a, b),
    "arith.maxui": lambda a, b: np.maximum(a, b) if _arrays(a, b) else max(a, b),
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.select": np.where,
    "arith.index_cast": lambda a: a,
    "arith.extsi": lambda a: a,
    "arith.extui": lambda a: a,
    "arith.trunci": lambda a: a,
}
_DIVIDES: Final = frozenset(
    {
        "arith.divui",
        "arith.divsi",
        "arith.floordivsi",
        "arith.ceildivui",
        "arith.ceildivsi",
        "arith.remui",
        "arith.remsi",
    }
)
_COMPARE: Final[tuple[Callable[..., Any], ...]] = (
    lambda a, b: np.equal(a, b).astype(np.int64),
    lambda a, b: np.not_equal(a, b).astype(np.int64),
    *[
        lambda a, b: np.less(a, b).astype(np.int64),
        lambda a, b: np.less_equal(a, b).astype(np.int64),
        lambda a, b: np.greater(a, b).astype(np.int64),
        lambda a, b: np.greater_equal(a, b).astype(np.int64),
    ]
    * 2,
)


def _arrays(*values: Any) -> bool:
    return any(isinstance(value, np.ndarray) for value in values)


_HANDLERS: Final[dict[str, Callable[[Walk, Any, Frame], None]]] = {
    "scf.for": Walk.loop,
    "scf.if": Walk.branch,
    "arith.constant": Walk.constant,
    "ktdp.get_compute_tile_id": Walk.identity,
    "ktdp.construct_memory_view": Walk.view,
    "ktdp.construct_access_tile": Walk.tile,
    "ktdp.construct_indirect_access_tile": Walk.indirect,
    "ktdp.load": Walk.load,
    "ktdp.store": Walk.store,
    "tensor.empty": Walk.empty,
    "tensor.splat": Walk.splat,
    "tensor.extract": Walk.extract,
    "tensor.expand_shape": Walk.reshape,
    "tensor.collapse_shape": Walk.reshape,
    "linalg.fill": Walk.splat,
    "linalg.transpose": Walk.transpose,
    "linalg.broadcast": Walk.broadcast,
    "linalg.matmul": Walk.matmul,
    "linalg.reduce": Walk.reduce,
    "linalg.generic": Walk.generic,
    "linalg.add": Walk.named,
    "linalg.sub": Walk.named,
    "linalg.mul": Walk.named,
}
