"""What this host provides, read once."""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from spyre_runtime.errors import OperatorMissingError
from spyre_runtime.operators import resolve

if TYPE_CHECKING:
    from spyre_cache.objects.action import Requires

_CPUINFO: Final = Path("/proc/cpuinfo")


@functools.lru_cache(maxsize=1)
def cpu_features() -> frozenset[str]:
    """CPU features in `/proc/cpuinfo` words; those of the first core. Empty where there is no such file."""
    try:
        text = _CPUINFO.read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, colon, words = line.partition(":")
        if colon and name.strip() in {"flags", "Features"}:
            return frozenset(words.split())
    return frozenset()


def machine() -> str:
    """The architecture, as `platform.machine()` says it."""
    return platform.machine()


def torch_abi() -> str:
    """Torch's version up to the patch level."""
    return str(torch.__version__).partition("+")[0]


def lacking(requires: Requires, device: str = "cpu") -> str | None:
    """None where the host provides all that is required, else what it lacks, in words."""
    if requires.device != device:
        return f"it is built for the device {requires.device}, and this driver runs {device}"
    if requires.arch != machine():
        return f"it needs {requires.arch}, and this host is {machine()}"
    missing = sorted(set(requires.features) - cpu_features())
    if missing:
        return f"the CPU lacks {', '.join(missing)}"
    if requires.torch_abi != torch_abi():
        return f"it needs torch {requires.torch_abi}, and this is torch {torch_abi()}"
    for op in requires.custom_ops:
        try:
            resolve(op, frozenset({op.partition("::")[0]}), mutable=True)
        except OperatorMissingError as error:
            return str(error)
    return None
