"""What this machine can build and run, and what the rest would need."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil  # type: ignore[import-untyped]

from spyre_cache.errors import CacheError
from spyre_cache.objects.target import TARGETS, Target

if TYPE_CHECKING:
    from spyre_build.config import Settings
    from spyre_cache.stores.tiers import Tier

Status = Literal["ok", "warn", "absent", "bad"]
GIB = 1 << 30
ROOM_WANTED = 4 * GIB


def examine(settings: Settings) -> dict[str, Any]:
    """All checks as one JSON object; `ok` is False when a plain build and run cannot work here."""
    checks = [
        _check("python", "ok", f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores"),
        _memory(),
        _torch(),
        *_compilers(),
        *_cache(settings),
        _folder("toolchain folder", settings.toolchain_dir),
        _settings(settings),
        *_later(),
    ]
    targets = [_target(target) for target in TARGETS.values()]
    usable = any(t["build"] and t["run"] for t in targets)
    return {"ok": usable and all(c["status"] != "bad" for c in checks), "checks": checks, "targets": targets}


def _check(name: str, status: Status, text: str) -> dict[str, str]:
    return {"name": name, "status": status, "text": text}


def _memory() -> dict[str, str]:
    memory = psutil.virtual_memory()
    text = f"{memory.total / GIB:.1f} GiB, {memory.available / GIB:.1f} GiB of them free"
    low = memory.available < GIB
    return _check("memory", "warn" if low else "ok", text + ("; a compilation takes about 1 GiB" if low else ""))


def _torch() -> dict[str, str]:
    try:
        import torch
    except (ImportError, OSError) as error:
        return _check("torch", "bad", f"cannot be imported: {error}; pip install torch==2.13.0")
    wanted = "2.13."
    version = str(torch.__version__)
    if not version.startswith(wanted):
        return _check("torch", "bad", f"{version}, but this version works with {wanted}*")
    return _check("torch", "ok", version)


def _cache(settings: Settings) -> list[dict[str, str]]:
    """The cache's directory, and each tier beyond it."""
    from spyre_cache.cache import Cache

    try:
        with Cache.open(settings.cache, wait_for_tiers=False) as cache:
            return [_folder("cache", cache.path), *(_tier(tier) for tier in cache.tiers)]
    except CacheError as error:
        return [_check("cache", "bad", str(error))]


def _tier(tier: Tier) -> dict[str, str]:
    try:
        tier.open()
    except CacheError as error:
        return _check("tier", "bad", str(error))
    return _check("tier", "ok", f"{tier.name}, {'durable' if tier.durable else 'hot: small things, for a while'}")


def _folder(name: str, path: Path) -> dict[str, str]:
    """Whether files can be made in a folder (or in the nearest one above that exists), and how much room there is."""
    try:
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"\0")
            file.flush()
    except OSError as error:
        return _check(name, "bad", f"{path} cannot be written: {error.strerror}")
    free = shutil.disk_usage(existing).free
    status: Status = "ok" if free > ROOM_WANTED else "warn"
    return _check(name, status, f"{path}, {free / GIB:.1f} GiB free")


def _settings(settings: Settings) -> dict[str, str]:
    said = ", ".join(f"{key} from {origin}" for key, origin in sorted(settings.origins.items()))
    return _check("settings", "ok", said or "all defaults")


def _compilers() -> list[dict[str, str]]:
    from spyre_workers.capability import survey

    return [_check(f.name, "ok" if f.ok else "bad", f.text) for f in survey()]


def _later() -> list[dict[str, str]]:
    """What nothing here needs yet, said so that nobody looks for it in vain."""
    card = next((p for p in ("/dev/vfio", "/dev/aiu0") if Path(p).exists()), "")
    return [
        _optional("redis", "listens on port 6379" if _listens(6379) else "", "builds on several machines"),
        _optional("celery", _package("celery"), "builds on several machines"),
        _optional("obstore", _package("obstore"), "a cache in an object store"),
        _optional("dbo-opt", shutil.which("dbo-opt") or "", "compiling for spyre targets with the vendor's compiler"),
        _optional("torch-spyre", _package("torch_spyre"), "running on a Spyre card"),
        _optional("spyre card", card, "running on a Spyre card"),
        _optional("transformers", _package("transformers"), "a SPEC that is a directory with a config.json"),
    ]


def _optional(name: str, found: str, needed_for: str) -> dict[str, str]:
    return _check(name, "ok" if found else "absent", found or f"not found: needed for {needed_for}")


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.2):
            return True
    except OSError:
        return False


def _package(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        return ""
    try:
        return importlib.metadata.version(name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "installed"


def _target(target: Target) -> dict[str, Any]:
    from spyre_workers.capability import cannot_build

    build_lacks, run_lacks = cannot_build(target), cannot_run(target)
    return {
        "target": target.name,
        "build": not build_lacks,
        "build_lacks": build_lacks,
        "run": not run_lacks,
        "run_lacks": run_lacks,
    }


def cannot_run(target: Target) -> str:
    """Why this host cannot run a target's code, or an empty string when it can."""
    if target.arch != platform.machine():
        return f"this host is {platform.machine()}"
    from spyre_runtime.host import cpu_features

    lacking = sorted(set(target.features) - cpu_features())
    return f"lacks {' '.join(lacking)}" if lacking else ""
