"""Custom operators: what a user declared, and what a compiling process must import to know their shapes."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

import torch

from spyre_build.errors import FactoryError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Declaration:
    """What `custom_ops` means here.

    Attributes:
        names: operators (`ns::op`) and namespaces that count as declared.
        imports: modules, or Python files, that define them.
    """

    names: frozenset[str]
    imports: tuple[str, ...]


def declare(entries: Iterable[str]) -> Declaration:
    """Reads `custom_ops`: modules that define operators (imported now), operator namespaces, or single operators.

    Raises:
        FactoryError: an entry is none of these.
    """
    names: set[str] = set()
    imports: list[str] = []
    for entry in entries:
        if "::" in entry or entry in _namespaces():
            names.add(entry)
            imports += [home for home in _homes(entry) if home not in imports]
            continue
        if not all(part.isidentifier() for part in entry.split(".")):
            raise FactoryError(f"custom_ops lists modules, namespaces or operators, not {entry[:80]!r}")
        before = _operators()
        try:
            importlib.import_module(entry)
        except ImportError as error:
            raise FactoryError(
                f"the module {entry!r}, declared in custom_ops, cannot be imported: {error}",
                hint="custom_ops lists modules that define operators, or operator namespaces",
            ) from error
        imports.append(entry)
        names |= {name.partition(".")[0] for name in _operators() - before}
        names |= {name for name, home in _definitions() if home == entry or home.startswith(entry + ".")}
    return Declaration(frozenset(names), tuple(imports))


def _operators() -> set[str]:
    return set(torch._C._dispatch_get_all_op_names())  # noqa: SLF001  no public list of operators


def _namespaces() -> set[str]:
    return {name.partition("::")[0] for name in _operators()}


def _definitions() -> list[tuple[str, str]]:
    """Operators defined in Python, each with the module of its definition."""
    from torch._library.custom_ops import OPDEFS

    return [(name, getattr(definition._init_fn, "__module__", "")) for name, definition in OPDEFS.items()]  # noqa: SLF001


def _homes(entry: str) -> list[str]:
    """Where the Python definitions of a namespace or operator live: modules, or files not importable by name."""
    found = []
    for name, home in _definitions():
        if entry not in {name.partition(".")[0], name.partition("::")[0]} or not home:
            continue
        file = getattr(sys.modules.get(home), "__file__", None)
        found.append(home if file is None or _importable(home) else file)
    return found


def _importable(name: str) -> bool:
    """Whether another process would find the module: it stands on the path, not only in this one's memory."""
    try:
        return PathFinder.find_spec(name) is not None if "." not in name else True
    except (ImportError, ValueError):
        return False
