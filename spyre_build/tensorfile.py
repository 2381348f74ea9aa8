"""Files of named tensors: safetensors and npz, keyed by argument path or result path."""

from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING

from spyre_build.errors import TensorFileError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

MAX_NPZ_BYTES = 64 << 30


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Reads every tensor of a file.

    Raises:
        TensorFileError: no such file, another format, damaged, or a dtype that torch does not have.
    """
    if not path.is_file():
        raise TensorFileError(f"there is no file {path}")
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    raise _unknown(path)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors next to `path` and moves them there, so that a reader never sees half a file.

    Raises:
        TensorFileError: another ending than `.safetensors` or `.npz`, or npz cannot hold a dtype.
    """
    if path.suffix not in {".npz", ".safetensors"}:
        raise _unknown(path)
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if path.suffix == ".npz":
            _write_npz(part, whole)
        else:
            from safetensors.torch import save_file

            # The format does not know that two names share memory.
            save_file({name: tensor.clone() for name, tensor in whole.items()}, part)
        part.replace(path)
    except TensorFileError:
        raise
    except Exception as error:  # noqa: BLE001  two libraries' own errors and the system's
        raise TensorFileError(
            f"{path} cannot be written: {error}", hint="its folder must exist, and it must not be a folder itself"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _unknown(path: Path) -> TensorFileError:
    return TensorFileError(f"{path.name} is neither .safetensors nor .npz", hint="the file's ending says its format")


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, ValueError, KeyError, AttributeError, TypeError, OverflowError, RuntimeError) as error:
        raise TensorFileError(f"{path} is not a sound safetensors file: {error}") from None


def _read_npz(path: Path) -> dict[str, torch.Tensor]:
    import numpy as np
    import torch

    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(info.file_size for info in archive.infolist())
        if total > MAX_NPZ_BYTES:
            raise TensorFileError(f"{path} unpacks to {total} bytes; at most {MAX_NPZ_BYTES} are read")  # noqa: TRY301
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                found[name] = torch.from_numpy(np.array(archive[name]))
    except TensorFileError:
        raise
    # What zipfile, zlib, the tokenizer of headers and numpy raise for damaged bytes is no closed list.
    except Exception as error:  # noqa: BLE001
        raise TensorFileError(f"{path} is not a sound npz file of plain arrays: {error}") from None
    return found


def _write_npz(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    import numpy as np

    arrays = {}
    for name, tensor in tensors.items():
        try:
            arrays[name] = tensor.numpy()
        except TypeError:
            raise TensorFileError(
                f"npz has no {tensor.dtype} for {name}", hint="write a .safetensors file instead"
            ) from None
    with path.open("xb") as file:
        np.savez(file, allow_pickle=False, **arrays)
