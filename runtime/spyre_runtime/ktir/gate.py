"""The published legality rules of the scheduler behind the device's compiler, as far as they are known.

Written from its public tests and sources of August 2026. A kernel without refusals is `gate-clean`: the first check
would take it. Whether later passes do is not known here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from xdsl.dialects import scf
from xdsl.dialects.linalg import ops as linalg

from spyre_runtime.ktir import dialect
from spyre_runtime.ktir.findings import name_of
from spyre_runtime.ktir.reduce import ReduceOp

if TYPE_CHECKING:
    from xdsl.ir import Operation, SSAValue

    from spyre_runtime.ktir.kernel import Kernel

GATE_RULES: Final[dict[str, str]] = {
    "gate-loop": "loops carry no values",
    "gate-while": "there is no scf.while",
    "gate-view": "views are not made of several",
    "gate-gather": "tiles are not indirect",
    "gate-named": "of linalg's named operations, only add, mul, sub and reduce",
    "gate-body": "bodies have addf, subf, mulf and spyreop only",
    "gate-math": "math is not used outside of bodies",
    "gate-initial": "reductions begin without an initial value",
    "gate-block": "what is loaded is stored in the same block",
    "gate-reuse": "what is stored is not computed with",
}

_NAMED: Final = frozenset({"linalg.add", "linalg.mul", "linalg.sub", "linalg.reduce", "linalg.yield", "linalg.generic"})
_BODY: Final = frozenset({"arith.addf", "arith.subf", "arith.mulf", "linalg.yield"})
# Taken by a later stored version of the check.
_BODY_LATER: Final = frozenset(
    {
        "arith.maximumf",
        "arith.minimumf",
        "arith.maxnumf",
        "arith.minnumf",
        "arith.cmpf",
        "arith.cmpi",
        "arith.select",
        "arith.constant",
        "arith.addi",
        "math.absf",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """What the gate would refuse.

    Attributes:
        rule: of `GATE_RULES`.
        where: the operation.
    """

    rule: str
    where: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where} ({GATE_RULES[self.rule]})"


def refusals(kernel: Kernel, *, later: bool = False) -> tuple[Refusal, ...]:
    """What the gate would refuse in a kernel; nothing means gate-clean.

    Args:
        kernel: what to check.
        later: by the later stored version of the check, which takes more in bodies.
    """
    body = _BODY | _BODY_LATER if later else _BODY
    found: dict[Refusal, None] = {}
    for op in kernel.func.walk():
        rule = _rule(op, body)
        if rule:
            found[Refusal(rule=rule, where=name_of(op))] = None
    return tuple(found)


def _rule(op: Operation, body: frozenset[str]) -> str:
    if isinstance(op, scf.ForOp):
        return "gate-loop" if op.iter_args else ""
    if isinstance(op, dialect.StoreOp):
        return _store(op)
    if isinstance(op, (linalg.GenericOp, ReduceOp)) and _initial(op):
        return "gate-initial"
    simple = {
        "scf.while": "gate-while",
        "ktdp.construct_distributed_memory_view": "gate-view",
        "ktdp.construct_indirect_access_tile": "gate-gather",
    }
    if op.name in simple:
        return simple[op.name]
    parent = op.parent_op()
    if isinstance(parent, (linalg.GenericOp, ReduceOp)):
        reduces = isinstance(parent, ReduceOp)  # its combiner is not looked into
        return "" if reduces or op.name in body or op.name.startswith("spyreop.") else "gate-body"
    if op.name.startswith("math."):
        return "gate-math"
    return "gate-named" if op.name.startswith("linalg.") and op.name not in _NAMED else ""


def _initial(op: linalg.GenericOp | ReduceOp) -> bool:
    if isinstance(op, ReduceOp):
        init: SSAValue = op.init
    else:
        if all(kind.data.value == "parallel" for kind in op.iterator_types.data) or not op.outputs:
            return False
        init = op.outputs[0]
    return getattr(init.owner, "name", "") != "tensor.empty"


def _store(op: dialect.StoreOp) -> str:
    value = op.data_tile
    if sum(1 for _ in value.uses) > 1:
        return "gate-reuse"
    here, seen, todo = op.parent_block(), set(), [value]
    while todo:
        owner = todo.pop().owner
        if isinstance(owner, dialect.LoadOp) and owner.parent_block() is not here:
            return "gate-block"
        if owner not in seen and hasattr(owner, "operands"):
            seen.add(owner)
            todo.extend(owner.operands)
    return ""
