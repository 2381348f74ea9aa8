from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyre_runtime import symbols
from spyre_runtime.errors import SpyreRuntimeError, SymbolError

VALUES = {"s0": 7, "s1": 3}

ATOMS = st.one_of(st.integers(0, 99).map(str), st.sampled_from(["s0", "s1"]))
NUMBERS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(" ".join),
        inner.map(lambda x: f"({x})"),
        inner.map(lambda x: f"-{x}"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    ),
    max_leaves=12,
)
COMPARISONS = st.tuples(NUMBERS, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), NUMBERS).map(" ".join)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
        inner.map(lambda x: f"not {x}"),
        inner.map(lambda x: f"({x})"),
    ),
    max_leaves=5,
)


@given(NUMBERS)
def test_number_of_the_grammar_evaluates_as_python_does(text):
    try:
        expected = eval(text, {"min": min, "max": max}, dict(VALUES))
    except ZeroDivisionError:
        with pytest.raises(SymbolError, match="divides by zero"):
            symbols.evaluate(text, VALUES)
        return
    assert symbols.evaluate(text, VALUES) == expected


@given(CONDITIONS)
def test_condition_of_the_grammar_holds_as_in_python(text):
    try:
        expected = eval(text, {"min": min, "max": max}, dict(VALUES))
    except ZeroDivisionError:
        return
    assert symbols.holds(text, VALUES) is bool(expected)


@given(st.one_of(st.text(max_size=60), st.text("s01+-*/%()<>=!, minaxdort", max_size=80)))
def test_any_text_parses_or_is_a_symbol_error(text):
    with contextlib.suppress(SymbolError):
        symbols.parse_any(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s0 +",
        "(s0",
        "s0)",
        "min(s0)",
        "s0 ** 2",
        "__import__('os')",
        "s0.x",
        "S0",
        "9" * 20,
        "s0 if s1 else 2",
        "1.5",
        "s0 s1",
        "²",
    ],
)
def test_text_outside_the_grammar_is_refused(text):
    with pytest.raises(SymbolError):
        symbols.parse_any(text)


@pytest.mark.parametrize("text", ["(s0 < 2) + 1", "not s0", "s0 and s1", "min((s0 < 1), 2)", "-(s0 == 1)"])
def test_numbers_and_conditions_mixed_are_refused(text):
    with pytest.raises(SymbolError, match="expected where"):
        symbols.parse_any(text)


def test_condition_where_a_size_is_due_is_refused():
    with pytest.raises(SymbolError, match="is a condition"):
        symbols.parse("s0 < 4")
    with pytest.raises(SymbolError, match="is a number"):
        symbols.parse_condition("s0")


@pytest.mark.parametrize(
    "text", ["(" * 5000 + "1", "(" * 50 + "1" + ")" * 50, "-" * 4000 + "1", "1" + "+1" * 300, "not " * 900 + "s0 < 1"]
)
def test_text_beyond_the_limits_is_refused(text):
    with pytest.raises(SymbolError):
        symbols.parse_any(text)


def test_longest_chain_evaluates_without_exhausting_the_stack():
    assert symbols.evaluate("1" + "+1" * symbols.MAX_OPERATORS, {}) == symbols.MAX_OPERATORS + 1


def test_unknown_symbol_is_named():
    with pytest.raises(SymbolError, match="s9"):
        symbols.evaluate("s9 + 1", VALUES)


@pytest.mark.parametrize("text", ["s0", "s0 + 4", "4 + s0", "3 * s0", "s0 - 2", "20 - s0", "-s0", "4 * (3 - s0) + 1"])
def test_invertible_size_is_solved_for_its_symbol(text):
    solution = symbols.solve(symbols.parse(text))
    value = symbols.evaluate(text, VALUES)
    for op, constant in solution.steps:
        value = -value if op == "neg" else symbols.BINARY[op](value, constant)
    assert (solution.name, value) == ("s0", 7)


@pytest.mark.parametrize("text", ["s0 * s1", "s0 // 2", "s0 % 2", "max(s0, 1)", "0 * s0", "5"])
def test_size_that_does_not_determine_a_symbol_has_no_solution(text):
    assert symbols.solve(symbols.parse(text)) is None


def test_symbol_errors_share_the_package_base():
    assert issubclass(SymbolError, SpyreRuntimeError)
