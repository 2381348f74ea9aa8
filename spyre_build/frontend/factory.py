"""SPEC strings to ModelSpecs: a factory in a file or a module, or a directory with a Hugging Face `config.json`."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spyre_build.errors import BuildError, FactoryError, SpecError
from spyre_build.frontend.weightless import parameters_on_meta
from spyre_build.spec import ModelSpec, WeightMode, as_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CONFIG_LIMIT = 4 << 20


def load_spec(spec: Any, *, weights: WeightMode = "store", seq: int = 64, batch: int = 1) -> ModelSpec:
    """Makes a ModelSpec of a SPEC string, a directory, or what a factory would return.

    Under `weights` other than `store` parameters made by the factory take no memory.

    Raises:
        SpecError: the SPEC names nothing, or the factory returned the wrong thing.
        FactoryError: the factory raised, or needs a package that is not installed.
    """
    if not isinstance(spec, (str, Path)):
        return as_spec(spec)
    text = str(spec)
    if (Path(text) / "config.json").is_file():
        from spyre_build.frontend.huggingface import directory_spec

        return _guarded(lambda: directory_spec(Path(text), seq=seq, batch=batch, weights=weights), text, weights)
    where, separator, name = text.rpartition(":")
    if not separator or not where or not name.isidentifier():
        raise SpecError(f"{text!r} is not a SPEC")
    factory = _find(where, name)
    return _guarded(factory, text, weights)


def _find(where: str, name: str) -> Callable[[], Any]:
    module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    factory = getattr(module, name, None)
    if factory is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise SpecError(f"{where} has no {name!r}; it has {', '.join(known[:12]) or 'nothing callable'}")
    if not callable(factory):
        raise SpecError(f"{where}:{name} is called without arguments, but it is a {type(factory).__name__}")
    return factory  # type: ignore[no-any-return]


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise SpecError(f"there is no file {path}")
    stem = "".join(c if c.isidentifier() or c.isdigit() else "_" for c in path.stem)
    spec = importlib.util.spec_from_file_location(f"_spyre_build_factory_{stem}", path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and dynamo look modules up by name; the folder lets a factory import its neighbours.
    sys.modules[spec.name] = module
    with _user_code(str(path)), _on_path(str(path.resolve().parent)):
        spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> Any:
    if not all(part.isidentifier() for part in name.split(".")):
        raise SpecError(f"{name!r} is not the name of a module")
    with _user_code(name), _on_path(str(Path.cwd())):
        return importlib.import_module(name)


def _guarded(factory: Callable[[], Any], text: str, weights: WeightMode) -> ModelSpec:
    with _user_code(text), parameters_on_meta(enabled=weights != "store"):
        value = factory()
    return as_spec(value)


@contextmanager
def _on_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


@contextmanager
def _user_code(what: str) -> Iterator[None]:
    """The user's own errors, each with the line of the user's file that raised it."""
    try:
        yield
    except BuildError:
        raise
    except ModuleNotFoundError as error:
        raise FactoryError(
            f"{what} needs the package {error.name!r}, which is not installed here",
            hint=f"pip install the package that provides {error.name!r}",
        ) from error
    except SystemExit as error:
        raise FactoryError(
            f"{what} ended the program (exit {error.code})",
            hint="return the model, and raise an error where that fails",
        ) from error
    except SyntaxError as error:
        raise SpecError(f"{what} is not Python: {error.msg} at {error.filename}:{error.lineno}") from error
    except Exception as error:
        raise FactoryError(
            f"{what} raised {type(error).__name__}: {_first_line(error)}{_where(error)}",
            hint="call the factory in Python by itself: its whole traceback says more",
        ) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else "(no message)"


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    place = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "site-packages" not in file and not file.startswith("<") and "spyre_build" not in Path(file).parts[-3:-1]:
            place = f" (at {file}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place


def read_config(path: Path) -> dict[str, Any]:
    """A `config.json` with a limit on its size.

    Raises:
        SpecError: too large, or not a JSON object.
    """
    raw = path.read_bytes()
    if len(raw) > _CONFIG_LIMIT:
        raise SpecError(f"a config.json has at most {_CONFIG_LIMIT} bytes, but {path} has {len(raw)}")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise SpecError(f"{path} holds a JSON object, but {type(value).__name__} came")
    return value
