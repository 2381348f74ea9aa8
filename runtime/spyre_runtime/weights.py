"""The tensors that programs read and no caller passes: mapped from the cache, or supplied at load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from spyre_cache.errors import BlobNotFoundError
from spyre_runtime.errors import InvalidProgramError, MissingPieceError, WeightsError
from spyre_runtime.plain import show
from spyre_runtime.safetensors import from_memory, read_directory, read_file
from spyre_runtime.vocabulary import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spyre_cache.objects.program import WeightEntry
    from spyre_cache.stores.base import LocalBlobStore

Source = str | Path | Mapping[str, torch.Tensor]


class Weights(NamedTuple):
    """Tensors by index name, and remarks for whoever asked."""

    tensors: dict[str, torch.Tensor]
    notes: tuple[str, ...]


def load_weights(entries: Iterable[WeightEntry], blobs: LocalBlobStore, source: Source | None) -> Weights:
    """All weights of an index.

    Supplied tensors win over stored ones: every persistent entry must then be among them, by its name or one of its
    aliases; what no state dict holds (constants, non-persistent buffers) stays as built.

    Raises:
        WeightsError: a tensor is missing, or has another dtype or shape than the model was built for.
        MissingPieceError: a stored tensor is not in the cache.
    """
    supplied = None if source is None else read(source)
    tensors: dict[str, torch.Tensor] = {}
    missing: list[str] = []
    used: set[str] = set()
    for entry in entries:
        shape, stride = _numbers(entry)
        names = (entry.name, *entry.aliases)
        found = [name for name in names if supplied is not None and name in supplied]
        if found and supplied is not None:
            used.update(found)
            tensors[entry.name] = _supplied(entry, shape, stride, supplied[found[0]])
        elif entry.digest is not None and (supplied is None or not entry.persistent or entry.kind == "constant"):
            tensors[entry.name] = _stored(entry, shape, stride, blobs)
        else:
            missing.append(entry.name)
    if missing:
        raise WeightsError(_missing(missing, given=supplied is not None))
    extra = sorted(set(supplied or ()) - used)
    notes = (f"{_tensors(extra, 'supplied ')} not used by the model: {_list(extra)}",) if extra else ()
    return Weights(tensors, notes)


def read(source: Source) -> Mapping[str, torch.Tensor]:
    """Tensors by name from a safetensors file, a directory of shards, or a state dict.

    Raises:
        WeightsError: none of these, or malformed.
    """
    if isinstance(source, (str, Path)):
        path = Path(source)
        if path.is_dir():
            return read_directory(path)
        if path.is_file():
            return read_file(path)
        raise WeightsError(f"weights are a safetensors file or a directory of them, but {path} is neither")
    if isinstance(source, Mapping) and all(isinstance(name, str) for name in source):
        return source
    raise WeightsError(f"weights are a path or a state dict, but {show(source)} came")


def extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements that a tensor of this shape and stride spans in memory."""
    if 0 in shape:
        return 0
    return 1 + sum(step * (size - 1) for step, size in zip(stride, shape, strict=True))


def _numbers(entry: WeightEntry) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = tuple(size for size in entry.shape if isinstance(size, int) and size >= 0)
    stride = tuple(size for size in entry.stride if isinstance(size, int) and size >= 0)
    if len(shape) != len(entry.shape) or len(stride) != len(entry.stride) or len(shape) != len(stride):
        raise InvalidProgramError(f"the weight {entry.name[:120]} has the impossible shape {list(entry.shape)}")
    if entry.dtype not in DTYPES:
        raise InvalidProgramError(f"the weight {entry.name[:120]} has the unknown dtype {entry.dtype[:40]!r}")
    return shape, stride


def _stored(entry: WeightEntry, shape: tuple[int, ...], stride: tuple[int, ...], blobs: LocalBlobStore) -> torch.Tensor:
    assert entry.digest is not None
    dtype = DTYPES[entry.dtype]
    count = extent(shape, stride)
    if entry.digest.size != count * dtype.itemsize:
        raise InvalidProgramError(
            f"the weight {entry.name[:120]} takes {count * dtype.itemsize} bytes, but {entry.digest.size} are recorded"
        )
    if not count:
        return torch.empty_strided(shape, stride, dtype=dtype)
    try:
        memory = blobs.map(entry.digest)
    except BlobNotFoundError as error:
        raise MissingPieceError(
            f"the weight {entry.name[:120]} is not in this cache ({error}): pull it, or pass weights=…"
        ) from None
    return from_memory(memory, dtype).as_strided(shape, stride)


def _supplied(
    entry: WeightEntry, shape: tuple[int, ...], stride: tuple[int, ...], tensor: torch.Tensor
) -> torch.Tensor:
    dtype = DTYPES[entry.dtype]
    if (
        not isinstance(tensor, torch.Tensor)
        or tensor.dtype is not dtype
        or tuple(tensor.shape) != shape
        or tensor.layout is not torch.strided
        or not tensor.is_cpu
    ):
        raise WeightsError(
            f"the weight {entry.name} is a strided CPU tensor ({entry.dtype}, shape {list(shape)}), but {show(tensor)}"
            " came: convert it, or build the model with such weights"
        )
    tensor = tensor.detach()
    if tensor.stride() == stride and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    # Room for what the strides span, so that broadcast strides work too; their repeated elements are written once.
    try:
        room = torch.empty(extent(shape, stride), dtype=dtype)
    except (RuntimeError, TypeError):  # torch's words for too much memory, and for beyond 64 bits
        raise InvalidProgramError(f"the weight {entry.name[:120]} has impossible strides {list(stride)}") from None
    return _filled(room.as_strided(shape, stride), tensor)


def _filled(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    repeated = tuple(slice(0, 1) if step == 0 else slice(None) for step in target.stride())
    target[repeated].copy_(source[repeated])
    return target


def _missing(names: list[str], *, given: bool) -> str:
    if given:
        return f"the supplied weights lack {len(names)} {_noun(names)} that the model needs: {_list(names)}"
    return (
        f"this model was built without its weights, and {_tensors(names)} needed: {_list(names)};"
        " pass weights= a safetensors file, a directory of them, or a state dict"
    )


def _noun(names: list[str]) -> str:
    return "tensor" if len(names) == 1 else "tensors"


def _tensors(names: list[str], which: str = "") -> str:
    return f"{len(names)} {which}{_noun(names)} {'is' if len(names) == 1 else 'are'}"


def _list(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
