"""The `spyreop` dialect: scalar functions of the device, used in bodies of `linalg.generic` in the gated spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from xdsl.dialects.builtin import Float16Type, Float32Type, FloatAttr, IntegerType, f32
from xdsl.ir import Dialect, SSAValue
from xdsl.irdl import (
    AnyOf,
    BaseAttr,
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import NoMemoryEffect

if TYPE_CHECKING:
    from xdsl.parser import Parser
    from xdsl.printer import Printer

_FLOAT = AnyOf((BaseAttr(Float16Type), BaseAttr(Float32Type)))


class Unary(IRDLOperation):
    """One operand, and a result of its type."""

    T: ClassVar = VarConstraint("T", _FLOAT)
    operand = operand_def(T)
    result = result_def(T)
    traits = traits_def(NoMemoryEffect())
    assembly_format = "$operand attr-dict `:` type($result)"

    def __init__(self, operand: SSAValue) -> None:
        super().__init__(operands=[operand], result_types=[operand.type])


class Binary(IRDLOperation):
    """Two operands of one type, and a result of it."""

    T: ClassVar = VarConstraint("T", _FLOAT)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(T)
    traits = traits_def(NoMemoryEffect())
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($result)"

    def __init__(self, lhs: SSAValue, rhs: SSAValue) -> None:
        super().__init__(operands=[lhs, rhs], result_types=[lhs.type])


@irdl_op_definition
class ExpOp(Unary):
    name = "spyreop.exp"


@irdl_op_definition
class GeluOp(Unary):
    name = "spyreop.gelu"


@irdl_op_definition
class ReciprocalOp(Unary):
    name = "spyreop.reciprocal"


@irdl_op_definition
class SigmoidOp(Unary):
    name = "spyreop.sigmoid"


@irdl_op_definition
class SiluOp(Unary):
    name = "spyreop.silu"


@irdl_op_definition
class SqrtOp(Unary):
    name = "spyreop.sqrt"


@irdl_op_definition
class RsqrtOp(Unary):
    name = "spyreop.rsqrt"


@irdl_op_definition
class RealDivOp(Binary):
    name = "spyreop.realdiv"


@irdl_op_definition
class SoftplusOp(IRDLOperation):
    """`log(1 + exp(beta x)) / beta`, and x itself where `beta x` is above the threshold."""

    name = "spyreop.softplus"
    T: ClassVar = VarConstraint("T", _FLOAT)
    operand = operand_def(T)
    beta = prop_def(FloatAttr)
    threshold = prop_def(FloatAttr)
    result = result_def(T)
    traits = traits_def(NoMemoryEffect())

    def __init__(self, operand: SSAValue, beta: float, threshold: float) -> None:
        super().__init__(
            operands=[operand],
            properties={"beta": FloatAttr(beta, f32), "threshold": FloatAttr(threshold, f32)},
            result_types=[operand.type],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.operand)
        printer.print_string(" beta ")
        printer.print_float(self.beta.value.data, f32)
        printer.print_string(" threshold ")
        printer.print_float(self.threshold.value.data, f32)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> SoftplusOp:
        name = parser.parse_unresolved_operand()
        parser.parse_keyword("beta")
        beta = float(parser.parse_number())
        parser.parse_keyword("threshold")
        threshold = float(parser.parse_number())
        parser.parse_punctuation(":")
        return cls(parser.resolve_operand(name, parser.parse_type()), beta, threshold)


class _Integers(IRDLOperation):
    T: ClassVar = VarConstraint("T", BaseAttr(IntegerType))
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(T)
    traits = traits_def(NoMemoryEffect())

    def __init__(self, lhs: SSAValue, rhs: SSAValue) -> None:
        super().__init__(operands=[lhs, rhs], result_types=[lhs.type])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.lhs)
        printer.print_string(", ")
        printer.print_ssa_value(self.rhs)

    @classmethod
    def parse(cls, parser: Parser) -> _Integers:
        lhs = parser.resolve_operand(parser.parse_unresolved_operand(), IntegerType(32))
        parser.parse_punctuation(",")
        return cls(lhs, parser.resolve_operand(parser.parse_unresolved_operand(), IntegerType(32)))


@irdl_op_definition
class AddI32Op(_Integers):
    name = "spyreop.addi32toi32"


@irdl_op_definition
class MulI32Op(_Integers):
    name = "spyreop.muli32toi32"


SPYREOP = Dialect(
    "spyreop",
    [
        ExpOp,
        GeluOp,
        ReciprocalOp,
        SigmoidOp,
        SiluOp,
        SqrtOp,
        RsqrtOp,
        RealDivOp,
        SoftplusOp,
        AddI32Op,
        MulI32Op,
    ],
)
