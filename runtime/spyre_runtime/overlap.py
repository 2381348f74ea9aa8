"""Whether tensors share memory."""

from __future__ import annotations

from typing import Final

import torch

_MARKED: Final = 1 << 26  # above so many elements between first and last, shared ranges count as shared memory


def repeats(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor lie at one address (true also where that is hard to exclude)."""
    dims = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    reach = 0
    for stride, size in dims:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def extent(tensor: torch.Tensor) -> int:
    """Elements from the first to behind the last in memory; 0 for an empty tensor."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum(int(stride) * (int(size) - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two strided CPU tensors have a byte in common."""
    reach_a, reach_b = extent(a), extent(b)
    if not reach_a or not reach_b:
        return False
    start_a, start_b = a.data_ptr(), b.data_ptr()
    end_a, end_b = start_a + reach_a * a.element_size(), start_b + reach_b * b.element_size()
    if end_a <= start_b or end_b <= start_a:
        return False
    # The ranges meet. Columns of one matrix may still be apart: mark the elements of one, look at those of the other.
    width, start = a.element_size(), min(start_a, start_b)
    span = (max(end_a, end_b) - start) // width
    if b.element_size() != width or (start_a - start_b) % width or span > _MARKED:
        return True
    memory = torch.zeros(span, dtype=torch.bool)
    torch.as_strided(memory, a.shape, a.stride(), (start_a - start) // width).fill_(True)
    return bool(torch.as_strided(memory, b.shape, b.stride(), (start_b - start) // width).any())
