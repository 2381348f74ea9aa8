"""The tensors of golden vectors as blobs, and back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.release import GoldenTensor
from spyre_runtime.vocabulary import DTYPE_NAMES, DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spyre_cache.cache import Cache


def put_tensor(cache: Cache, path: str, tensor: torch.Tensor) -> GoldenTensor:
    """Stores a tensor's values, contiguous."""
    digest = cache.blobs.put(tensor_bytes(tensor))
    return GoldenTensor(path=path, dtype=DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape), digest=digest)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """A tensor's values, contiguous, in the machine's order of bytes."""
    # A conjugated or negated view keeps that as a flag beside its memory.
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return bytes(whole.reshape(-1).view(torch.uint8).numpy()) if whole.numel() else b""


def golden_tensor(cache: Cache, recorded: GoldenTensor) -> torch.Tensor:
    """A stored tensor, in memory of its own.

    Raises:
        BlobNotFoundError: its bytes are gone.
        InvalidRecordError: unknown dtype, or the bytes do not fill the shape.
    """
    dtype = DTYPES.get(recorded.dtype)
    if dtype is None or any(d < 0 for d in recorded.shape):
        raise InvalidRecordError(f"the recorded tensor {recorded.path[:80]!r} has no possible dtype or shape")
    if recorded.digest.size != math.prod(recorded.shape) * dtype.itemsize:
        raise InvalidRecordError(f"the recorded tensor {recorded.path[:80]!r} does not fill its shape")
    if not recorded.digest.size:
        return torch.empty(recorded.shape, dtype=dtype)
    return torch.frombuffer(bytearray(cache.blobs.get(recorded.digest)), dtype=dtype).reshape(recorded.shape)


def golden_tensors(cache: Cache, recorded: Iterable[GoldenTensor]) -> dict[str, torch.Tensor]:
    """Stored tensors by path."""
    return {item.path: golden_tensor(cache, item) for item in recorded}
