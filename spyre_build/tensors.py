"""The tensors of a model into the cache, as raw bytes laid out by their strides; and the index that names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spyre_build.errors import FactoryError
from spyre_cache.objects.program import Program, WeightEntry
from spyre_runtime.vocabulary import DTYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spyre_build.frontend.weightless import Weight, WeightTable
    from spyre_build.spec import WeightMode
    from spyre_cache.cache import Cache

_SLOT_KINDS = {"weight", "buffer", "const", "state"}


def used_weights(programs: Iterable[Program], table: WeightTable) -> list[Weight]:
    """Weights that some program reads, sorted by name."""
    names = {slot.name for program in programs for slot in program.slots if slot.kind in _SLOT_KINDS}
    return sorted((weight for weight in table.weights() if weight.name in names), key=lambda weight: weight.name)


def store_weights(cache: Cache, weights: list[Weight], mode: WeightMode) -> tuple[WeightEntry, ...]:
    """Puts what the mode keeps into the cache and gives the weight index.

    `store` keeps everything, `external` all but parameters, `none` nothing.

    Raises:
        FactoryError: `store` was asked for a model whose parameters have no data.
    """
    if mode == "store":
        empty = [weight.name for weight in weights if not weight.real]
        if empty:
            raise FactoryError(
                f"--weights store keeps the model's tensors, but {', '.join(empty[:4])} "
                f"{'has' if len(empty) == 1 else 'have'} no data (device meta)",
                hint="--weights external: tensors are given at load",
            )
    if mode == "external":
        lost = [weight.name for weight in weights if weight.kind != "parameter" and not weight.real]
        if lost:
            raise FactoryError(
                f"buffers and constants are kept with the model, but {', '.join(lost[:4])} has no data (device meta)",
                hint="build the module on cpu; parameters made in the factory take no memory anyway",
            )
    return tuple(_entry(cache, weight, mode) for weight in weights)


def _entry(cache: Cache, weight: Weight, mode: WeightMode) -> WeightEntry:
    tensor = weight.tensor
    keep = mode == "store" or (mode == "external" and weight.kind != "parameter")
    return WeightEntry(
        name=weight.name,
        aliases=tuple(sorted(weight.aliases)),
        kind=weight.kind,
        dtype=DTYPE_NAMES[tensor.dtype],
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        persistent=weight.persistent,
        digest=cache.blobs.put(tensor_bytes(tensor), raw=True) if keep else None,
    )


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory a tensor spans, from its first element to its last; gaps between elements are zero.

    Dense tensors are seen, not copied.
    """
    tensor = tensor.detach()
    if tensor.numel() == 0:
        return memoryview(b"")
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if span == tensor.numel() and tensor.device.type == "cpu":
        flat = tensor.as_strided((span,), (1,), tensor.storage_offset())
    else:
        flat = torch.zeros(span, dtype=tensor.dtype)
        # By positions: elements that lie in one place (a broadcast buffer) cannot be copied to as a view.
        places = torch.zeros(tensor.shape, dtype=torch.int64)
        for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            places += (torch.arange(size) * step).reshape([size if d == dim else 1 for d in range(tensor.dim())])
        flat[places.reshape(-1)] = tensor.cpu().reshape(-1)
    if flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg()
    return memoryview(flat.view(torch.uint8).numpy())
