"""Errors of the client: one base, one class a condition, each with the exit code and the hint that the shell shows.

A message gives the rule and what came; the hint gives the remedy.
"""

from __future__ import annotations

from typing import ClassVar


class BuildError(Exception):
    """Base of everything `spyre_build` raises on purpose.

    Attributes:
        hint: what to do about it, one line; may be empty.
        exit_code: what a command that ends with this error returns to the shell.
    """

    exit_code: ClassVar[int] = 1
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint or self.default_hint


class UsageError(BuildError):
    """The words of the command or the arguments of a call are wrong; nothing was done."""

    exit_code = 2


class SettingsError(UsageError):
    """A configuration file or `SPYRE_BUILD_*` variable holds something unknown or malformed."""


class SpecError(UsageError):
    """A SPEC names no factory, no module and no directory with a `config.json`, or an entry is ill-formed."""

    default_hint = "a SPEC is path/to/file.py:factory, package.module:factory or a directory with a config.json"


class TargetError(UsageError):
    """A target is unknown, or is one that this machine cannot build."""

    default_hint = "`spyre-build doctor` lists the targets that this machine can build and run"


class TensorFileError(UsageError):
    """A file of inputs, outputs or weights cannot be read, or holds other names, shapes or types than expected."""


class FactoryError(BuildError):
    """The user's factory raised, returned the wrong thing, or needs a package that is not installed."""


class CaptureError(BuildError):
    """The model could not be traced: data-dependent Python, a device that is absent, a model in training mode."""


class PartitionError(BuildError):
    """The captured graph cannot be cut as asked."""


class UnsupportedError(BuildError):
    """The graph holds an operator, type or shape that the chosen targets do not take.

    Attributes:
        nodes: one line for each place, `operator at file.py:12 (layers.3.mlp)`.
    """

    def __init__(self, message: str, *, nodes: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.nodes = nodes


class CompilationError(BuildError):
    """One or more fragments could not be compiled; the rest of the build went on."""

    default_hint = "`spyre-build logs BUILD` shows the compiler's words, `spyre-build replay` compiles one again"


class VerificationError(BuildError):
    """What was compiled does not give what eager gives, or a stored model is incomplete or damaged.

    Attributes:
        fragment: `blake3:…` of the first fragment whose outputs differ, when it is known.
    """

    def __init__(self, message: str, *, fragment: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.fragment = fragment


class MissingPieceError(BuildError):
    """Something precompiled is not there, and the policy does not allow to compile it."""

    exit_code = 3
    default_hint = (
        "`spyre-build explain REF` names the nearest piece in the cache; --policy build compiles what is missing"
    )


class RefError(MissingPieceError):
    """A REF names no release, no channel and no manifest in this cache."""

    default_hint = "`spyre-build cache ls` lists the releases and manifests of this cache"


class BuildNotFoundError(UsageError):
    """No build is kept under this name."""

    default_hint = "`spyre-build status` lists the builds that this cache knows"


class BuildTakenError(UsageError):
    """Another process drives this build already."""

    default_hint = "`spyre-build watch BUILD` follows it"


class BuildCancelledError(BuildError):
    """Somebody cancelled this build; what was compiled is kept."""

    default_hint = "the same submit goes on from what was compiled"


class InfrastructureError(BuildError):
    """The cache or another service cannot be reached or written; trying again later may work."""

    exit_code = 5
