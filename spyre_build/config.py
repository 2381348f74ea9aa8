"""Settings: flags, then `SPYRE_BUILD_*` variables, then the project's `spyre-build.toml`, then the user's own file.

With nothing set everything works on one machine. What is unknown is refused by name: a misspelt key that is silently
ignored costs more than the error.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from spyre_build.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROJECT_FILE = "spyre-build.toml"
MAX_FILE_BYTES = 1 << 20
PREFIX = "SPYRE_BUILD_"
_VALKEY = re.compile(r"valkey(s?)://", re.IGNORECASE)

Policy = Literal["strict", "fetch", "build"]
WeightMode = Literal["store", "external", "none"]
WriteMode = Literal["through", "back"]

MODEL_KEYS = frozenset({"spec", "targets", "weights", "tag", "owner", "budget_seconds", "matrix"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a command runs with.

    Attributes:
        cache: the cache's URL: its directory, absolute, and the tiers beyond it, if any.
        toolchain_dir: where precompiled headers and probes live; outside the cache, so that another cache reuses them.
        policy: what happens when something precompiled is missing.
        targets: target names; empty for "the best this host provides".
        weights: what becomes of a model's tensors at submit.
        jobs: parallel compilations; None for one a core.
        broker: URL of the Redis whose workers compile; None for this machine's own processes.
        write: whether what is put into a cache reaches its durable tiers at once (`through`) or by the end of a step
            (`back`).
        audit: share of compilations that are made twice and compared, in percent.
        origins: where each key that is not a default came from.
        project: the project's file, when there is one.
    """

    cache: str
    toolchain_dir: Path
    policy: Policy = "strict"
    targets: tuple[str, ...] = ()
    weights: WeightMode = "store"
    jobs: int | None = None
    audit: float = 0.0
    broker: str | None = None
    write: WriteMode = "through"
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    project: Path | None = None


def load_settings(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    user_file: Path | None = None,
) -> Settings:
    """Merges the four sources.

    Args:
        flags: values given on the command line; None and empty lists count as not given.
        environ: environment variables (default: the process's own).
        directory: where the search for the project's file starts (default: the current directory).
        user_file: the user's own file (default: `~/.config/spyre-build/config.toml`, or under `$XDG_CONFIG_HOME`).

    Raises:
        SettingsError: an unknown key, a malformed value or an unreadable file; the message names the place.
    """
    environ = os.environ if environ is None else environ
    directory = Path.cwd() if directory is None else directory
    user_file = _user_file(environ) if user_file is None else user_file
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    project = find_project_file(directory)
    for path in (user_file, project):
        if path is not None and path.is_file():
            _merge(values, origins, _from_file(path), str(path))
    for key, value in _from_environ(environ, directory).items():
        _merge(values, origins, {key: value}, PREFIX + key.upper())
    given = {k: v for k, v in (flags or {}).items() if v is not None and v not in ((), [])}
    _merge(values, origins, {k: _check(k, v, directory, "--" + k.replace("_", "-")) for k, v in given.items()}, "flag")
    directory_of_cache = str(_cache_home(environ) / "spyre-build")
    values.setdefault("cache", directory_of_cache)
    if _is_url(values["cache"].partition(",")[0]):
        values["cache"] = f"{directory_of_cache},{values['cache']}"
    values.setdefault("toolchain_dir", _cache_home(environ) / "spyre-build-toolchain")
    return Settings(**values, origins=MappingProxyType(origins), project=project)


def find_project_file(directory: Path) -> Path | None:
    """The nearest `spyre-build.toml` in `directory` or above it."""
    for folder in (directory, *directory.parents):
        candidate = folder / PROJECT_FILE
        if candidate.is_file():
            return candidate
    return None


def _cache_home(environ: Mapping[str, str]) -> Path:
    return _xdg(environ, "XDG_CACHE_HOME", ".cache")


def _user_file(environ: Mapping[str, str]) -> Path:
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "spyre-build" / "config.toml"


def _xdg(environ: Mapping[str, str], name: str, fallback: str) -> Path:
    # The XDG rules say to ignore a relative path here.
    value = environ.get(name, "")
    if value and Path(value).is_absolute():
        return Path(value)
    return Path(environ.get("HOME") or Path.home()) / fallback


def _merge(values: dict[str, Any], origins: dict[str, str], new: Mapping[str, Any], origin: str) -> None:
    values.update(new)
    origins.update(dict.fromkeys(new, origin))


def _from_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    if len(text) > MAX_FILE_BYTES:
        raise SettingsError(f"{path}: a settings file has at most {MAX_FILE_BYTES} bytes")
    try:
        document = tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    _known(document, {"defaults", "models"}, str(path))
    defaults = document.get("defaults", {})
    models = document.get("models", {})
    if not isinstance(defaults, dict) or not isinstance(models, dict):
        raise SettingsError(f"{path}: `defaults` and `models` are tables")
    for name, model in models.items():
        if not isinstance(model, dict):
            raise SettingsError(f"{path}: [models.{name}] is a table, not {model!r}")
        _known(model, MODEL_KEYS, f"{path} [models.{name}]")
        if "spec" not in model:
            raise SettingsError(f"{path}: [models.{name}] lacks `spec`", hint='spec = "models/granite.py:build"')
    _known(defaults, _CHECKS.keys(), f"{path} [defaults]")
    return {key: _check(key, value, path.parent, f"{path} [defaults] {key}") for key, value in defaults.items()}


def _from_environ(environ: Mapping[str, str], directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in environ.items():
        if not name.startswith(PREFIX) or not value:
            continue
        key = name.removeprefix(PREFIX).lower()
        if key in _CHECKS:
            found[key] = _check(key, value, directory, name)
        # Kubernetes sets SPYRE_BUILD_PORT and its like for a service of that name, so what is merely unknown is
        # let pass; what resembles a setting is a typing error.
        elif close := difflib.get_close_matches(key, _CHECKS, n=1, cutoff=0.75):
            meant = PREFIX + close[0].upper()
            raise SettingsError(f"no setting is called {name}", hint=f"did you mean {meant}?")
    return found


def _known(table: Mapping[str, object], allowed: Any, where: str) -> None:
    for key in table:
        if key not in allowed:
            close = difflib.get_close_matches(key, list(allowed), n=1)
            hint = f"did you mean `{close[0]}`?" if close else "known: " + ", ".join(sorted(allowed))
            raise SettingsError(f"{where}: unknown key `{key}`", hint=hint)


def _check(key: str, value: object, base: Path, where: str) -> Any:
    try:
        check = _CHECKS[key]
    except KeyError:
        raise SettingsError(f"{where}: no setting is called {key}") from None
    return check(value, base, where)


def _place(value: object, base: Path, where: str) -> Path:
    if not isinstance(value, (str, Path)) or not str(value).strip() or "\0" in str(value):
        raise SettingsError(f"{where} is a path, not {value!r}")
    # expanduser raises where a user is unknown or has no home.
    try:
        return Path(os.path.normpath(base / Path(value).expanduser()))
    except RuntimeError as error:
        raise SettingsError(f"{where}: {error}") from None


def _cache(value: object, base: Path, where: str) -> str:
    """A cache's URL whose directory, if it names one, is absolute."""
    if isinstance(value, Path) or not isinstance(value, str):
        return str(_place(value, base, where))
    from spyre_cache.stores.urls import is_meant_as_url, parse_tiers

    parts = [part.strip() for part in value.split(",")]
    if not is_meant_as_url(parts[0]):
        parts[0] = str(_place(parts[0], base, where))
    url = ",".join(parts)
    if len(parts) > 1 or is_meant_as_url(parts[0]):
        from spyre_cache.errors import CacheUnavailableError

        try:
            parse_tiers(url)
        except CacheUnavailableError as error:
            raise SettingsError(
                f"{where}: {error}", hint="--cache DIR,redis://host:6379/0,s3://bucket/prefix, each but DIR if wanted"
            ) from None
    return url


def _is_url(text: str) -> bool:
    return "://" in text


def _broker(value: object, _base: Path, where: str) -> str:
    from spyre_cache.errors import CacheUnavailableError
    from spyre_cache.stores.redis_client import redis_address

    text = _VALKEY.sub(r"redis\1://", str(value).strip())
    try:
        redis_address(text)
    except CacheUnavailableError as error:
        raise SettingsError(
            f"{where} is the URL of a Redis: {error}", hint="redis://[user:password@]host[:port][/database]"
        ) from None
    return text


def _choice(options: tuple[str, ...]) -> Callable[[object, Path, str], str]:
    def check(value: object, _base: Path, where: str) -> str:
        if not isinstance(value, str) or value not in options:
            raise SettingsError(f"{where} is {', '.join(options[:-1])} or {options[-1]}, not {value!r}")
        return value

    return check


def _targets(value: object, _base: Path, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and v for v in value):
        raise SettingsError(f"{where} is a list of target names, not {value!r}")
    return tuple(dict.fromkeys(value))


def _number(value: object, where: str, low: float, high: float, *, whole: bool) -> Any:
    try:
        number = float("nan") if isinstance(value, bool) else float(str(value))
    except ValueError:
        number = float("nan")
    # NaN fails the comparison.
    if not low <= number <= high or (whole and not number.is_integer()):
        raise SettingsError(f"{where} is a {'whole ' * whole}number from {low:g} to {high:g}, not {value!r}")
    return int(number) if whole else number


_CHECKS: dict[str, Callable[[object, Path, str], Any]] = {
    "cache": _cache,
    "broker": _broker,
    "toolchain_dir": _place,
    "policy": _choice(get_args(Policy)),
    "targets": _targets,
    "weights": _choice(get_args(WeightMode)),
    "jobs": lambda value, _base, where: _number(value, where, 1, 1024, whole=True),
    "write": _choice(get_args(WriteMode)),
    "audit": lambda value, _base, where: _number(value, where, 0, 100, whole=False),
}
