"""Plain Python values as records: the same in every call, compared with their exact type."""

from __future__ import annotations

import cmath
import math
from typing import Any, Final

import torch

from spyre_cache.codec import bits_float, float_bits
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.program import Plain
from spyre_runtime.errors import InvalidProgramError
from spyre_runtime.vocabulary import DTYPE_NAMES, DTYPES

MAX_TEXT: Final = 1 << 20
_INT64: Final = range(-(1 << 63), 1 << 63)


def to_plain(value: object) -> Plain | None:  # noqa: C901, PLR0911  one return for each type
    """The record of a plain value, or None when there is none for its type (subclasses have none: they may differ)."""
    kind = type(value)
    if value is None:
        return Plain(type="none")
    if value is Ellipsis:
        return Plain(type="ellipsis")
    if isinstance(value, bool):
        return Plain(type="bool", v=value)
    if kind is int:
        assert isinstance(value, int)
        return Plain(type="int", v=value) if value in _INT64 else None
    if kind is str:
        assert isinstance(value, str)
        return Plain(type="str", v=value) if len(value) <= MAX_TEXT and _encodable(value) else None
    if kind is float:
        assert isinstance(value, float)
        return Plain(type="float", v=float_bits(value))
    if kind is complex:
        assert isinstance(value, complex)
        return Plain(type="complex", v=f"{float_bits(value.real)},{float_bits(value.imag)}")
    if kind is bytes:
        assert isinstance(value, bytes)
        return Plain(type="bytes", v=value.hex()) if len(value) <= MAX_TEXT // 2 else None
    if isinstance(value, torch.dtype):
        return Plain(type="dtype", v=DTYPE_NAMES[value]) if value in DTYPE_NAMES else None
    if isinstance(value, torch.device):
        return Plain(type="device", v=str(value))
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        if all(part is None or (type(part) is int and part in _INT64) for part in parts):
            return Plain(type="slice", v=":".join("" if part is None else str(part) for part in parts))
    return None


def from_plain(plain: Plain) -> Any:
    """The value of a record.

    Raises:
        InvalidProgramError: the record's type and content do not belong together.
    """
    try:
        return _from_plain(plain)
    except (ValueError, KeyError, TypeError, RuntimeError, InvalidRecordError):
        raise InvalidProgramError(f"a plain value of type {plain.type} cannot be {str(plain.v)[:80]!r}") from None


def _from_plain(plain: Plain) -> Any:  # noqa: C901, PLR0911  one return for each type
    v = plain.v
    if plain.type == "none" and v is None:
        return None
    if plain.type == "ellipsis" and v is None:
        return Ellipsis
    if plain.type == "bool" and isinstance(v, bool):
        return v
    if plain.type == "int" and type(v) is int:
        return v
    if isinstance(v, str):
        if plain.type == "str":
            return v
        if plain.type == "float":
            return bits_float(v)
        if plain.type == "complex":
            real, imag = v.split(",")
            return complex(bits_float(real), bits_float(imag))
        if plain.type == "bytes":
            return bytes.fromhex(v)
        if plain.type == "dtype":
            return DTYPES[v]
        if plain.type == "device":
            return torch.device(v)
        if plain.type == "slice":
            start, stop, step = (int(part) if part else None for part in v.split(":"))
            return slice(start, stop, step)
    raise ValueError(plain.type)


def same(expected: object, value: object) -> bool:
    """Equal with the same type; NaN equals NaN, and 0.0 is not -0.0."""
    if type(expected) is not type(value):
        return False
    if isinstance(expected, float):
        assert isinstance(value, float)
        if math.isnan(expected) or math.isnan(value):
            return math.isnan(expected) and math.isnan(value)
        return expected == value and math.copysign(1, expected) == math.copysign(1, value)
    if isinstance(expected, complex):
        assert isinstance(value, complex)
        if cmath.isnan(expected) or cmath.isnan(value):
            return same(expected.real, value.real) and same(expected.imag, value.imag)
    return bool(expected == value)


def show(value: object) -> str:
    """A value for an error message: short, and never the content of a tensor."""
    if isinstance(value, torch.Tensor):
        name = "" if type(value) in {torch.Tensor, torch.nn.Parameter} else f"{type(value).__name__}, "
        return f"a tensor ({name}{str(value.dtype).removeprefix('torch.')}, shape {list(value.shape)})"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device, slice)):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    return f"a {type(value).__qualname__}"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True
