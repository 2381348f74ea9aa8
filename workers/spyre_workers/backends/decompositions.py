"""Operators taken apart before Inductor lowers them: its own table, and those that Inductor gets wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.decomposition import select_decomp_table

if TYPE_CHECKING:
    from collections.abc import Callable

# Inductor bounds what it computes of indices, and orders those bounds where it compares two values. Truth values have
# no order: `(arange(9) < 10) != (arange(9) > 20)` and the maximum of the two end in a TypeError inside sympy. The same
# in bits is bounded without comparing.


def _of_bits(operator: Any, *, negated: bool = False) -> Callable[[Any, Any], Any]:
    def decomposed(a: Any, b: Any) -> Any:
        if a.dtype is not torch.bool or b.dtype is not torch.bool:
            return NotImplemented
        bits = operator(a, b)
        return bits.logical_not() if negated else bits

    return decomposed


def table() -> dict[Any, Callable[..., Any]]:
    """Decompositions by operator."""
    aten = torch.ops.aten
    return dict(select_decomp_table()) | {
        aten.eq.Tensor: _of_bits(torch.bitwise_xor, negated=True),
        aten.ne.Tensor: _of_bits(torch.bitwise_xor),
        aten.maximum.default: _of_bits(torch.bitwise_or),
        aten.minimum.default: _of_bits(torch.bitwise_and),
    }
