"""Parts of the custom forms of `ktdp`: types of tiles, attributes, and subscripts over values."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import DenseArrayBase, IndexType
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap

from spyre_runtime.ktir.affine import ValueMap, print_expr
from spyre_runtime.ktir.spaces import AccessTileType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdsl.ir import Attribute, SSAValue
    from xdsl.irdl import IRDLOperation
    from xdsl.parser import Parser, UnresolvedOperand
    from xdsl.printer import Printer


def parse_tile_type(parser: Parser) -> Attribute:
    """Reads a tile's type, also in the short form `<4x64xindex>` that MLIR prints."""
    position = parser.pos
    if parser.parse_optional_punctuation("<"):
        shape, element = parser.parse_ranked_shape()
        parser.parse_punctuation(">")
        if not isinstance(element, IndexType):
            parser.raise_error("an access tile is of index", position)
        return AccessTileType(shape)
    kind = parser.parse_type()
    if not isinstance(kind, AccessTileType):
        parser.raise_error("an access tile type is due", position)
    return kind


def print_types(printer: Printer, types: Sequence[Attribute]) -> None:
    """Prints types, with commas between."""
    printer.print_list(types, printer.print_attribute)


def integers(static: DenseArrayBase) -> list[int]:
    """The numbers of a dense list."""
    return [int(value) for value in static.get_values()]  # type: ignore[misc]  # of i64, as built


def print_attrs(printer: Printer, op: IRDLOperation, names: Sequence[str]) -> None:
    """Prints named attributes, and those that are no part of the operation."""
    entries = {name: op.properties[name] for name in names if name in op.properties}
    printer.print_op_attributes({**entries, **op.attributes}, print_keyword=False)


def parse_attrs(parser: Parser, names: Sequence[str]) -> dict[str, Attribute]:
    """Reads attributes: those that are due, and no others."""
    attrs = dict(parser.parse_optional_attr_dict())
    if sorted(attrs) != sorted(names):
        parser.raise_error(f"the attributes {', '.join(names)} are due")
    return attrs


def print_map_of_values(
    printer: Printer, results: Sequence[AffineExpr], values: Sequence[SSAValue], brackets: str
) -> None:
    """Prints expressions over values, in brackets."""

    def name(expr: AffineExpr) -> str:
        # The printer names values as it goes; a name is taken from it without printing.
        assert isinstance(expr, AffineDimExpr)
        return name_of(printer, values[expr.position])

    printer.print_string(brackets[0])
    printer.print_string(", ".join(print_expr(result, name) for result in results))
    printer.print_string(brackets[1])


def name_of(printer: Printer, value: SSAValue) -> str:
    """What a printer calls a value."""
    text = io.StringIO()
    stream, printer.stream = printer.stream, text
    try:
        printer.print_ssa_value(value)
    finally:
        printer.stream = stream
    return text.getvalue()


def parse_map_of_values(
    parser: Parser, delimiter: Parser.Delimiter
) -> tuple[tuple[AffineExpr, ...], list[UnresolvedOperand]]:
    """Reads expressions over values in brackets, and the values in order of their first use."""
    reader = ValueMap(parser)
    exprs = parser.parse_comma_separated_list(delimiter, reader.expression)
    return tuple(exprs), reader.spans


def parse_symbols(parser: Parser) -> list[SSAValue]:
    """Reads `symbols(%a, %b)` where it comes."""
    if not parser.parse_optional_keyword("symbols"):
        return []
    names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    return [parser.resolve_operand(name, IndexType()) for name in names]


def parse_subscript(
    parser: Parser,
) -> tuple[UnresolvedOperand | None, AffineMap, list[UnresolvedOperand]]:
    """Reads `(expression)` or `ind(%view[expressions])`."""
    if not parser.parse_optional_keyword("ind"):
        exprs, spans = parse_map_of_values(parser, parser.Delimiter.PAREN)
        if len(exprs) != 1:
            parser.raise_error("a subscript is one expression")
        return None, AffineMap(len(spans), 0, exprs), spans
    parser.parse_punctuation("(")
    memref = parser.parse_unresolved_operand()
    exprs, spans = parse_map_of_values(parser, parser.Delimiter.SQUARE)
    parser.parse_punctuation(")")
    return memref, AffineMap(len(spans), 0, exprs), spans
