"""Affine expressions as the dialect writes them: `-d0 + 31`, `%k floordiv 64`; and boxes as sets and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from xdsl.dialects.builtin import AffineSetAttr
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineConstraintExpr,
    AffineConstraintKind,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
    AffineSet,
    AffineSymExpr,
)

if TYPE_CHECKING:
    from xdsl.parser import Parser, UnresolvedOperand

MAX_TERMS: Final = 64

Namer = Callable[[AffineExpr], str]


def letter(expr: AffineExpr) -> str:
    """`d0` or `s0`."""
    if isinstance(expr, AffineDimExpr):
        return f"d{expr.position}"
    if isinstance(expr, AffineSymExpr):
        return f"s{expr.position}"
    raise TypeError(expr)


def print_expr(expr: AffineExpr, name: Namer = letter, *, tight: bool = False) -> str:
    """An expression as MLIR prints it.

    Args:
        expr: what to print.
        name: what dims and symbols are called.
        tight: put a sum in parentheses.
    """
    if isinstance(expr, AffineConstantExpr):
        return str(expr.value)
    if not isinstance(expr, AffineBinaryOpExpr):
        return name(expr)
    if expr.kind is AffineBinaryOpKind.Add:
        text = _sum(expr, name)
        return f"({text})" if tight else text
    if expr.kind is AffineBinaryOpKind.Mul and _is(expr.rhs, -1):
        return f"-{print_expr(expr.lhs, name, tight=True)}"
    left, right = print_expr(expr.lhs, name, tight=True), print_expr(expr.rhs, name, tight=True)
    if isinstance(expr.lhs, AffineBinaryOpExpr) and expr.lhs.kind is not AffineBinaryOpKind.Add:
        left = f"({left})"
    if isinstance(expr.rhs, AffineBinaryOpExpr) and expr.rhs.kind is not AffineBinaryOpKind.Add:
        right = f"({right})"
    return f"{left} {expr.kind.get_token()} {right}"


def _sum(expr: AffineBinaryOpExpr, name: Namer) -> str:
    left, right = print_expr(expr.lhs, name), expr.rhs
    if isinstance(right, AffineConstantExpr) and right.value < 0:
        return f"{left} - {-right.value}"
    if isinstance(right, AffineBinaryOpExpr) and right.kind is AffineBinaryOpKind.Mul and _is(right.rhs, -1):
        return f"{left} - {print_expr(right.lhs, name, tight=True)}"
    return f"{left} + {print_expr(right, name, tight=True)}"


def _is(expr: AffineExpr, value: int) -> bool:
    return isinstance(expr, AffineConstantExpr) and expr.value == value


def print_map(mapping: AffineMap) -> str:
    """`affine_map<(d0, d1) -> (d1)>`."""
    results = ", ".join(print_expr(result) for result in mapping.results)
    return f"affine_map<{_space(mapping.num_dims, mapping.num_symbols)} -> ({results})>"


def print_set(data: AffineSet) -> str:
    """`affine_set<(d0) : (d0 >= 0, -d0 + 7 >= 0)>`."""
    parts = ", ".join(f"{print_expr(c.lhs)} {c.kind.value} {print_expr(c.rhs)}" for c in data.constraints)
    return f"affine_set<{_space(data.num_dims, data.num_symbols)} : ({parts})>"


def _space(dims: int, symbols: int) -> str:
    text = f"({', '.join(f'd{n}' for n in range(dims))})"
    return text + (f"[{', '.join(f's{n}' for n in range(symbols))}]" if symbols else "")


def box(sizes: Sequence[int]) -> AffineSetAttr:
    """The set of all coordinates from 0 below `sizes`."""
    dims = [AffineExpr.dimension(number) for number in range(len(sizes))]
    sides = [side for dim, size in zip(dims, sizes, strict=True) for side in (dim, dim * -1 + (size - 1))]
    zero = AffineExpr.constant(0)
    constraints = tuple(AffineConstraintExpr(AffineConstraintKind.ge, side, zero) for side in sides)
    return AffineSetAttr(AffineSet(len(sizes), 0, constraints))


def box_sizes(data: AffineSet) -> tuple[int, ...] | None:
    """The sizes of a set that is a box from 0; None for any other set."""
    if data.num_symbols or len(data.constraints) > 4 * data.num_dims:
        return None
    low: dict[int, int] = {}
    high: dict[int, int] = {}
    for constraint in data.constraints:
        bound = _bound(constraint.lhs)
        if constraint.kind is not AffineConstraintKind.ge or not _is(constraint.rhs, 0) or bound is None:
            return None
        dim, factor, offset = bound
        side, value = (low, -offset) if factor == 1 else (high, offset)
        keep = max if factor == 1 else min
        side[dim] = keep(side.get(dim, value), value)
    if any(low.get(dim) != 0 or dim not in high for dim in range(data.num_dims)):
        return None
    return tuple(high[dim] + 1 for dim in range(data.num_dims))


def _bound(expr: AffineExpr) -> tuple[int, int, int] | None:
    """`(dim, ±1, offset)` of `±dim + offset`."""
    offset = 0
    while isinstance(expr, AffineBinaryOpExpr) and expr.kind is AffineBinaryOpKind.Add:
        if isinstance(expr.rhs, AffineConstantExpr):
            offset, expr = offset + expr.rhs.value, expr.lhs
        elif isinstance(expr.lhs, AffineConstantExpr):
            offset, expr = offset + expr.lhs.value, expr.rhs
        else:
            return None
    factor = 1
    if isinstance(expr, AffineBinaryOpExpr) and expr.kind is AffineBinaryOpKind.Mul and _is(expr.rhs, -1):
        factor, expr = -1, expr.lhs
    return (expr.position, factor, offset) if isinstance(expr, AffineDimExpr) else None


class ValueMap:
    """Reads expressions over SSA values: each name becomes a dim, in order of first use."""

    def __init__(self, parser: Parser) -> None:
        self.parser = parser
        self.spans: list[UnresolvedOperand] = []
        self._places: dict[str, int] = {}
        self._terms = 0

    def expression(self) -> AffineExpr:
        """A sum of products."""
        left = self._product()
        while True:
            if self.parser.parse_optional_characters("+"):
                left = left + self._product()
            elif self.parser.parse_optional_characters("-"):
                left = left - self._product()
            else:
                return left

    def _product(self) -> AffineExpr:
        left = self._primary()
        while True:
            if self.parser.parse_optional_characters("*"):
                left = left * self._primary()
            elif self.parser.parse_optional_keyword("floordiv"):
                left = left // self._primary()
            elif self.parser.parse_optional_keyword("ceildiv"):
                left = left.ceil_div(self._primary())
            elif self.parser.parse_optional_keyword("mod"):
                left = left % self._primary()
            else:
                return left

    def _primary(self) -> AffineExpr:
        self._terms += 1
        if self._terms > MAX_TERMS:
            self.parser.raise_error(f"a subscript has at most {MAX_TERMS} terms")
        name = self.parser.parse_optional_unresolved_operand()
        if name is not None:
            key = f"{name.operand_name}#{name.index}"
            if key not in self._places:
                self._places[key] = len(self.spans)
                self.spans.append(name)
            return AffineExpr.dimension(self._places[key])
        if self.parser.parse_optional_punctuation("("):
            inner = self.expression()
            self.parser.parse_punctuation(")")
            return inner
        if self.parser.parse_optional_characters("-"):
            return self._primary() * -1
        return AffineExpr.constant(self.parser.parse_integer(allow_boolean=False, allow_negative=False))


def evaluate(expr: AffineExpr, dims: Sequence[object]) -> object:
    """The value of an expression; `dims` are numbers or arrays of numbers.

    Raises:
        ZeroDivisionError: the divisor of a floordiv, ceildiv or mod is not positive.
    """
    if isinstance(expr, AffineConstantExpr):
        return expr.value
    if isinstance(expr, AffineDimExpr):
        return dims[expr.position]
    if not isinstance(expr, AffineBinaryOpExpr):
        raise ZeroDivisionError("symbols have no value here")
    left, right = evaluate(expr.lhs, dims), evaluate(expr.rhs, dims)
    return _OPERATIONS[expr.kind](left, right)


def _divisor(value: object) -> object:
    if not isinstance(value, int) or value <= 0:
        raise ZeroDivisionError("a divisor is a positive constant")
    return value


_OPERATIONS: Final[dict[AffineBinaryOpKind, Callable[..., object]]] = {
    AffineBinaryOpKind.Add: lambda a, b: a + b,
    AffineBinaryOpKind.Mul: lambda a, b: a * b,
    AffineBinaryOpKind.FloorDiv: lambda a, b: a // _divisor(b),
    AffineBinaryOpKind.CeilDiv: lambda a, b: -(-a // _divisor(b)),
    AffineBinaryOpKind.Mod: lambda a, b: a % _divisor(b),
}
