"""How the emulator rounds: IEEE fp16, or the device's 16-bit format with 6 bits of exponent and 9 of mantissa.

In mode `dl16` values of type f16 are kept as fp32 numbers that the device's format has. What is assumed of it, from
publications on DLFloat: ties round away from zero, no subnormals, one value beyond the largest number.
"""

from __future__ import annotations

from typing import Final, Literal

import torch

Mode = Literal["fp16", "dl16"]
MODES: Final = ("fp16", "dl16")

_DROPPED: Final = 23 - 9
_HALF: Final = 1 << (_DROPPED - 1)
_KEPT: Final = -(1 << _DROPPED)
SMALLEST: Final = 2.0**-31
LARGEST: Final = (2.0 - 2.0**-8) * 2.0**32

_TORCH: Final = {
    "f32": torch.float32,
    "i32": torch.int32,
    "i64": torch.int64,
    "index": torch.int64,
    "i1": torch.bool,
}


def round_dl16(value: torch.Tensor) -> torch.Tensor:
    """The nearest numbers of the device's format, as fp32."""
    value = value.to(torch.float32)
    bits = value.view(torch.int32) if value.is_contiguous() else value.contiguous().view(torch.int32)
    rounded = ((bits + _HALF) & _KEPT).view(torch.float32)
    size = rounded.abs()
    rounded = torch.where(size < SMALLEST, torch.zeros_like(rounded), rounded)
    rounded = torch.where(size > LARGEST, torch.copysign(torch.full_like(rounded, torch.inf), value), rounded)
    return torch.where(torch.isfinite(value), rounded, value)


class Numbers:
    """The number formats of one mode."""

    def __init__(self, mode: Mode) -> None:
        if mode not in MODES:
            raise ValueError(f"a mode is one of {', '.join(MODES)}, not {mode!r}")
        self.mode = mode

    def torch_dtype(self, dtype: str) -> torch.dtype:
        """What values of a type are kept in."""
        if dtype == "f16":
            return torch.float16 if self.mode == "fp16" else torch.float32
        return _TORCH[dtype]

    def cast(self, value: torch.Tensor, dtype: str) -> torch.Tensor:
        """A value as one of a type, rounded."""
        if dtype == "f16" and self.mode == "dl16":
            return round_dl16(value)
        kind = self.torch_dtype(dtype)
        return value if value.dtype == kind else _convert(value, kind)


def _convert(value: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Another dtype, with the elements in the order in which they lie: torch transposes what it converts otherwise."""
    order = sorted(range(value.ndim), key=lambda dim: -value.stride(dim))
    back = sorted(range(value.ndim), key=lambda place: order[place])
    return value.permute(order).to(kind, memory_format=torch.contiguous_format).permute(back)
