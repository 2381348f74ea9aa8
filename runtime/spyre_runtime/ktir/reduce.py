"""`linalg.reduce` that also reads the short form `linalg.reduce {arith.addf} ins(…) outs(…) dimensions = [1]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseArrayBase, TensorType, i64
from xdsl.dialects.linalg import ops as linalg
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, region_def, result_def
from xdsl.utils.exceptions import VerifyException

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdsl.parser import Parser
    from xdsl.printer import Printer

_COMBINERS: Final[dict[str, type[Operation]]] = {
    "arith.addf": arith.AddfOp,
    "arith.mulf": arith.MulfOp,
    "arith.maximumf": arith.MaximumfOp,
    "arith.minimumf": arith.MinimumfOp,
    "arith.maxnumf": arith.MaxnumfOp,
    "arith.minnumf": arith.MinnumfOp,
    "arith.addi": arith.AddiOp,
    "arith.muli": arith.MuliOp,
}


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Combines the elements along dims into an initial tensor."""

    name = "linalg.reduce"
    input = operand_def(TensorType)
    init = operand_def(TensorType)
    dimensions = prop_def(DenseArrayBase)
    combiner = region_def("single_block")
    result = result_def(TensorType)

    def __init__(self, value: SSAValue, init: SSAValue, dimensions: Sequence[int], combiner: Region) -> None:
        super().__init__(
            operands=[value, init],
            properties={"dimensions": DenseArrayBase.from_list(i64, list(dimensions))},
            regions=[combiner],
            result_types=[init.type],
        )

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims that go."""
        return tuple(int(dim) for dim in self.dimensions.get_values())

    def verify_(self) -> None:
        value, init = self.input.type, self.init.type
        assert isinstance(value, TensorType)
        assert isinstance(init, TensorType)
        shape, dims = value.get_shape(), set(self.dims)
        if len(dims) != len(self.dims) or not all(0 <= dim < len(shape) for dim in dims):
            raise VerifyException("linalg.reduce: dimensions are distinct dims of the input")
        kept = tuple(size for dim, size in enumerate(shape) if dim not in dims)
        if init.get_shape() != kept or init.element_type != value.element_type or self.result.type != init:
            raise VerifyException("linalg.reduce: the initial tensor has the kept dims and the input's element type")
        if len(self.combiner.block.args) != 2:
            raise VerifyException("linalg.reduce: the combiner takes two values")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ins(")
        printer.print_ssa_value(self.input)
        printer.print_string(" : ")
        printer.print_attribute(self.input.type)
        printer.print_string(") outs(")
        printer.print_ssa_value(self.init)
        printer.print_string(" : ")
        printer.print_attribute(self.init.type)
        printer.print_string(f") dimensions = [{', '.join(map(str, self.dims))}] (")
        printer.print_list(self.combiner.block.args, printer.print_block_argument)
        printer.print_string(") ")
        printer.print_region(self.combiner, print_entry_block_args=False)

    @classmethod
    def parse(cls, parser: Parser) -> ReduceOp:
        short = None
        if parser.parse_optional_punctuation("{"):
            word = parser.parse_identifier()
            if word not in _COMBINERS:
                parser.raise_error(f"a combiner is one of {', '.join(_COMBINERS)}")
            short = _COMBINERS[word]
            parser.parse_punctuation("}")
        operands = [_operand(parser, word) for word in ("ins", "outs")]
        parser.parse_keyword("dimensions")
        parser.parse_punctuation("=")
        dims = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        if short is not None:
            region = combiner(short, _element(operands[1].type))
        else:
            region = parser.parse_region(
                parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
            )
        return cls(operands[0], operands[1], dims, region)


def combiner(kind: type[Operation], element: Attribute) -> Region:
    """A region of two values that yields `kind(first, second)`."""
    block = Block(arg_types=[element, element])
    op = kind(*block.args)
    block.add_ops([op, linalg.YieldOp(op.results[0])])
    return Region(block)


def _element(kind: Attribute) -> Attribute:
    return kind.element_type if isinstance(kind, TensorType) else kind


def _operand(parser: Parser, word: str) -> SSAValue:
    parser.parse_keyword(word)
    parser.parse_punctuation("(")
    name = parser.parse_unresolved_operand()
    parser.parse_punctuation(":")
    value = parser.resolve_operand(name, parser.parse_type())
    parser.parse_punctuation(")")
    return value
