"""How much lives in a core's scratchpad at once, by liveness of the values in the text.

A value lives from its operation to its last use. `tensor.empty` and reshapes take nothing; an operation of linalg
works in the memory of an output operand that dies with it; what a loop carries is one memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from xdsl.dialects import scf
from xdsl.dialects.builtin import TensorType

from spyre_runtime.ktir.compute import dtype_of, shape_of
from spyre_runtime.ktir.machine import ITEM_BYTES

if TYPE_CHECKING:
    from xdsl.dialects.func import FuncOp
    from xdsl.ir import Block, Operation, SSAValue

_SAME_MEMORY: Final = frozenset({"tensor.expand_shape", "tensor.collapse_shape"})
_OUTPUT: Final[dict[str, int]] = {"linalg.transpose": 1, "linalg.broadcast": 1, "linalg.fill": 1, "linalg.reduce": 1}


def tensor_bytes(value: SSAValue) -> int:
    """Bytes of a tensor in a core; 0 of everything else."""
    if not isinstance(value.type, TensorType):
        return 0
    return math.prod(shape_of(value.type)) * ITEM_BYTES.get(dtype_of(value.type), 8)


def high_water(func: FuncOp) -> tuple[int, Operation | None]:
    """The most bytes that live at once, and the operation at which they do."""
    return _Liveness().block(func.body.block)


class _Liveness:
    def __init__(self) -> None:
        self.roots: dict[SSAValue, SSAValue] = {}

    def root(self, value: SSAValue) -> SSAValue:
        return self.roots.get(value, value)

    def block(self, block: Block) -> tuple[int, Operation | None]:
        """The high water of a block; what lives around it is not counted."""
        ops = list(block.ops)
        last: dict[SSAValue, int] = {}
        for number, op in enumerate(ops):
            if op.name in _SAME_MEMORY and op.operands:
                self.roots[op.results[0]] = self.root(op.operands[0])
            for inner in op.walk():
                for operand in inner.operands:
                    last[self.root(operand)] = number
        sizes: dict[SSAValue, int] = {argument: tensor_bytes(argument) for argument in block.args}
        live = sum(sizes.values())
        peak, at = live, block.first_op
        for number, op in enumerate(ops):
            dying = [
                value for value in {self.root(v) for v in self._reads(op)} if last[value] == number and value in sizes
            ]
            made = 0 if op.name in _SAME_MEMORY or op.name == "tensor.empty" else sum(map(tensor_bytes, op.results))
            inside, where = self._inside(op)
            reused = self._reused(op, dying, sizes)
            during = live + max(made - reused, inside - reused)
            if during > peak:
                peak, at = during, where or op
            for value in dying:
                live -= sizes.pop(value)
            for result in op.results:
                if op.name not in _SAME_MEMORY:
                    sizes[result] = 0 if op.name == "tensor.empty" else tensor_bytes(result)
                    live += sizes[result]
                    if result not in last:
                        live -= sizes.pop(result)
        return peak, at

    def _reads(self, op: Operation) -> list[SSAValue]:
        return [operand for inner in op.walk() for operand in inner.operands]

    def _inside(self, op: Operation) -> tuple[int, Operation | None]:
        best: tuple[int, Operation | None] = (0, None)
        if op.name.startswith("scf."):
            for region in op.regions:
                for block in region.blocks:
                    found = self.block(block)
                    best = max(best, found, key=lambda pair: pair[0])
        return best

    def _reused(self, op: Operation, dying: list[SSAValue], sizes: dict[SSAValue, int]) -> int:
        if isinstance(op, scf.ForOp):
            outputs = list(op.iter_args)
        elif op.name.startswith("linalg.") and op.results:
            outputs = [op.operands[_OUTPUT.get(op.name, len(op.operands) - 1)]]
        else:
            return 0
        return sum(sizes[self.root(value)] for value in outputs if self.root(value) in dying)
