"""What this machine can compile, as data for `doctor`: nothing heavy is imported and nothing is built."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, NamedTuple

from spyre_workers.backends import cxx
from spyre_workers.backends.isa import plan_for
from spyre_workers.backends.warm import toolchain_directory
from spyre_workers.errors import CompileError, ToolchainError
from spyre_workers.toolchain import compiler_words, toolchain

if TYPE_CHECKING:
    from spyre_cache.objects.target import Target

_ROOM = 1 << 30


class Finding(NamedTuple):
    """One thing looked at: whether it is as compiling needs it, and a sentence."""

    name: str
    ok: bool
    text: str


def survey() -> list[Finding]:
    """Everything that compiling for CPU targets needs here."""
    return [_compiler(), _toolchain(), _shared_state(), _isolation()]


def cannot_build(target: Target) -> str:
    """Why this machine cannot compile for a target, or an empty string when it can."""
    try:
        plan = plan_for(target)
        cxx.find_compiler(plan.arch)
        cxx.torch_root()
    except (CompileError, ToolchainError) as error:
        return str(error)
    return ""


def _compiler() -> Finding:
    try:
        compiler = cxx.find_compiler(cxx.host_arch())
        return Finding("C++ compiler", True, compiler_words(compiler.path))
    except ToolchainError as error:
        return Finding("C++ compiler", False, str(error))


def _toolchain() -> Finding:
    try:
        record = toolchain()
    except ToolchainError as error:
        return Finding("toolchain", False, str(error))
    return Finding("toolchain", True, f"{record.backend} with torch {record.torch}")


def _shared_state() -> Finding:
    directory = toolchain_directory()
    existing = next(folder for folder in (directory, *directory.parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding("precompiled headers", False, f"{directory} cannot be written")
    built = sorted(path.name for path in directory.glob("*/*") if (path / "index.json").is_file())
    if built:
        return Finding("precompiled headers", True, f"{', '.join(sorted(set(built)))} in {directory}")
    if shutil.disk_usage(existing).free < _ROOM:
        return Finding("precompiled headers", False, f"{directory} needs 1 GiB of room, and has less")
    return Finding("precompiled headers", True, f"will be built in {directory} by the first compilation (about 15 s)")


def _isolation() -> Finding:
    missing = [name for name in ("pidfd_open", "fork") if not hasattr(os, name)]
    if missing:
        return Finding("isolation", False, f"compiling needs Linux 5.3 or newer, for {', '.join(missing)}")
    return Finding("isolation", True, "each fragment compiles in a limited process of its own")
