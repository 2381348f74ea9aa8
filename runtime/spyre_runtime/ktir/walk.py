"""Walks a kernel once for all cores: control flow and addresses exactly, tensors only where there is a number format.

A verifier walks dry: it knows every address, and no element. The emulator walks with elements. Where cores part (a
loop that some run longer, a condition that holds for some), the part is walked for those cores only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from xdsl.dialects import scf

from spyre_runtime.ktir import addresses, compute, tensors
from spyre_runtime.ktir.compute import dtype_of, is_integer, shape_of
from spyre_runtime.ktir.integers import INTEGERS
from spyre_runtime.ktir.tensors import elementwise
from spyre_runtime.ktir.values import Data, Index, Number, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdsl.ir import Block, Operation, SSAValue

    from spyre_runtime.ktir.cost import Meter
    from spyre_runtime.ktir.findings import Findings
    from spyre_runtime.ktir.kernel import Kernel
    from spyre_runtime.ktir.memory import Memory
    from spyre_runtime.ktir.numbers import Numbers

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
            if self.parent is None:
                raise StopWalkError("ir")
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
        self.generics: dict[Operation, compute.Generic] = {}

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
            if not self.findings.found:
                self.findings.add("ir", self.kernel.name, "a value is used before it is made")
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
            if isinstance(op, scf.ForOp):
                self.loop(op, frame)
            elif isinstance(op, scf.IfOp):
                self.branch(op, frame)
            elif handler is not None:
                handler(self, op, frame)
            elif compute.known(op) or op.name in INTEGERS:
                elementwise(self, op, frame)
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

    # Tensors.

    def elements(self, value: SSAValue, frame: Frame) -> torch.Tensor:
        """The elements of a value, with an axis of cores."""
        found = frame.get(value)
        if isinstance(found, Index):
            number = torch.as_tensor(found.number)
            number = number if number.ndim else number.view(1)
            return number.to(self.formats.torch_dtype(dtype_of(value.type)))
        assert isinstance(found, Data)
        assert found.tensor is not None, value
        return found.tensor

    @property
    def formats(self) -> Numbers:
        """The number formats, where there are elements."""
        assert self.numbers is not None
        return self.numbers

    def give(
        self, op: Operation, frame: Frame, make: Callable[[], torch.Tensor] | None, *, empty: bool = False
    ) -> None:
        """Sets the result of an operation; elements are made only where there is a number format."""
        kind = op.results[0].type
        made = make() if make is not None and self.numbers is not None else None
        if made is None and self.numbers is None and is_integer(kind) and not shape_of(kind):
            frame.values[op.results[0]] = Index(None)
            return
        frame.values[op.results[0]] = Data(dtype_of(kind), shape_of(kind), made, empty)


_HANDLERS: Final[dict[str, Callable[[Walk, Any, Frame], None]]] = {**addresses.HANDLERS, **tensors.HANDLERS}
