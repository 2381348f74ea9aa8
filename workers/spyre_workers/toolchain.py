"""The fingerprint of what compiles: contents only, so that two machines with the same tools agree.

Warm, it costs a thousand `stat` calls and imports nothing heavy: a memo in the toolchain directory remembers digests by
the identity (path, size, time) of the files they were taken from, and is thrown away when any of them differs.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from importlib import util as importlib_util
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from spyre_cache.objects.target import Toolchain
from spyre_workers.backends import cxx
from spyre_workers.backends.warm import toolchain_directory
from spyre_workers.errors import ToolchainError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BACKEND = "aot-inductor"
_MEMO = "toolchain-memo.json"
_MEMO_LIMIT = 16 << 20

# What of torch decides the generated text: tracing, decompositions, passes, lowering, sizes.
_TORCH_PYTHON = (
    "_inductor",
    "_decomp",
    "_prims",
    "_prims_common",
    "_refs",
    "_higher_order_ops",
    "_subclasses",
    "_functorch",
    "_export/serde",
    "fx",
    "utils/_sympy",
)
_PROBE = """\
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>
#include <torch/csrc/inductor/aoti_include/cpu.h>
#include <torch/csrc/inductor/aoti_runtime/model_container.h>
#include <torch/csrc/inductor/cpp_prefix.h>
"""


class _Memo(msgspec.Struct, frozen=True):
    """`stamps` are (path, size, time in ns) of every file and directory the record was computed from."""

    torch_root: str
    compiler: str
    python: str
    stamps: list[tuple[str, int, int]]
    toolchain: Toolchain


def toolchain() -> Toolchain:
    """The fingerprint of this machine's CPU back end.

    Raises:
        ToolchainError: torch or the C++ compiler is missing; the message names the remedy.
    """
    root = cxx.torch_root()
    compiler = cxx.find_compiler(cxx.host_arch())
    sources = tuple(_own_sources())
    memo_path = toolchain_directory() / _MEMO
    memo = _read_memo(memo_path)
    if (
        memo is not None
        and (memo.torch_root, memo.compiler, memo.python) == (str(root), compiler.path, os.fspath(sources[0]))
        and memo.toolchain.flags == cxx.FLAGS
        and all(_stamp(path) == (size, time) for path, size, time in memo.stamps)
    ):
        return memo.toolchain
    record, inputs = _compute(root, compiler.path, sources)
    stamps = [(path, *_stamp(path)) for path in sorted(set(inputs))]
    _write_memo(memo_path, _Memo(str(root), compiler.path, os.fspath(sources[0]), stamps, record))
    return record


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116  a thousand times: Path objects would cost more than the calls
    except OSError:
        return (-1, -1)
    return (status.st_size, status.st_mtime_ns)


def _own_sources() -> Iterator[Path]:
    """The back end's own code: what turns a fragment's bytes into C++ and calls the compiler."""
    here = Path(__file__).parent
    for pattern in ("*.py", "*.h", "*.cpp"):
        yield from sorted((here / "backends").glob(pattern))
    spec = importlib_util.find_spec("spyre_runtime")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError("compiling needs spyre_runtime beside spyre_workers: install spyre-build whole")
    runtime = Path(next(iter(spec.submodule_search_locations)))
    for name in ("graph.py", "fakes.py", "operators.py", "symbols.py", "vocabulary.py"):
        yield runtime / name


def _compute(root: Path, compiler: str, sources: tuple[Path, ...]) -> tuple[Toolchain, list[str]]:
    inputs: list[str] = [os.fspath(path) for path in sources]
    python = list(_torch_python(root))
    inputs += [os.fspath(path) for path in python]
    # A new file shows in its directory's time.
    inputs += sorted({os.fspath(path.parent) for path in python})
    headers = _headers(root, compiler)
    inputs += headers
    programs = _programs(compiler)
    inputs += programs
    version = (root / "version.py").read_text("utf-8")
    record = Toolchain(
        backend=BACKEND,
        backend_sources=_digest((path.name, os.fspath(path)) for path in sources),
        torch=_assigned(version, "__version__"),
        torch_git=_assigned(version, "git_version"),
        torch_sources=_digest(
            (
                *((_portable(os.fspath(path), root), os.fspath(path)) for path in python),
                *((_portable(header, root), header) for header in headers),
            )
        ),
        cxx=f"{compiler_words(compiler)}; {_digest((Path(path).name, path) for path in programs)}",
        flags=cxx.FLAGS,
    )
    return record, inputs


def _torch_python(root: Path) -> Iterator[Path]:
    yield root / "version.py"
    for part in _TORCH_PYTHON:
        directory = root / part
        if directory.is_dir():
            yield from sorted(directory.rglob("*.py"))
    yield root / "_inductor/codegen/aoti_runtime/interface.cpp"
    spec = importlib_util.find_spec("sympy")
    if spec is not None and spec.submodule_search_locations:
        yield Path(next(iter(spec.submodule_search_locations))) / "release.py"  # its printer orders terms


def _headers(root: Path, compiler: str) -> list[str]:
    """Every header that the generated code can see, torch's and the system's, as the compiler lists them."""
    found: set[str] = set()
    include = root / "include"
    for macros in ((), ("-DCPU_CAPABILITY_AVX2", "-mavx2", "-mfma"), ("-DCPU_CAPABILITY_AVX512", "-march=x86-64-v4")):
        if macros and cxx.host_arch() != "x86_64":
            continue
        command = [compiler, "-M", "-x", "c++", "-", "-std=c++20", "-fopenmp", *macros, f"-I{include}"]
        text = _run([*command, f"-I{include / 'torch/csrc/api/include'}", *_defines()], _PROBE)
        words = text.replace("\\\n", " ").split()
        found.update(os.path.realpath(word) for word in words[1:] if word != "-")
    return sorted(found)


def _defines() -> list[str]:
    return [flag for flag in cxx.KERNEL_FLAGS if flag.startswith("-D")]


def _programs(compiler: str) -> list[str]:
    """The programs behind the driver: their bytes are the compiler."""
    found = [os.path.realpath(compiler)]
    for name in ("cc1plus", "as", "ld"):
        path = _run([compiler, f"-print-prog-name={name}"], "").strip()
        resolved = path if path.startswith(os.sep) else _which(path)
        if resolved:
            found.append(os.path.realpath(resolved))
    return found


def _which(name: str) -> str | None:
    import shutil

    return shutil.which(name)


def compiler_words(compiler: str) -> str:
    """What a compiler says of itself.

    Raises:
        ToolchainError: it does not run.
    """
    return next(iter(_run([compiler, "--version"], "").splitlines()), "unknown")[:200]


def _run(command: list[str], text: str) -> str:
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise ToolchainError(
            f"the C++ compiler {command[0]} does not work: {detail[0][:300] if detail else error}"
        ) from error
    return done.stdout


def _portable(path: str, root: Path) -> str:
    """A file's place without its install directory."""
    for base in (os.fspath(root), os.path.realpath(root)):
        if path.startswith(base + os.sep):
            return "torch/" + path[len(base) + 1 :]
    return Path(path).name


def _digest(files: Iterable[tuple[str, str]]) -> str:
    hasher = blake3(derive_key_context="spyre-build/toolchain-files/v1")
    for name, path in sorted(files):
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ToolchainError(f"a file of the toolchain cannot be read: {error}") from error
        for part in (name.encode(), data):
            hasher.update(len(part).to_bytes(8, "little"))
            hasher.update(part)
    return hasher.hexdigest()


def _assigned(text: str, name: str) -> str:
    match = re.search(rf"^{name}\s*(?::[^=\n]*)?=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE)
    return match[1] if match else ""


def _read_memo(path: Path) -> _Memo | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        if path.stat().st_size <= _MEMO_LIMIT:
            return msgspec.json.decode(path.read_bytes(), type=_Memo)
    return None


def _write_memo(path: Path, memo: _Memo) -> None:
    """A lost or refused memo costs a second next time, nothing else."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(prefix=_MEMO, dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(msgspec.json.encode(memo))
        Path(temporary).replace(path)
