"""The C++ compiler: where it is, how it is called, and what its failures mean."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from importlib import util as importlib_util
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spyre_workers.errors import CompileError, ToolchainError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spyre_workers.backends.isa import IsaPlan

# The floating-point rules are Inductor's own defaults: errno and NaN kept, no contraction, so that results are those
# of `torch.compile`. No unique symbols and hidden visibility: hundreds of fragments live in one process, and none may
# bind to another's.
_COMMON = (
    "-std=c++20",
    "-fPIC",
    "-fopenmp",
    "-DNDEBUG",
    "-DTORCH_INDUCTOR_CPP_WRAPPER",
    "-DSTANDALONE_TORCH_HEADER",
    "-DC10_USING_CUSTOM_GENERATED_MACROS",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fno-finite-math-only",
    "-fno-unsafe-math-optimizations",
    "-fmath-errno",
    "-ffp-contract=off",
    "-fexcess-precision=fast",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-fno-gnu-unique",
    "-ffunction-sections",
    "-g0",
    "-w",
)
WRAPPER_FLAGS = ("-O1", *_COMMON)
"""For what calls operators and holds nothing hot."""

KERNEL_FLAGS = ("-O3", *_COMMON)
"""For the fused loops. Loops that Inductor vectorised itself are not vectorised again (`VECTOR_FLAGS`)."""

VECTOR_FLAGS = ("-fno-tree-loop-vectorize",)

LINK_FLAGS = (
    "-shared",
    "-fopenmp",
    "-Wl,--build-id=none",
    "-Wl,--strip-all",
    "-Wl,--gc-sections",
    "-Wl,--hash-style=gnu",
    "-Wl,-z,noexecstack",
    "-Wl,-z,relro",
    "-Wl,-z,defs",
    "-Wl,-O1",
)

FLAGS = (*WRAPPER_FLAGS, "|", *KERNEL_FLAGS, "|", *VECTOR_FLAGS, "|", *LINK_FLAGS)
"""All of them, as the toolchain's fingerprint names them."""

_LOG_LIMIT = 64 << 10
_NO_MEMORY = re.compile(r"out of memory|virtual memory exhausted|Cannot allocate memory|std::bad_alloc")
_KILLED = re.compile(r"(Killed|Terminated|Hangup) signal|terminated with signal")
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|Read-only file system|Permission denied")
_BROKEN = re.compile(
    r"internal compiler error|Segmentation fault|cannot execute|cannot find -l|fatal error: .*: No such"
)
# A place in a source, or what linkers and assemblers say of symbols and instructions.
_OF_THE_CODE = re.compile(r":\d+: (fatal )?error: |: Error: |undefined reference to|multiple definition of|relocation ")


class Compiler(NamedTuple):
    """A C++ compiler for one architecture.

    Attributes:
        path: absolute path of the driver.
        arch: what it compiles for.
    """

    path: str
    arch: str


def host_arch() -> str:
    """This machine's architecture, in `platform.machine()` words."""
    return os.uname().machine


def find_compiler(arch: str, environment: Mapping[str, str] = os.environ) -> Compiler:
    """The compiler for an architecture: `g++` for this machine's, a cross compiler for another's.

    Raises:
        ToolchainError: none is installed; the message names the package.
    """
    native = arch == host_arch()
    names = ("g++",) if native else (f"{arch}-linux-gnu-g++",)
    search = environment.get("PATH", os.defpath)
    for name in names:
        found = shutil.which(name, path=search)
        if found:
            return Compiler(str(Path(found).absolute()), arch)
    package = "g++" if native else f"g++-{arch.replace('_', '-')}-linux-gnu"
    raise ToolchainError(
        f"compiling for {arch} needs {' or '.join(names)}, and none is on PATH: install the package {package}, "
        "or send this target to a worker that has it"
    )


def torch_root() -> Path:
    """Where torch is installed, found without importing it.

    Raises:
        ToolchainError: it is not installed.
    """
    spec = importlib_util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError(
            "compiling needs torch, which this Python does not have: install spyre-build's dependencies"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def include_flags(root: Path) -> tuple[str, ...]:
    """Torch's headers, with their place on this machine mapped away in everything the compiler writes down."""
    include = root / "include"
    return (
        f"-I{include}",
        f"-I{include / 'torch/csrc/api/include'}",
        f"-ffile-prefix-map={include}=torch",
    )


def wrapper_flags(plan: IsaPlan, root: Path) -> tuple[str, ...]:
    """Everything on the command line that shapes a wrapper's object."""
    return (*WRAPPER_FLAGS, *plan.base, *include_flags(root))


def kernel_flags(plan: IsaPlan, root: Path) -> tuple[str, ...]:
    """Everything on the command line that shapes a kernel's object."""
    vector = VECTOR_FLAGS if plan.vector != "none" else ()
    return (*KERNEL_FLAGS, *vector, *plan.march, *plan.macros, *include_flags(root))


class Job:
    """One run of the compiler, started at once; `wait` says how it ended."""

    def __init__(self, compiler: Compiler, arguments: Sequence[str], directory: Path, log: list[str]) -> None:
        self._log = log
        self._started = time.monotonic()
        command = [compiler.path, *_die_with_parent(), *arguments]
        log.append("$ " + " ".join(("g++", *arguments)))
        try:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(directory),
            )
        except OSError as error:
            raise CompileError("infrastructure", f"the C++ compiler cannot be started: {error}") from error

    def wait(self) -> float:
        """Seconds it took.

        Raises:
            CompileError: it failed.
        """
        output, _ = self._process.communicate()
        text = output.decode("utf-8", "replace")[:_LOG_LIMIT]
        if text:
            self._log.append(text)
        if self._process.returncode != 0:
            raise failure_of(self._process.returncode, text)
        return time.monotonic() - self._started

    def kill(self) -> None:
        """Ends it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def run(compiler: Compiler, arguments: Sequence[str], directory: Path, log: list[str]) -> float:
    """Runs the compiler to its end.

    Returns:
        Seconds it took.

    Raises:
        CompileError: it failed.
    """
    return Job(compiler, arguments, directory, log).wait()


def wait_all(jobs: Iterable[Job]) -> list[float]:
    """Waits for all; when one fails the others are killed, and the first failure is raised."""
    jobs = list(jobs)
    try:
        return [job.wait() for job in jobs]
    finally:
        for job in jobs:
            job.kill()


def failure_of(code: int, text: str) -> CompileError:
    """What a compiler's exit says: the machine's fault, the compiler's, or the code's."""
    first = next((line for line in text.splitlines() if "error" in line.lower()), text[:400]).strip()
    if _NO_MEMORY.search(text):
        return CompileError("out-of-memory", f"the C++ compiler ran out of memory: {first[:400]}")
    if _KILLED.search(text):
        # Not by us: our own limits are told apart before anybody reads this. Another try may find more room.
        return CompileError("crash", f"the C++ compiler was killed, as happens when memory runs out: {first[:400]}")
    if _NO_ROOM.search(text):
        return CompileError("infrastructure", f"the C++ compiler cannot write: {first[:400]}")
    if code < 0:
        return CompileError("crash", f"the C++ compiler died of {signal.Signals(-code).name}")
    if _BROKEN.search(text):
        return CompileError("infrastructure", f"the C++ compiler is broken or incomplete: {first[:400]}")
    if not _OF_THE_CODE.search(text):
        # Only what surely would be said again is remembered, and held against the code.
        return CompileError("infrastructure", f"the C++ compiler failed, and said nothing of the code: {first[:400]}")
    return CompileError("unsupported", f"the generated code does not compile: {first[:400]}")


def _die_with_parent() -> tuple[str, ...]:
    # The driver's own children (cc1plus, as, ld) do not inherit a parent-death signal, so each is started through
    # setpriv where there is one; without it they end by themselves within seconds.
    setpriv = shutil.which("setpriv")
    return ("-wrapper", f"{setpriv},--pdeathsig,KILL,--") if setpriv else ()


def _environment(directory: Path) -> dict[str, str]:
    """Nothing of the caller's: no secrets, one language, temporary files in the private directory."""
    kept = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
    return {**kept, "LC_ALL": "C", "TMPDIR": str(directory), "SOURCE_DATE_EPOCH": "0"}
