"""Size expressions: a small total parser, and evaluation over any integers (Python's, or torch's symbolic ones).

    condition := conjunction ("or" conjunction)*        sum     := term (("+" | "-") term)*
    conjunction := negation ("and" negation)*           term    := unary (("*" | "//" | "%") unary)*
    negation := "not" negation | comparison             unary   := "-" unary | atom
    comparison := sum (("==" | "!=" | "<" | "<=" | ">" | ">=") sum)?
    atom := integer | symbol | ("min" | "max") "(" sum ("," sum)+ ")" | "(" condition ")"

Numbers and conditions do not mix: `(s0 < 2) + 1` is refused. Division and remainder round as Python's do.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from spyre_runtime.errors import SymbolError

MAX_LENGTH: Final = 4096
MAX_DEPTH: Final = 40
MAX_OPERATORS: Final = 256  # evaluation recurses at most this deep
MAX_LITERAL: Final = (1 << 63) - 1

SYMBOL_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_RESERVED: Final = frozenset({"min", "max", "and", "or", "not"})
_TOKEN: Final = re.compile(r"\s*(?:([0-9]+)|([a-z][a-z0-9_]*)|(//|<=|>=|==|!=|[-+*%(),<>]))")
_COMPARISONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})


class Const(NamedTuple):
    """An integer literal."""

    value: int


class Name(NamedTuple):
    """A symbol."""

    name: str


class Apply(NamedTuple):
    """An operator over operands; `neg` and `not` are the unary ones, `min` and `max` take two or more."""

    op: str
    args: tuple[Expr, ...]


Expr = Const | Name | Apply

BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _Parser:
    """Recursive descent over the tokens of one text; every method returns (expression, is it a condition)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.at = 0
        self.depth = 0

    def parse(self) -> tuple[Expr, bool]:
        parsed = self.condition()
        if self.peek() is not None:
            raise self.error(f"unexpected {self.peek()!r}")
        return parsed

    def error(self, what: str) -> SymbolError:
        return SymbolError(
            f"a size expression follows the grammar of spyre_runtime.symbols; {what} in {self.text[:80]!r}"
        )

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, *wanted: str) -> str | None:
        token = self.peek()
        if token is not None and token in wanted:
            self.at += 1
            return token
        return None

    def need(self, token: str) -> None:
        if self.take(token) is None:
            raise self.error(f"{token!r} expected, {self.peek()!r} found")

    def nested(self, rule: Callable[[], tuple[Expr, bool]]) -> tuple[Expr, bool]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nesting deeper than {MAX_DEPTH}")
        try:
            return rule()
        finally:
            self.depth -= 1

    def want(self, parsed: tuple[Expr, bool], condition: bool) -> Expr:
        expr, is_condition = parsed
        if is_condition != condition:
            words = ("a number", "a condition")
            raise self.error(f"{words[condition]} expected where {words[is_condition]} stands")
        return expr

    def chain(self, rule: Callable[[], tuple[Expr, bool]], *ops: str, condition: bool) -> tuple[Expr, bool]:
        """A left-associative chain of operators, or the single operand there is."""
        first = rule()
        if self.peek() not in ops:
            return first
        expr = self.want(first, condition)
        while (op := self.take(*ops)) is not None:
            expr = Apply(op, (expr, self.want(rule(), condition)))
        return expr, condition

    def condition(self) -> tuple[Expr, bool]:
        return self.chain(self.conjunction, "or", condition=True)

    def conjunction(self) -> tuple[Expr, bool]:
        return self.chain(self.negation, "and", condition=True)

    def negation(self) -> tuple[Expr, bool]:
        if self.take("not"):
            return Apply("not", (self.want(self.nested(self.negation), condition=True),)), True
        return self.comparison()

    def comparison(self) -> tuple[Expr, bool]:
        left = self.sum()
        op = self.take(*_COMPARISONS)
        if op is None:
            return left
        return Apply(op, (self.want(left, condition=False), self.want(self.sum(), condition=False))), True

    def sum(self) -> tuple[Expr, bool]:
        return self.chain(self.term, "+", "-", condition=False)

    def term(self) -> tuple[Expr, bool]:
        return self.chain(self.unary, "*", "//", "%", condition=False)

    def unary(self) -> tuple[Expr, bool]:
        if self.take("-"):
            return Apply("neg", (self.want(self.nested(self.unary), condition=False),)), False
        return self.atom()

    def atom(self) -> tuple[Expr, bool]:
        word = self.peek()
        if word is None:
            raise self.error("the end comes too early")
        self.at += 1
        if word.isdigit():
            if len(word) > 19 or int(word) > MAX_LITERAL:
                raise self.error(f"the literal {word[:24]} is beyond 64 bits")
            return Const(int(word)), False
        if word == "(":
            inner = self.nested(self.condition)
            self.need(")")
            return inner
        if word in {"min", "max"}:
            return self.extremum(word)
        if word in _RESERVED or not SYMBOL_NAME.fullmatch(word):
            raise self.error(f"unexpected {word[:40]!r}")
        return Name(word), False

    def extremum(self, which: str) -> tuple[Expr, bool]:
        self.need("(")
        args = [self.want(self.nested(self.sum), condition=False)]
        while self.take(","):
            args.append(self.want(self.nested(self.sum), condition=False))
        self.need(")")
        if len(args) < 2:
            raise self.error(f"{which} of a single value")
        return Apply(which, tuple(args)), False


def _tokens(text: str) -> list[str]:
    if len(text) > MAX_LENGTH:
        raise SymbolError(f"a size expression has at most {MAX_LENGTH} characters, but {len(text)} came")
    tokens: list[str] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise SymbolError(f"a size expression has no {text[at : at + 1]!r}, but it stands in {text[:80]!r}")
        tokens.append(match[match.lastindex or 0])
        at = match.end()
    operators = sum((not token[0].isalnum() and token not in {"(", ")"}) or token in _RESERVED for token in tokens)
    if operators > MAX_OPERATORS:
        raise SymbolError(f"a size expression has at most {MAX_OPERATORS} operators, but {operators} came")
    return tokens


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Expr:
    """The number that a text means, as a tree.

    Raises:
        SymbolError: the text does not follow the grammar, is a condition, or is beyond the limits.
    """
    expr, is_condition = _Parser(text).parse()
    if is_condition:
        raise SymbolError(f"a size is a number, but {text[:80]!r} is a condition")
    return expr


@functools.lru_cache(maxsize=4096)
def parse_condition(text: str) -> Expr:
    """The condition that a text means, as a tree.

    Raises:
        SymbolError: the text does not follow the grammar, is a number, or is beyond the limits.
    """
    expr, is_condition = _Parser(text).parse()
    if not is_condition:
        raise SymbolError(f"a constraint is a condition, but {text[:80]!r} is a number")
    return expr


@functools.lru_cache(maxsize=4096)
def parse_any(text: str) -> tuple[Expr, bool]:
    """What a text means, and whether that is a condition.

    Raises:
        SymbolError: the text does not follow the grammar, or is beyond the limits.
    """
    return _Parser(text).parse()


def names(expr: Expr) -> frozenset[str]:
    """Symbols that an expression reads."""
    if isinstance(expr, Name):
        return frozenset({expr.name})
    if isinstance(expr, Apply):
        return frozenset().union(*(names(arg) for arg in expr.args))
    return frozenset()


def fold(expr: Expr, leaf: Callable[[Const | Name], Any], apply: Callable[[str, list[Any]], Any]) -> Any:
    """Rebuilds an expression in another world: `leaf` for literals and symbols, `apply` for operators."""
    if isinstance(expr, Apply):
        return apply(expr.op, [fold(arg, leaf, apply) for arg in expr.args])
    return leaf(expr)


Compiled = Callable[[Mapping[str, Any]], Any]


def compile_expr(expr: Expr) -> Compiled:
    """A function from symbol values to the expression's value, built of closures (nothing is ever `eval`ed).

    The function raises SymbolError for a division by zero or a symbol without a value. Values may be any integers
    with Python's operators; symbolic ones are compared and divided symbolically, except by `min`, `max`, `and`, `or`
    and `not`, which decide.
    """
    inner = _closure(expr)

    def call(values: Mapping[str, Any]) -> Any:
        try:
            return inner(values)
        except ZeroDivisionError:
            raise SymbolError("a size expression divides by zero") from None
        except KeyError as error:
            raise SymbolError(f"the symbol {error} has no value") from None

    return call


def _closure(expr: Expr) -> Compiled:
    if isinstance(expr, Const):
        value = expr.value
        return lambda _: value
    if isinstance(expr, Name):
        name = expr.name
        return lambda values: values[name]
    args = tuple(_closure(arg) for arg in expr.args)
    first, second = args[0], args[-1]
    if expr.op == "neg":
        return lambda values: -first(values)
    if expr.op == "not":
        return lambda values: not first(values)
    if expr.op == "and":
        return lambda values: first(values) and second(values)
    if expr.op == "or":
        return lambda values: first(values) or second(values)
    if expr.op in {"min", "max"}:
        pick: Callable[..., Any] = min if expr.op == "min" else max
        return lambda values: pick(*(arg(values) for arg in args))
    binary = BINARY[expr.op]
    return lambda values: binary(first(values), second(values))


@functools.lru_cache(maxsize=4096)
def compiled(text: str) -> Compiled:
    """`compile_expr` of `parse`, remembered by text."""
    return compile_expr(parse(text))


@functools.lru_cache(maxsize=4096)
def compiled_condition(text: str) -> Compiled:
    """`compile_expr` of `parse_condition`, remembered by text."""
    return compile_expr(parse_condition(text))


def evaluate(dim: int | str, values: Mapping[str, int]) -> int:
    """The value of a dimension: itself when it is a number.

    Raises:
        SymbolError: malformed, divides by zero, or reads a symbol that has no value.
    """
    return dim if isinstance(dim, int) else int(compiled(dim)(values))


def holds(condition: str, values: Mapping[str, int]) -> bool:
    """Whether a constraint or guard is true of the values.

    Raises:
        SymbolError: as `evaluate`.
    """
    return bool(compiled_condition(condition)(values))


class Solution(NamedTuple):
    """How to read a symbol off a value: apply the steps, in order, to the value.

    Each step is an operator of `BINARY` (or `neg`) with its constant right operand.
    """

    name: str
    steps: tuple[tuple[str, int], ...]


def solve(expr: Expr) -> Solution | None:
    """Inverts `value = expr` where expr holds one symbol once, under + - * and negation by constants.

    None where that does not determine the symbol.
    """
    steps: list[tuple[str, int]] = []
    while isinstance(expr, Apply):
        if expr.op == "neg":
            steps.append(("neg", 0))
            expr = expr.args[0]
            continue
        left, right = expr.args[0], expr.args[-1]
        if expr.op not in {"+", "-", "*"} or isinstance(left, Const) == isinstance(right, Const):
            return None
        const, rest = (left, right) if isinstance(left, Const) else (right, left)
        assert isinstance(const, Const)
        if expr.op == "*" and const.value == 0:
            return None
        if expr.op == "-" and const is left:  # value = c - x, so x = -(value - c)
            steps += [("-", const.value), ("neg", 0)]
        else:
            steps.append(({"+": "-", "-": "+", "*": "//"}[expr.op], const.value))
        expr = rest
    return Solution(expr.name, tuple(steps)) if isinstance(expr, Name) else None
