"""Odd models: what they are, and how one is played against eager.

A case is a function that makes everything afresh: its module with seeded weights and the calls that are made on it.
"""

import copy
import dataclasses
import warnings
from collections.abc import Callable

import torch
from torch import nn

from spyre_build import Entry, ModelSpec
from spyre_build.frontend.structure import flatten_call
from spyre_runtime.correct import compare

CASES: dict[str, Callable[[], "Odd"]] = {}
COMPILED: set[str] = set()


@dataclasses.dataclass
class Call:
    args: tuple = ()
    kwargs: dict = dataclasses.field(default_factory=dict)
    entry: str = "forward"


@dataclasses.dataclass
class Odd:
    """A model and how it is called.

    Attributes:
        module: what is submitted, and what eager runs.
        calls: in order, on one loaded copy; the first of an entry is its example.
        refused: words of the error that is due at submit, instead of results.
        bad: calls that must be refused at run.
        decoy: a plausible wrong model: comparing with it must fail.
        more: fields of its entries by name (`dynamic_shapes`, `buckets`, `method`).
        types: classes of results.
        stateful: a second loaded copy starts where the first began.
    """

    module: nn.Module
    calls: list[Call]
    refused: str = ""
    bad: list[Call] = dataclasses.field(default_factory=list)
    decoy: nn.Module | None = None
    more: dict[str, dict] = dataclasses.field(default_factory=dict)
    types: tuple[type, ...] = ()
    custom_ops: tuple[str, ...] = ()
    stateful: bool = False

    def spec(self):
        entries = {}
        for call in self.calls:
            if call.entry not in entries:
                args, kwargs = clone((call.args, call.kwargs))
                entries[call.entry] = Entry(args, kwargs, **self.more.get(call.entry, {}))
        return ModelSpec(self.module, entries, custom_ops=self.custom_ops)

    def method(self, entry):
        return self.more.get(entry, {}).get("method", "forward")


def case(*, compiled=False):
    """Registers a case; `compiled` ones go through the compiler in `make test`, all go through the interpreter."""

    def note(make):
        name = make.__name__.removeprefix("_")
        assert name not in CASES
        CASES[name] = make
        if compiled:
            COMPILED.add(name)
        return make

    return note


def make(name):
    torch.manual_seed(0)
    return CASES[name]()


def call(*args, entry="forward", **kwargs):
    return Call(args, kwargs, entry)


def clone(value):
    """Copies of tensors with their strides, however they are nested."""
    if isinstance(value, torch.Tensor):
        if 0 in value.stride() and value.numel():  # expanded: what is written once is copied once
            small = value[tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride())]
            return small.clone().expand(value.shape)
        out = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return out.copy_(value) if value.numel() else out
    return copy.copy(value) if not isinstance(value, (list, tuple, dict)) else _clone_container(value)


def _clone_container(value):
    if isinstance(value, dict):
        copied = copy.copy(value)
        for key, item in value.items():
            copied[key] = clone(item)
        return copied
    items = [clone(item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def run(call_of, odd):
    """Results, and the arguments after each call; `call_of(entry)` gives what is called."""
    out = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in odd.calls:
            args, kwargs = clone((one.args, one.kwargs))
            result = call_of(one.entry)(*args, **kwargs)
            out.append((clone_result(result), args, kwargs))
    return out


def clone_result(value):
    """A result may show state that the next call changes."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if dataclasses.is_dataclass(value) and not isinstance(value, dict):
        return dataclasses.replace(
            value, **{f.name: clone_result(getattr(value, f.name)) for f in dataclasses.fields(value)}
        )
    if isinstance(value, dict):
        copied = copy.copy(value)
        for key, item in value.items():
            copied[key] = clone_result(item)
        return copied
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        items = [clone_result(item) for item in value]
        if isinstance(value, tuple) and type(value).__module__ == "torch.return_types":
            return type(value)(items)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def eager(odd, module=None):
    module = odd.module if module is None else module

    def call_of(entry):
        method = odd.method(entry)
        return module if method == "forward" else getattr(module, method)

    return run(call_of, odd)


def wider(odd):
    """The same in double precision, or None where the model fixes its dtypes."""
    if any(
        t.dtype != torch.float32 for t in (*odd.module.parameters(), *odd.module.buffers()) if t.is_floating_point()
    ):
        return None
    wide = dataclasses.replace(odd, module=copy.deepcopy(odd.module).double(), calls=[_double(c) for c in odd.calls])
    try:
        return eager(wide)
    except Exception:
        return None


def _double(one):
    def widen(value):
        if isinstance(value, torch.Tensor):
            return value.double() if value.is_floating_point() else value
        if isinstance(value, dict):
            return {key: widen(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [widen(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    return Call(widen(one.args), widen(one.kwargs), one.entry)


def differences(actual, expected, reference=None):
    """What differs between two runs: results, and the caller's arguments afterwards."""
    found = []
    for number, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        wide = reference[number][0] if reference is not None else None
        parts = (("out", 0, wide), ("args", 1, None), ("kwargs", 2, None))
        for path, index, reference_part in parts:
            report = compare(mine[index], theirs[index], reference_part, path=f"call {number} {path}")
            found += [str(finding) for finding in report.findings]
    return found


def leaves(one):
    return flatten_call(one.args, one.kwargs)[2].tensors
