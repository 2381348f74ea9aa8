"""What a forward does to its module beside computing: found by comparison, undone, and refused when it matters."""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spyre_build.errors import CaptureError
from spyre_build.frontend.structure import Leaves
from spyre_cache.objects.program import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable

_LIMIT = 200_000
"""Containers that are looked at; a module that holds more is not searched to the end."""
_CONTAINERS = {dict, OrderedDict, list, set, deque}
_REGISTRIES = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
Call = tuple[Tree, Tree, Leaves]
"""Arguments of a call: trees of positional and keyword ones, and their tensors."""
_ABSENT = object()


@dataclass
class Snapshot:
    """What there was: each module's attributes and buffers, and the contents of every container they lead to."""

    modules: list[tuple[str, nn.Module, dict[str, Any], dict[str, Any]]]
    containers: list[tuple[str, Any, Any]]
    namespaces: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)

    def add_globals(self, files: set[str], module: nn.Module) -> None:
        """Also what stands in the traced files, and on the classes of the model: names, lists, dicts and sets."""
        for home in list(sys.modules.values()):
            name = getattr(home, "__name__", "")
            if getattr(home, "__file__", None) in files and name.partition(".")[0] != "torch":
                self._add_namespace(name, home)
        for kind in {kind for child in module.modules() for kind in type(child).__mro__}:
            if kind.__module__.partition(".")[0] not in {"torch", "builtins"}:
                self._add_namespace(kind.__qualname__, kind)

    def _add_namespace(self, name: str, owner: Any) -> None:
        held = dict(vars(owner))
        self.namespaces.append((name, owner, held))
        for key, value in held.items():
            if isinstance(value, (list, dict, set, deque)) and not key.startswith("__") and len(value) < _LIMIT:
                contents = _entries(value) if isinstance(value, dict) else list(value)
                self.containers.append((f"{name}.{key}", value, contents))
            elif isinstance(value, FunctionType):
                self.containers.append((f"{name}.{key}", vars(value), dict(vars(value))))


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
            found.append((path, value, _entries(value)))
            queue += [(path, item) for item in dict.values(value)]
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
    now: Any = _entries(value) if isinstance(value, dict) else list(value)
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


def _restore_namespace(path: str, owner: Any, held: dict[str, Any]) -> list[str]:
    """Puts names of a Python module or class back; gives those that had changed."""
    changed = []
    now = dict(vars(owner))
    for name in now.keys() | held.keys():
        old, new = held.get(name, _ABSENT), now.get(name, _ABSENT)
        if old is new or name.startswith("__"):  # dynamo keeps things of its own under such names
            continue
        if not _same(old, new):
            changed.append(f"{path}.{name}")
        if old is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, old)
    return changed


def _entries(value: dict[Any, Any]) -> dict[Any, Any]:
    """What a dict holds, whatever its class makes of reading it (transformers' table of activations instantiates)."""
    return dict(dict.items(value))


def _items(value: Any) -> list[Any]:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else value


def restore(before: Snapshot) -> dict[str, Any]:
    """Puts attributes back; gives those that had changed in a way that could be noticed later, with what they were."""
    changed: dict[str, Any] = {
        path: value for path, value, contents in before.containers if _restore_container(value, contents)
    }
    for path, owner, held in before.namespaces:
        changed |= dict.fromkeys(_restore_namespace(path, owner, held), _ABSENT)
    for path, child, attributes, buffers in before.modules:
        now = vars(child)
        for name in now.keys() | attributes.keys():
            if name in _REGISTRIES:
                continue
            old, new = attributes.get(name, _ABSENT), now.get(name, _ABSENT)
            if old is new:
                continue
            if not _same(old, new):
                changed[f"{path}.{name}" if path else name] = new
            if old is _ABSENT:
                now.pop(name, None)
            else:
                now[name] = old
        for name, buffer in buffers.items():
            if child._buffers.get(name) is not buffer:  # noqa: SLF001
                changed[f"{path}.{name}" if path else name] = child._buffers.get(name)  # noqa: SLF001
                child._buffers[name] = buffer  # noqa: SLF001
    return dict(sorted(changed.items()))


def plain(changed: dict[str, Any]) -> bool:
    """Whether only numbers and words were assigned, which can be assigned again and compared."""
    return all(
        all(type(item) in _PLAIN for item in value) if type(value) is tuple else type(value) in _PLAIN
        for value in changed.values()
    )


_PLAIN = (int, float, bool, str, type(None))


def assign(module: nn.Module, values: dict[str, Any]) -> None:
    """Sets attributes of a module and its children by their paths."""
    for name, value in values.items():
        path, _, attribute = name.rpartition(".")
        vars(module.get_submodule(path))[attribute] = value


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


def check(changed: Iterable[str], what: str) -> None:
    """Refuses a forward that leaves something behind where a compiled program could not.

    Raises:
        CaptureError: names the attributes.
    """
    names = list(changed)
    if names:
        raise CaptureError(
            f"{what} changes {', '.join(names[:4])} in its forward; what a call leaves behind must be in buffers",
            hint="register a buffer and write to it in place (copy_, index_copy_, add_), or do not keep it; what is "
            "computed once and kept is there before if the factory calls the model once",
        )
