"""What a user hands over: a module, its entry points, and how its shapes may vary."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from spyre_build.errors import SpecError

if TYPE_CHECKING:
    import torch

WeightMode = Literal["store", "external", "none"]
WEIGHT_MODES: tuple[WeightMode, ...] = ("store", "external", "none")
_ENTRY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Entry:
    """One way to call a model.

    Attributes:
        args: example positional arguments; tensors may be of any device that exists here, their values matter only as
            golden inputs.
        kwargs: example keyword arguments.
        dynamic_shapes: as `torch.export.export` takes it: by parameter name or position, `{dim: Dim | None}` a tensor.
        buckets: sizes by name of a `Dim` in `dynamic_shapes`; each gives one static program, chosen by exact match.
        method: the module's method that is called.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    buckets: Sequence[Mapping[str, int]] = ()
    method: str = "forward"

    def __post_init__(self) -> None:
        if not isinstance(self.args, tuple):
            raise SpecError(
                f"Entry.args is a tuple of arguments, but {type(self.args).__name__} came",
                hint="a single argument is written (x,)",
            )
        if not isinstance(self.kwargs, Mapping):
            raise SpecError(f"Entry.kwargs is a dict of arguments, but {type(self.kwargs).__name__} came")
        if self.buckets and self.dynamic_shapes is None:
            raise SpecError(
                "Entry.buckets gives sizes to named dimensions, but dynamic_shapes is not set",
                hint='mark the dimension: dynamic_shapes={"ids": {1: torch.export.Dim("seq")}}',
            )


@dataclass(frozen=True)
class ModelSpec:
    """A module with its entries; all entries share weights and fragments.

    Attributes:
        module: the model, in eval mode.
        entries: by name.
        custom_ops: modules to import that define operators outside ATen (`my_package.ops`).
        name: what the model is called where no tag is given.
    """

    module: torch.nn.Module
    entries: Mapping[str, Entry]
    custom_ops: Sequence[str] = ()
    name: str = ""

    def __post_init__(self) -> None:
        if not self.entries:
            raise SpecError(
                "a ModelSpec has at least one entry, but none came", hint='entries={"forward": Entry((x,))}'
            )
        for name, entry in self.entries.items():
            if not _ENTRY_NAME.fullmatch(name):
                raise SpecError(f"an entry's name is letters, digits, '_', '.' and '-', not {name!r}")
            if not isinstance(entry, Entry):
                raise SpecError(f"entry {name!r} is a spyre_build.Entry, but {type(entry).__name__} came")


def as_spec(value: Any) -> ModelSpec:
    """Makes a ModelSpec of what a factory may return.

    Args:
        value: a ModelSpec, `(module, args)` or `(module, args, kwargs)`.

    Raises:
        SpecError: it is anything else; the message says what came.
    """
    import torch

    if isinstance(value, ModelSpec):
        if not isinstance(value.module, torch.nn.Module):
            raise SpecError(f"ModelSpec.module is a torch.nn.Module, but {type(value.module).__name__} came")
        for name, entry in value.entries.items():
            if not callable(getattr(value.module, entry.method, None)):
                raise SpecError(
                    f"entry {name!r} calls {entry.method!r}, which {type(value.module).__name__} does not have",
                    hint="Entry.method is the name of a method of the module",
                )
        return value
    if isinstance(value, tuple) and len(value) in (2, 3) and isinstance(value[0], torch.nn.Module):
        module, args = value[0], value[1]
        kwargs = value[2] if len(value) == 3 else {}
        if not isinstance(args, tuple):
            raise SpecError(
                f"the second thing a factory returns is the tuple of example arguments, but {type(args).__name__} came",
                hint="a single argument is written (x,)",
            )
        return ModelSpec(module, {"forward": Entry(args, kwargs)}, name=type(module).__name__.lower())
    what = type(value).__name__
    if isinstance(value, tuple):
        what = "(" + ", ".join(type(item).__name__ for item in value) + ")"
    raise SpecError(
        f"a factory returns a ModelSpec, (module, args) or (module, args, kwargs), but {what} came",
        hint="return the module and a tuple of example arguments",
    )
