"""A reader of safetensors files: maps them, checks every offset, copies nothing."""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch

from spyre_runtime.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_HEADER: Final = 100 << 20
MAX_TENSORS: Final = 1_000_000
INDEX: Final = "model.safetensors.index.json"
_DTYPES: Final = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_header = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry = msgspec.json.Decoder(_Entry)


def read_file(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file by name; they share its private mapping.

    Raises:
        WeightsError: not a safetensors file, or one that contradicts itself.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 8:
                raise _malformed(path, "it is shorter than its header")
            memory = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise WeightsError(f"weights cannot be read: {error.strerror or error} ({path})") from None
    length = int.from_bytes(memory[:8], "little")
    if length > min(MAX_HEADER, size - 8):
        raise _malformed(path, f"its header has {length} bytes, more than the file or the limit of {MAX_HEADER}")
    try:
        entries = _header.decode(memory[8 : 8 + length])
        if len(entries) > MAX_TENSORS:
            raise _malformed(path, f"it holds more than {MAX_TENSORS} tensors")
        parsed = {name: _entry.decode(raw) for name, raw in entries.items() if name != "__metadata__"}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(path, str(error)) from None
    data = memory[8 + length :]
    found = {name: _tensor(path, name, entry, data) for name, entry in parsed.items()}
    _check_apart(path, parsed)
    return found


def _check_apart(path: Path, entries: dict[str, _Entry]) -> None:
    """No two tensors share a byte: state that is written to would change its neighbour."""
    last, before = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, end = entry.data_offsets
        if start == end:
            continue
        if start < last:
            raise _malformed(path, f"the tensors {before[:80]!r} and {name[:80]!r} share bytes")
        last, before = end, name


def read_directory(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a directory of shards: those its index lists, or every `*.safetensors`.

    Raises:
        WeightsError: no shard, a malformed one, or an index that leaves the directory.
    """
    tensors: dict[str, torch.Tensor] = {}
    for shard in _shards(path):
        tensors.update(read_file(shard))
    return tensors


def _shards(path: Path) -> Iterator[Path]:
    index = path / INDEX
    if index.is_file():
        try:
            listed: Any = msgspec.json.decode(index.read_bytes())["weight_map"]
            names = sorted(set(listed.values()))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError, RecursionError):
            raise _malformed(index, "it is no index with a weight_map") from None
    else:
        names = sorted(entry.name for entry in path.glob("*.safetensors"))
    if not names:
        raise WeightsError(f"weights are *.safetensors files, but {path} has none")
    for name in names:
        if not isinstance(name, str) or "/" in name or "\\" in name or "\0" in name or name in {"", ".", ".."}:
            raise _malformed(index, f"it names the shard {str(name)[:80]!r}, which is not in the directory")
        yield path / name


def _tensor(path: Path, name: str, entry: _Entry, data: memoryview) -> torch.Tensor:
    dtype = _DTYPES.get(entry.dtype)
    start, end = entry.data_offsets
    if dtype is None or any(not 0 <= size < 1 << 48 for size in entry.shape) or len(entry.shape) > 32:
        raise _malformed(path, f"the tensor {name[:80]!r} has dtype {entry.dtype[:20]!r} and shape {entry.shape[:32]}")
    count = math.prod(entry.shape)
    if not 0 <= start <= end <= len(data) or end - start != count * dtype.itemsize:
        raise _malformed(path, f"the tensor {name[:80]!r} does not fit its bytes {start} to {end}")
    if not count:
        try:
            return torch.empty(entry.shape, dtype=dtype)
        except RuntimeError:  # strides of such an empty tensor do not fit 64 bits
            raise _malformed(path, f"the tensor {name[:80]!r} has the shape {entry.shape}") from None
    return from_memory(data[start:end], dtype).view(entry.shape)


def from_memory(memory: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """A one-dimensional tensor over writable memory; copied only where it is not aligned for the dtype."""
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype)


def _malformed(path: Path, why: str) -> WeightsError:
    return WeightsError(f"{path.name} is not a sound safetensors file: {why[:300]}")
