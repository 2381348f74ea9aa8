"""Errors of the workers: one base, one class a condition; each message gives the rule, what came, and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spyre_cache.objects.action import FailureKind


class WorkerError(Exception):
    """Base of everything `spyre_workers` raises on purpose."""


class ToolchainError(WorkerError):
    """What compiles is missing or broken on this machine: no C++ compiler, no torch, no room for its warm state."""


class WorkerUnavailableError(WorkerError):
    """The warmed compile server cannot be started or reached."""


class CompileError(WorkerError):
    """One action gave nothing; becomes the `Failure` of its result.

    Attributes:
        kind: as in `Failure`; only `unsupported` says something about the fragment itself.
        nodes: indices of the fragment's nodes it is about.
        ops: their operators.
    """

    def __init__(self, kind: FailureKind, message: str, nodes: tuple[int, ...] = (), ops: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.nodes = nodes
        self.ops = ops
