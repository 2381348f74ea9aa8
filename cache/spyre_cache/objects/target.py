"""What is compiled for, and by what: both are data, nothing is read from the host."""

from __future__ import annotations

from typing import Literal

from spyre_cache.codec import Record
from spyre_cache.errors import InvalidRecordError


class Target(Record, frozen=True, kw_only=True):
    """A machine kind.

    Attributes:
        kind: `cpu` or `spyre`.
        name: what users type: `cpu/x86-64-v3`.
        arch: `x86_64`, `aarch64`, `aiu`.
        isa: level within the architecture (`x86-64-v3`, `armv8-a`, `32c`).
        features: what a host must provide, in `/proc/cpuinfo` words, sorted.
        kernels: kernel spelling, empty for cpu.
    """

    schema: Literal["target/1"] = "target/1"
    kind: Literal["cpu", "spyre"]
    name: str
    arch: str
    isa: str
    features: tuple[str, ...] = ()
    kernels: str = ""


_V2 = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target(kind="cpu", name="cpu/x86-64-v2", arch="x86_64", isa="x86-64-v2", features=tuple(sorted(_V2))),
        Target(kind="cpu", name="cpu/x86-64-v3", arch="x86_64", isa="x86-64-v3", features=tuple(sorted(_V3))),
        Target(kind="cpu", name="cpu/x86-64-v4", arch="x86_64", isa="x86-64-v4", features=tuple(sorted(_V4))),
        Target(kind="cpu", name="cpu/aarch64", arch="aarch64", isa="armv8-a", features=("asimd", "fp")),
    )
}


def parse_target(name: str) -> Target:
    """The target of a name that a user typed.

    Raises:
        InvalidRecordError: no such target; the message lists those there are.
    """
    try:
        return TARGETS[name]
    except KeyError:
        known = ", ".join(TARGETS)
        raise InvalidRecordError(f"no target is called {name[:80]!r}; there are {known}") from None


class Toolchain(Record, frozen=True, kw_only=True):
    """Content fingerprint of what compiles.

    Attributes:
        backend: back-end name.
        backend_sources: BLAKE3 hex over the back end's own sources.
        torch: torch's version with its local suffix.
        torch_git: git revision torch was built from.
        torch_sources: BLAKE3 hex over the compiler sources and headers in the installed torch that shape the output.
        cxx: identity of the C++ compiler (its own words and a digest of the binary).
        flags: allow-listed compiler flags, in order.
    """

    schema: Literal["toolchain/1"] = "toolchain/1"
    backend: str
    backend_sources: str
    torch: str
    torch_git: str
    torch_sources: str
    cxx: str
    flags: tuple[str, ...]
