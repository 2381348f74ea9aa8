"""A compilation as a document, and what came of it."""

from __future__ import annotations

from typing import Literal

from spyre_cache.codec import Record, encode
from spyre_cache.digest import Digest, derive_key
from spyre_cache.objects.target import Target, Toolchain

ACTION_CONTEXT = "spyre-build/action/v1"


class Action(Record, frozen=True, kw_only=True):
    """Everything a compilation depends on, and nothing else. Its key is derived from these bytes, which are a blob."""

    schema: Literal["action/1"] = "action/1"
    fragment: Digest
    target: Target
    toolchain: Toolchain
    options: tuple[tuple[str, str], ...] = ()
    salt: str = ""

    def key(self) -> str:
        """64 hex digits."""
        return derive_key(ACTION_CONTEXT, encode(self))


class OutputFile(Record, frozen=True, kw_only=True):
    """One file that a compilation made."""

    name: str
    digest: Digest


class Requires(Record, frozen=True, kw_only=True):
    """What a host must provide to load an artifact; checked before any byte of it is mapped.

    Attributes:
        arch: machine architecture, as `platform.machine()` says it.
        features: CPU features in `/proc/cpuinfo` words.
        torch_abi: torch version up to the patch level (`2.13.0`); AOTInductor's C shim is stable within it.
        device: `cpu` or `spyre`.
        custom_ops: operators outside ATen that the artifact calls.
    """

    arch: str
    features: tuple[str, ...]
    torch_abi: str
    device: str
    custom_ops: tuple[str, ...] = ()


FailureKind = Literal["unsupported", "crash", "timeout", "out-of-memory", "infrastructure"]


class Failure(Record, frozen=True, kw_only=True):
    """Why an action gave nothing. Only `unsupported` is deterministic, and so may be cached.

    `nodes` are indices of the fragment's nodes the failure is about; `ops` their operators.
    """

    kind: FailureKind
    message: str
    nodes: tuple[int, ...] = ()
    ops: tuple[str, ...] = ()


class Statistics(Record, frozen=True, kw_only=True):
    """Measurements of one compilation; seconds and bytes, not part of agreement."""

    seconds: float = 0.0
    codegen_seconds: float = 0.0
    cxx_seconds: float = 0.0
    link_seconds: float = 0.0
    peak_rss_bytes: int = 0


class ActionResult(Record, frozen=True, kw_only=True):
    """Two results agree when status and outputs agree.

    Attributes:
        builder: who compiled.
        build: the build under whose claim it was compiled; empty when there was none.
    """

    schema: Literal["action-result/1"] = "action-result/1"
    action: str
    status: Literal["ok", "failed"]
    outputs: tuple[OutputFile, ...] = ()
    requires: Requires | None = None
    failure: Failure | None = None
    log: Digest | None = None
    statistics: Statistics = Statistics()
    builder: str = ""
    build: str = ""

    def agrees(self, other: ActionResult) -> bool:
        """Whether both say the same: measurements, log, builder and build aside."""
        return (self.status, self.outputs) == (other.status, other.outputs)
