"""Imports what the user names: modules and files that define custom operators. Nothing a manifest names is imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spyre_build.errors import FactoryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


def import_all(names: Iterable[str]) -> tuple[str, ...]:
    """Imports modules, found in the current directory too, and Python files.

    Returns:
        What a compiling process shall import: module names, and files by their absolute path.

    Raises:
        UsageError: there is no such file, or the text is no module's name.
        FactoryError: importing it raised.
    """
    return tuple(_import(name) for name in names)


def _import(name: str) -> str:
    file = name.endswith(".py")
    if file and not Path(name).is_file():
        raise UsageError(f"there is no file {name}", hint="--import takes a module's name or a Python file")
    if not file and not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name[:80]!r} is not the name of a module", hint="--import takes a module or a Python file")
    try:
        if file:
            return _import_file(Path(name).resolve())
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)
        importlib.import_module(name)
    except Exception as error:
        raise FactoryError(f"importing {name} raised {type(error).__name__}: {error}") from error
    return name


def _import_file(path: Path) -> str:
    spec = importlib.util.spec_from_file_location(f"_spyre_build_import_{path.stem}", path)
    assert spec is not None  # the name ends with .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return str(path)
