"""torch's symbolic sizes in our grammar (`spyre_runtime.symbols`)."""

from __future__ import annotations

from typing import Any

from spyre_build.errors import UnsupportedError

_JOINED = {"Add": " + ", "Mul": " * ", "And": " and ", "Or": " or "}
_RELATIONS = {
    "Equality": "==",
    "Unequality": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "StrictGreaterThan": ">",
    "GreaterThan": ">=",
}
_CALLS = {"Max": "max", "Min": "min"}
_BINARY = {"FloorDiv": "//", "CleanDiv": "//", "IntTrueDiv": "//", "Mod": "%", "PythonMod": "%"}


def spell(expr: Any) -> str:  # noqa: PLR0911  one return for each kind of expression
    """A sympy expression over integer symbols as text of our grammar; the same expression gives the same text.

    Raises:
        UnsupportedError: it holds a function that sizes on a node cannot have.
    """
    name = type(expr).__name__
    if expr.is_Symbol:
        return str(expr)
    if expr.is_Integer:
        return str(int(expr)) if int(expr) >= 0 else f"(-{-int(expr)})"
    if name in {"BooleanTrue", "BooleanFalse"}:
        return "0 == 0" if name == "BooleanTrue" else "0 == 1"
    if name in _JOINED:
        parts = sorted((spell(arg) for arg in expr.args), key=_constants_last)
        return "(" + _JOINED[name].join(parts) + ")"
    if name in _RELATIONS:
        return f"({spell(expr.args[0])} {_RELATIONS[name]} {spell(expr.args[1])})"
    if name == "Not":
        return f"(not {spell(expr.args[0])})"
    if name in _CALLS:
        return f"{_CALLS[name]}({', '.join(sorted(spell(arg) for arg in expr.args))})"
    if name in _BINARY and name != "IntTrueDiv":
        return f"({spell(expr.args[0])} {_BINARY[name]} {spell(expr.args[1])})"
    if name == "ModularIndexing":
        base, divisor, modulus = (spell(arg) for arg in expr.args)
        return f"(({base} // {divisor}) % {modulus})"
    if name in {"Pow", "PowByNatural"} and expr.args[1].is_Integer and 0 < int(expr.args[1]) < 9:
        return "(" + " * ".join([spell(expr.args[0])] * int(expr.args[1])) + ")"
    if name in {"Identity", "TruncToInt", "FloorToInt"} and expr.args[0].is_integer:
        return spell(expr.args[0])
    raise UnsupportedError(
        f"a size is made of + - * // % min and max, but {expr} came", hint="make that dimension static"
    )


def _constants_last(text: str) -> tuple[bool, str]:
    return (text.lstrip("(-").rstrip(")").isdecimal(), text)


def strip(text: str) -> str:
    """Without the outermost pair of parentheses that `spell` puts around compounds."""
    if text.startswith("(") and text.endswith(")"):
        depth = 0
        for index, char in enumerate(text):
            depth += (char == "(") - (char == ")")
            if depth == 0 and index < len(text) - 1:
                return text
        if not text.startswith("(-"):
            return text[1:-1]
    return text
