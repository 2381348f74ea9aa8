"""What a forward does to its module beside computing: found by comparison, undone, and refused when it matters."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from spyre_build.errors import CaptureError
from spyre_build.frontend.structure import Leaves
from spyre_cache.objects.program import Tree

_LIMIT = 200_000
"""Containers that are looked at; a module that holds more is not searched to the end."""
_REGISTRIES = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
Call = tuple[Tree, Tree, Leaves]
"""Arguments of a call: trees of positional and keyword ones, and their tensors."""
_ABSENT = object()


@dataclass
class Snapshot:
    """What there was: each module's attributes and buffers, and the contents of every container they lead to."""

    modules: list[tuple[str, nn.Module, dict[str, Any], dict[str, Any]]]
    containers: list[tuple[str, Any, Any]]


def snapshot(module: nn.Module) -> Snapshot:
    """Every module's attributes and buffers as they are now, and what lists, dicts and objects in them hold."""
    modules = [
        (path, child, dict(vars(child)), dict(child._buffers))  # noqa: SLF001  torch has no public face for it
        for path, child in module.named_modules()
    ]
    return Snapshot(modules, _containers(modules))


def _containers(modules: list[tuple[str, nn.Module, dict[str, Any], dict[str, Any]]]) -> list[tuple[str, Any, Any]]:
    """Mutable things reachable from attributes, each with a shallow copy of what it holds."""
    seen = {id(child) for _, child, _, _ in modules}
    found: list[tuple[str, Any, Any]] = []
    queue = [
        (f"{path}.{name}" if path else name, value)
        for path, _, attributes, _ in modules
        for name, value in attributes.items()
        if name not in _REGISTRIES
    ]
    while queue and len(seen) < _LIMIT:
        path, value = queue.pop()
        if id(value) in seen or isinstance(value, _LEAVES):
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            found.append((path, value, dict(value)))
            queue += [(path, item) for item in value.values()]
        elif isinstance(value, (list, set, deque)):
            found.append((path, value, list(value)))
            queue += [(path, item) for item in value]
        elif isinstance(value, tuple):
            queue += [(path, item) for item in value]
        elif isinstance(getattr(value, "__dict__", None), dict):
            queue += [(path, vars(value))]
    return found


_LEAVES = (torch.Tensor, type, str, bytes, int, float, ModuleType, FunctionType, MethodType, torch.dtype, torch.device)


def _restore_container(value: Any, before: Any) -> bool:
    """Puts contents back; whether they had changed so that it could be noticed."""
    now: Any = dict(value) if isinstance(value, dict) else list(value)
    if len(now) == len(before) and all(a is b for a, b in zip(_items(now), _items(before), strict=True)):
        return False
    changed = len(now) != len(before) or not all(
        a is b or _same(a, b) for a, b in zip(_items(now), _items(before), strict=True)
    )
    value.clear()
    if isinstance(value, (dict, set)):
        value.update(before)
    else:
        value.extend(before)
    return changed


def _items(value: Any) -> list[Any]:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else value


def restore(module: nn.Module, before: Snapshot) -> list[str]:
    """Puts attributes back; gives the names of those that had changed in a way that could be noticed later."""
    del module
    changed: list[str] = []
    for path, value, contents in before.containers:
        if _restore_container(value, contents):
            changed.append(path)
    for path, child, attributes, buffers in before.modules:
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
    return sorted(set(changed))


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
            f"{what} changes {', '.join(changed[:4])} in its forward; what a call leaves behind must be in buffers",
            hint="register a buffer and write to it in place (copy_, index_copy_, add_), or do not keep it",
        )
