"""Arithmetic of one element, in two spellings.

`plain` computes in fp32 with `arith` and `math`. `gated` computes in the type of the elements with what the scheduler
behind the device's compiler takes: addition, subtraction and multiplication of `arith`, and `spyreop`.
"""

from __future__ import annotations

import math as pymath
from typing import TYPE_CHECKING, Any, Literal

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IndexType, IntegerAttr, f32, i1
from xdsl.dialects.linalg import ops as linalg

from spyre_runtime.errors import KtirBuildError
from spyre_runtime.ktir import spyreop

if TYPE_CHECKING:
    from xdsl.ir import Attribute, Block, Operation, SSAValue

Spelling = Literal["plain", "gated"]
_COMPARISONS = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5}
_INTEGER_COMPARISONS = {"eq": 0, "lt": 2, "le": 3, "gt": 4, "ge": 5}


class Scalars:
    """Builds the body of a pointwise operation; numbers may stand for constants.

    Attributes:
        kind: the type that is computed in.
        gated: the spelling.
    """

    def __init__(self, block: Block, kind: AnyFloat, spelling: Spelling) -> None:
        self.kind, self.gated = kind, spelling == "gated"
        self._block = block
        self._constants: dict[tuple[float, str], SSAValue] = {}

    def put(self, op: Operation) -> SSAValue:
        """Adds an operation, and gives its result."""
        self._block.add_op(op)
        return op.results[0]

    def value(self, operand: SSAValue | float) -> SSAValue:
        """An operand as a value."""
        if not isinstance(operand, (int, float)):
            return operand
        key = (float(operand), str(self.kind))
        if key not in self._constants:
            self._constants[key] = self.put(arith.ConstantOp(FloatAttr(float(operand), self.kind)))
        return self._constants[key]

    def _plain(self, kind: type[Any], *operands: SSAValue | float) -> SSAValue:
        return self.put(kind(*(self.value(operand) for operand in operands)))

    def add(self, a: SSAValue | float, b: SSAValue | float) -> SSAValue:
        """A + b."""
        return self._plain(arith.AddfOp, a, b)

    def sub(self, a: SSAValue | float, b: SSAValue | float) -> SSAValue:
        """A - b."""
        return self._plain(arith.SubfOp, a, b)

    def mul(self, a: SSAValue | float, b: SSAValue | float) -> SSAValue:
        """A * b."""
        return self._plain(arith.MulfOp, a, b)

    def div(self, a: SSAValue | float, b: SSAValue | float) -> SSAValue:
        """A / b."""
        return self._plain(spyreop.RealDivOp if self.gated else arith.DivfOp, a, b)

    def neg(self, a: SSAValue | float) -> SSAValue:
        """-a."""
        return self.mul(a, -1.0) if self.gated else self._plain(arith.NegfOp, a)

    def exp(self, a: SSAValue | float) -> SSAValue:
        """E to the a."""
        return self._plain(spyreop.ExpOp if self.gated else math.ExpOp, a)

    def sqrt(self, a: SSAValue | float) -> SSAValue:
        """The square root."""
        return self._plain(spyreop.SqrtOp if self.gated else math.SqrtOp, a)

    def rsqrt(self, a: SSAValue | float) -> SSAValue:
        """One over the square root."""
        return self._plain(spyreop.ReciprocalOp, self.sqrt(a)) if self.gated else self._plain(math.RsqrtOp, a)

    def reciprocal(self, a: SSAValue | float) -> SSAValue:
        """1 / a."""
        return self._plain(spyreop.ReciprocalOp, a) if self.gated else self.div(1.0, a)

    def sigmoid(self, a: SSAValue | float) -> SSAValue:
        """1 / (1 + exp(-a))."""
        if self.gated:
            return self._plain(spyreop.SigmoidOp, a)
        return self.div(1.0, self.add(self.exp(self.neg(a)), 1.0))

    def silu(self, a: SSAValue | float) -> SSAValue:
        """A sigmoid(a)."""
        return self._plain(spyreop.SiluOp, a) if self.gated else self.mul(a, self.sigmoid(a))

    def gelu(self, a: SSAValue | float) -> SSAValue:
        """A Φ(a)."""
        if self.gated:
            return self._plain(spyreop.GeluOp, a)
        half = self.mul(a, 0.5)
        return self.mul(half, self.add(self.erf(self.mul(a, pymath.sqrt(0.5))), 1.0))

    def relu(self, a: SSAValue | float) -> SSAValue:
        """The larger of a and 0."""
        return self.maximum(a, 0.0)

    def tanh(self, a: SSAValue | float) -> SSAValue:
        """The hyperbolic tangent."""
        if self.gated:
            return self.sub(self.mul(self.sigmoid(self.mul(a, 2.0)), 2.0), 1.0)
        return self._plain(math.TanhOp, a)

    def maximum(self, a: SSAValue | float, b: SSAValue | float) -> SSAValue:
        """The larger; NaN where one is."""
        return self._plain(arith.MaximumfOp, a, b)

    def minimum(self, a: SSAValue | float, b: SSAValue | float) -> SSAValue:
        """The smaller; NaN where one is."""
        return self._plain(arith.MinimumfOp, a, b)

    def abs(self, a: SSAValue | float) -> SSAValue:
        """The magnitude."""
        return self._only_plain("abs", math.AbsFOp, a)

    def erf(self, a: SSAValue | float) -> SSAValue:
        """The error function."""
        return self._only_plain("erf", math.ErfOp, a)

    def log(self, a: SSAValue | float) -> SSAValue:
        """The natural logarithm."""
        return self._only_plain("log", math.LogOp, a)

    def sin(self, a: SSAValue | float) -> SSAValue:
        """The sine."""
        return self._only_plain("sin", math.SinOp, a)

    def cos(self, a: SSAValue | float) -> SSAValue:
        """The cosine."""
        return self._only_plain("cos", math.CosOp, a)

    def pow(self, a: SSAValue | float, b: SSAValue | float) -> SSAValue:
        """A to the b."""
        return self._only_plain("pow", math.PowFOp, a, b)

    def compare(self, word: str, a: SSAValue | float, b: SSAValue | float) -> SSAValue:
        """Whether a is `eq`, `gt`, `ge`, `lt` or `le` b."""
        return self.put(arith.CmpfOp(self.value(a), self.value(b), _COMPARISONS[word]))

    def select(self, condition: SSAValue, a: SSAValue | float, b: SSAValue | float) -> SSAValue:
        """A where the condition holds, else b."""
        return self.put(arith.SelectOp(condition, self.value(a), self.value(b)))

    def place(self, loop: int) -> SSAValue:
        """The coordinate of a dim, as an index."""
        return self.put(linalg.IndexOp(loop))

    def index_add(self, a: SSAValue, b: SSAValue | int) -> SSAValue:
        """The sum of indices."""
        return self.put(arith.AddiOp(a, self._index(b)))

    def index_compare(self, word: str, a: SSAValue, b: SSAValue | int) -> SSAValue:
        """Whether an index is `eq`, `gt`, `ge`, `lt` or `le` another."""
        return self.put(arith.CmpiOp(a, self._index(b), _INTEGER_COMPARISONS[word]))

    def _index(self, value: SSAValue | int) -> SSAValue:
        return self.put(arith.ConstantOp(IntegerAttr(value, IndexType()))) if isinstance(value, int) else value

    def _only_plain(self, word: str, kind: type[Any], *operands: SSAValue | float) -> SSAValue:
        if self.gated:
            raise KtirBuildError(f"{word} has no gated spelling: build the kernel in the plain one")
        return self._plain(kind, *operands)

    def widen(self, value: SSAValue) -> SSAValue:
        """An element as one of the type that is computed in."""
        if value.type in (self.kind, i1) or isinstance(value.type, IndexType):
            return value
        if self.kind == f32:
            return self.put(arith.ExtFOp(value, f32))
        raise KtirBuildError(f"elements of {value.type} in a body of {self.kind}: convert them before")

    def narrow(self, value: SSAValue, kind: Attribute) -> SSAValue:
        """A result as an element of the output."""
        return value if value.type == kind else self.put(arith.TruncFOp(value, kind))
