"""Errors of the runtime: one base, one class a condition; each message gives the rule, what came, and the remedy."""

from __future__ import annotations


class SpyreRuntimeError(Exception):
    """Base of everything `spyre_runtime` raises on purpose.

    Attributes:
        exit_code: what a command that ends with this error returns (1 the work failed, 2 wrong usage, 3 a precompiled
            piece is missing, 4 refused).
    """

    exit_code = 1


class InvalidFragmentError(SpyreRuntimeError):
    """A fragment breaks a rule of the format: exit code 1."""


class SymbolError(InvalidFragmentError):
    """A size expression is malformed, names an unknown symbol, or has no value: exit code 1."""


class InvalidProgramError(SpyreRuntimeError):
    """A program or manifest contradicts itself: exit code 1."""


class OperatorMissingError(SpyreRuntimeError):
    """An operator that a fragment calls is not registered in this process: exit code 1."""


class MissingPieceError(SpyreRuntimeError):
    """Strict policy: a precompiled piece is absent. Exit code 3.

    Attributes:
        fragment: the fragment's digest, printed, or empty.
        target: the target it was looked for.
    """

    exit_code = 3

    def __init__(self, message: str, *, fragment: str = "", target: str = "") -> None:
        super().__init__(message)
        self.fragment = fragment
        self.target = target


class IncompatibleHostError(SpyreRuntimeError):
    """This host does not provide what an artifact requires: exit code 1."""


class ArtifactError(SpyreRuntimeError):
    """An artifact cannot be loaded, or fails while it runs: exit code 1."""


class ArgumentError(SpyreRuntimeError):
    """What the caller passed is not what the entry was built for: exit code 1. Nothing has run."""


class EntryError(SpyreRuntimeError):
    """No such entry, or no bucket that fits: exit code 2."""

    exit_code = 2


class TypeUnknownError(SpyreRuntimeError):
    """A class that a result needs is neither imported nor passed as `types=[…]`: exit code 1."""


class WeightsError(SpyreRuntimeError):
    """Weights are missing, malformed, or do not fit the index: exit code 1."""


class PolicyError(SpyreRuntimeError):
    """A policy or device that `load` does not know: exit code 2."""

    exit_code = 2


class KtirError(SpyreRuntimeError):
    """Base of what the kernel IR refuses: exit code 1."""


class KtirSyntaxError(KtirError):
    """A text is no kernel, or beyond the limits: exit code 1."""


class KtirBuildError(KtirError):
    """A kernel cannot be built as asked: exit code 1."""


class KtirRuleError(KtirError):
    """A kernel breaks rules of the machine: exit code 1.

    Attributes:
        rules: the names of the broken rules, each once, in the order they were found.
    """

    def __init__(self, message: str, *, rules: tuple[str, ...]) -> None:
        super().__init__(message)
        self.rules = rules
