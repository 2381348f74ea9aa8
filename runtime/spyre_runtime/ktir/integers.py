"""Arithmetic of known integers, for one core or all: what addresses and loops are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xdsl.dialects import arith

from spyre_runtime.ktir.values import Index

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdsl.ir import Operation

    from spyre_runtime.ktir.walk import Frame, Walk


def integer(walk: Walk, op: Operation, frame: Frame) -> bool:
    """Arithmetic of known integers; False where an operand is none."""
    operands = [frame.get(value) for value in op.operands]
    if not all(isinstance(operand, Index) for operand in operands):
        return False
    args: list[Any] = [operand.number for operand in operands if isinstance(operand, Index)]
    if isinstance(op, arith.CmpiOp):
        result: Any = _COMPARE[op.predicate.value.data](*args) if not _unknown(args) else None
    elif op.name not in INTEGERS:
        return False
    elif _unknown(args):
        result = None
    else:
        if op.name in _DIVIDES and int(np.min(args[1])) <= 0:
            raise walk.stop("dynamic", op, "a divisor of an address is not positive")
        result = INTEGERS[op.name](*args)
    buffers = {operand.buffer for operand in operands if isinstance(operand, Index)} - {None}
    if isinstance(result, np.ndarray) and result.ndim == 0:
        result = int(result)
    frame.values[op.results[0]] = Index(result, buffers.pop() if len(buffers) == 1 else None)
    return True


def _unknown(numbers: list[Any]) -> bool:
    return any(number is None for number in numbers)


INTEGERS: Final[dict[str, Callable[..., Any]]] = {
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
