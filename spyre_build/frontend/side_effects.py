"""What a forward does to its module beside computing: found by comparison, undone, and refused when it matters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spyre_build.errors import CaptureError
from spyre_build.frontend.structure import Leaves
from spyre_cache.objects.program import Tree

_REGISTRIES = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
Snapshot = list[tuple[str, nn.Module, dict[str, Any], dict[str, Any]]]
Call = tuple[Tree, Tree, Leaves]
"""Arguments of a call: trees of positional and keyword ones, and their tensors."""
_ABSENT = object()


def snapshot(module: nn.Module) -> Snapshot:
    """Every module's attributes and buffers as they are now (references, not copies)."""
    return [
        (path, child, dict(vars(child)), dict(child._buffers))  # noqa: SLF001  torch has no public face for it
        for path, child in module.named_modules()
    ]


def restore(module: nn.Module, before: Snapshot) -> list[str]:
    """Puts attributes back; gives the names of those that had changed in a way that could be noticed later."""
    del module
    changed: list[str] = []
    for path, child, attributes, buffers in before:
        now = vars(child)
        for name in now.keys() | attributes.keys():
            if name in _REGISTRIES:
                continue
            old, new = attributes.get(name, _ABSENT), now.get(name, _ABSENT)
            if old is new:
                continue
            if not _same(old, new):
                changed.append(f"{path}.{name}" if path else name)
            if old is _ABSENT:
                now.pop(name, None)
            else:
                now[name] = old
        for name, buffer in buffers.items():
            if child._buffers.get(name) is not buffer:  # noqa: SLF001
                changed.append(f"{path}.{name}" if path else name)
                child._buffers[name] = buffer  # noqa: SLF001
    return sorted(changed)


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, torch.Tensor) or isinstance(new, torch.Tensor):
        return False
    try:
        return type(old) is type(new) and bool(old == new)
    except Exception:  # noqa: BLE001  a user's __eq__ may do anything; what cannot be compared counts as changed
        return False


def check_containers(before: Call, after: Call, what: str) -> None:
    """Refuses a forward that adds to, or takes from, the lists and dicts among its arguments.

    Raises:
        CaptureError: it does.
    """
    same_tensors = len(before[2].tensors) == len(after[2].tensors) and all(
        old is new for old, new in zip(before[2].tensors, after[2].tensors, strict=True)
    )
    if before[:2] != after[:2] or not same_tensors:
        raise CaptureError(
            f"{what} changes a list or dict among its arguments; only tensors may be written in place",
            hint="return the new values, or write into tensors that are there already (copy_)",
        )


def check(changed: list[str], what: str) -> None:
    """Refuses a forward that leaves something behind where a compiled program could not.

    Raises:
        CaptureError: names the attributes.
    """
    if changed:
        raise CaptureError(
            f"{what} assigns to {', '.join(changed[:4])} in its forward; what a call leaves behind must be in buffers",
            hint="register a buffer and write to it in place (copy_, index_copy_, add_), or do not keep it",
        )
