"""What is compiled once for a toolchain: precompiled headers and the object that every fragment shares.

Lives in the toolchain directory under the toolchain's digest; built once under a file lock, published whole by a
rename, checked before use and rebuilt when wrong. A killed build leaves only a temporary directory behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import platformdirs
from filelock import FileLock

from spyre_cache.codec import encode
from spyre_cache.digest import Digest, derive_key
from spyre_workers.backends import cxx
from spyre_workers.errors import ToolchainError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyre_cache.objects.target import Toolchain
    from spyre_workers.backends.cxx import Compiler
    from spyre_workers.backends.isa import IsaPlan

DIRECTORY_VARIABLE = "SPYRE_BUILD_TOOLCHAIN_DIR"
_INDEX = "index.json"
_HASHED = "hashed.json"
_LOCK_SECONDS = 600.0
_UNUSED_SECONDS = 30 * 86400.0

_HERE = Path(__file__).parent
_KERNEL_HEADER = "#include <torch/csrc/inductor/cpp_prefix.h>\n"


def _wrapper_header() -> str:
    return (_HERE / "prelude.h").read_text("utf-8")


def _common_source() -> str:
    return (_HERE / "common.cpp").read_text("utf-8")


class _File(msgspec.Struct, frozen=True):
    name: str
    digest: Digest


class WarmState(NamedTuple):
    """Paths of what is shared. Headers have their precompiled form beside them."""

    wrapper_header: Path
    kernel_header: Path
    common_object: Path


def toolchain_directory() -> Path:
    """`$SPYRE_BUILD_TOOLCHAIN_DIR`, or the user's cache folder; never inside the build cache."""
    named = os.environ.get(DIRECTORY_VARIABLE)
    return Path(named).absolute() if named else Path(platformdirs.user_cache_dir("spyre-build-toolchain"))


def warm_state(toolchain: Toolchain, plan: IsaPlan, compiler: Compiler, log: list[str]) -> WarmState:
    """The shared state for a toolchain and instruction set, built when it is missing or wrong.

    Raises:
        ToolchainError: its directory cannot be used.
        CompileError: the compiler cannot build it.
    """
    root = toolchain_directory() / _key(toolchain)
    base, level = root / f"base-{plan.arch}", root / f"isa-{plan.march[0].removeprefix('-march=')}"
    try:
        _provide(base, log, lambda directory: _build_base(directory, plan, compiler, log))
        _provide(level, log, lambda directory: _build_level(directory, plan, compiler, log))
        os.utime(root)  # in use
    except OSError as error:
        raise ToolchainError(
            f"the toolchain directory {root.parent} cannot be written ({error}): free room there, "
            f"or set {DIRECTORY_VARIABLE} to a directory that can"
        ) from error
    return WarmState(base / "wrapper.h", level / "kernel.h", base / "common.o")


def _key(toolchain: Toolchain) -> str:
    """All that the shared state is made of: not the code generator, so that a change there costs nothing here."""
    texts = (_wrapper_header(), _KERNEL_HEADER, _common_source())
    compilers = msgspec.structs.replace(toolchain, backend_sources="")
    return derive_key("spyre-build/toolchain/v1", encode(compilers), *(text.encode() for text in texts))[:32]


def _build_base(directory: Path, plan: IsaPlan, compiler: Compiler, log: list[str]) -> None:
    root = cxx.torch_root()
    flags = cxx.wrapper_flags(plan, root)
    interface = (root / "_inductor/codegen/aoti_runtime/interface.cpp").read_text("utf-8")
    (directory / "wrapper.h").write_text(_wrapper_header())
    (directory / "common.cpp").write_text(_common_source() + interface)
    cxx.wait_all(
        (
            cxx.Job(compiler, ("-x", "c++-header", "wrapper.h", *flags, "-o", "wrapper.h.gch"), directory, log),
            cxx.Job(compiler, ("common.cpp", *flags, "-frandom-seed=common", "-c", "-o", "common.o"), directory, log),
        )
    )


def _build_level(directory: Path, plan: IsaPlan, compiler: Compiler, log: list[str]) -> None:
    flags = cxx.kernel_flags(plan, cxx.torch_root())
    (directory / "kernel.h").write_text(_KERNEL_HEADER)
    cxx.run(compiler, ("-x", "c++-header", "kernel.h", *flags, "-o", "kernel.h.gch"), directory, log)


def _provide(final: Path, log: list[str], build: Callable[[Path], None]) -> None:
    if _usable(final):
        return
    final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(f"{final}.lock", timeout=_LOCK_SECONDS):
        if _usable(final):
            return
        _sweep(final)
        log.append(f"building the shared state {final.name}")
        temporary = Path(tempfile.mkdtemp(prefix=f"{final.name}.new-", dir=final.parent))
        try:
            build(temporary)
            _seal(temporary)
            if final.exists():
                shutil.rmtree(final)
            temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if not _usable(final):
            raise ToolchainError(f"the shared state {final} was built and is wrong all the same: check the disk")


def _sweep(final: Path) -> None:
    """Removes what killed builds left (the lock is held: nobody else is building), and toolchains long unused."""
    for left in final.parent.glob(f"{final.name}.new-*"):
        shutil.rmtree(left, ignore_errors=True)
    oldest = time.time() - _UNUSED_SECONDS
    for other in final.parent.parent.glob("?" * 32):
        if other != final.parent and other.stat().st_mtime < oldest:
            shutil.rmtree(other, ignore_errors=True)


def _seal(directory: Path) -> None:
    files = sorted(path for path in directory.iterdir() if path.is_file())
    index = [_File(path.name, Digest.of(path.read_bytes())) for path in files]
    for path in files:
        path.chmod(0o400)
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
    (directory / _INDEX).write_bytes(msgspec.json.encode(index))


def _usable(directory: Path) -> bool:
    """Whether every file has the digest it was built with.

    Digests of a few hundred megabytes are not taken for each fragment: files that are by size, times and inode what
    they were when last hashed are taken to be so. Anything that writes to them changes the kernel's own time.
    """
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        index = msgspec.json.decode((directory / _INDEX).read_bytes(), type=list[_File])
        if not index or any("/" in file.name for file in index):
            return False
        paths = [directory / file.name for file in index]
        identities = [_identity(path) for path in paths]
        if identities == _hashed_before(directory):
            return True
        if all(Digest.of(path.read_bytes()) == file.digest for path, file in zip(paths, index, strict=True)):
            _remember(directory, identities)
            return True
    return False


def distrust(state: WarmState) -> None:
    """Has the files hashed again before their next use: for when the compiler stumbles over them."""
    for path in (state.wrapper_header, state.kernel_header):
        (path.parent / _HASHED).unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int, int, int]:
    status = path.stat()
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _hashed_before(directory: Path) -> list[tuple[int, int, int, int]] | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        return msgspec.json.decode((directory / _HASHED).read_bytes(), type=list[tuple[int, int, int, int]])
    return None


def _remember(directory: Path, identities: list[tuple[int, int, int, int]]) -> None:
    with contextlib.suppress(OSError):
        handle, temporary = tempfile.mkstemp(prefix=_HASHED, dir=directory)
        with os.fdopen(handle, "wb") as stream:
            stream.write(msgspec.json.encode(identities))
        Path(temporary).replace(directory / _HASHED)
