"""Runs a program: fragments in order over slots, with state, write-backs and results as eager leaves them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import torch

from spyre_cache.objects.fragment import SymSpec
from spyre_runtime import symbols
from spyre_runtime.bind import Binder, Bound
from spyre_runtime.errors import InvalidProgramError
from spyre_runtime.trees import Builder, Classes

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from spyre_cache.objects.program import Program
    from spyre_runtime.drivers.base import Call

NAMED: Final = frozenset({"weight", "buffer", "const", "state"})


def written_names(programs: Sequence[Program]) -> set[str]:
    """Names of the tensors that some program writes to: each loaded copy needs its own."""
    return {slot.name for program in programs for slot in program.slots if slot.kind == "state"}


class Executable:
    """One program, loaded.

    Args:
        program: what to run.
        calls: fragments by index, loaded; absent ones are not used by the program.
        tensors: weights, buffers, constants and state by name, shared with the other programs of the loaded copy.
        lock: held while the program runs, where the copy has state that it reads or writes; else None.
        classes: where classes of the result are found.
        plain: dicts instead of dataclasses and named tuples in the result.

    Raises:
        InvalidProgramError: the program contradicts itself.
        TypeUnknownError: the result needs a class that is neither imported nor passed.
    """

    def __init__(
        self,
        program: Program,
        calls: Mapping[int, Call],
        tensors: Mapping[str, torch.Tensor],
        *,
        lock: threading.Lock | None = None,
        classes: Classes | None = None,
        plain: bool = False,
    ) -> None:
        self.program = program
        self._binder = Binder(program)
        self._builder = Builder(program.output, classes, plain=plain)
        _Validator(program, calls.keys(), tensors.keys(), self._builder.leaves).check()
        self._template: list[Any] = [tensors[s.name] if s.kind in NAMED else None for s in program.slots]
        self._symints = [
            (slot, symbols.compiled(entry.spec.expr))
            for slot, entry in enumerate(program.slots)
            if entry.kind == "symint" and isinstance(entry.spec, SymSpec)
        ]
        self._steps = [(calls[step.fragment], step.inputs, step.outputs, step.frees) for step in program.steps]
        self._writebacks = [(back.target, back.source) for back in program.writebacks]
        fresh = _fresh(program)
        # Where several write-backs follow each other, a source that shares memory with a target must not change first.
        self._early = [s for _, s in self._writebacks if s not in fresh] if len(self._writebacks) > 1 else []
        self._cloned = [slot for slot in dict.fromkeys(self._builder.leaves) if _reaches_named(program, slot)]
        self._lock: contextlib.AbstractContextManager[Any] = lock or contextlib.nullcontext()

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Bound]:
        """Checks a call; what comes back is given to `run`, once.

        Raises:
            ArgumentError: the call does not fit the entry.
        """
        values = self._template.copy()
        return values, self._binder.bind(args, kwargs, values)

    def run(self, values: list[Any], bound: Bound) -> Any:
        """Runs a bound call and gives the module's result.

        Raises:
            ArtifactError: a fragment failed.
        """
        sizes = bound.sizes
        for slot, size in self._symints:
            if values[slot] is None:
                values[slot] = size(sizes)
        with self._lock, torch.no_grad(), _no_autocast():
            for call, inputs, outputs, frees in self._steps:
                results = call([values[slot] for slot in inputs])
                for slot, result in zip(outputs, results, strict=True):
                    values[slot] = result
                for slot in frees:
                    values[slot] = None
            if self._writebacks:
                self._write_back(values)
            for slot in bound.copy_back:
                bound.originals[slot].copy_(values[slot])
            for slot in self._cloned:
                values[slot] = values[slot].clone()
        for slot, original in bound.originals.items():
            values[slot] = original
        return self._builder.build(values, sizes)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Binds and runs."""
        return self.run(*self.bind(args, kwargs))

    def _write_back(self, values: list[Any]) -> None:
        saved = {slot: values[slot].clone() for slot in self._early}
        for target, source in self._writebacks:
            values[target].copy_(saved.get(source, values[source]))


def _no_autocast() -> contextlib.AbstractContextManager[Any]:
    """What the model casts is compiled in; the caller's autocast must not reach operators called from compiled code."""
    if torch.is_autocast_enabled("cpu"):
        off: contextlib.AbstractContextManager[Any] = torch.autocast("cpu", enabled=False)
        return off
    return contextlib.nullcontext()


def _fresh(program: Program) -> set[int]:
    """Slots whose memory belongs to this call alone."""
    return {slot for slot, entry in enumerate(program.slots) if entry.kind == "temp" and entry.aliased is None}


def _reaches_named(program: Program, slot: int) -> bool:
    """Whether a result's slot is, or may share memory with, a tensor of the loaded copy or an argument it writes."""
    for hop in range(len(program.slots)):
        entry = program.slots[slot]
        if entry.kind in NAMED or (hop and slot in program.mutated_inputs):
            return True
        if entry.aliased is None:
            return False
        slot = entry.aliased
    raise InvalidProgramError(f"slot {slot} is an alias of itself")


class _Validator:
    """Walks a program as it will run, so that nothing inside can surprise at run time."""

    def __init__(self, program: Program, fragments: Any, names: Any, leaves: list[int]) -> None:
        self.program, self.fragments, self.names, self.leaves = program, fragments, names, leaves
        self.defined: set[int] = set()

    def kind(self, slot: int) -> str:
        if not 0 <= slot < len(self.program.slots):
            raise InvalidProgramError(f"the program {self.program.name!r} refers to slot {slot}, which does not exist")
        return self.program.slots[slot].kind

    def need(self, slot: int, what: str) -> None:
        self.kind(slot)
        if slot not in self.defined:
            raise InvalidProgramError(f"{what} of the program {self.program.name!r} reads slot {slot}, which is empty")

    def check(self) -> None:
        """Walks.

        Raises:
            InvalidProgramError: the first thing that is wrong.
        """
        program = self.program
        known = {source.symbol.name for source in program.symbols}
        bound = {argument.slot for argument in program.arguments if argument.slot is not None}
        known |= {
            spec.expr for slot in bound if self.kind(slot) and isinstance(spec := program.slots[slot].spec, SymSpec)
        }
        for slot, entry in enumerate(program.slots):
            self.declare(slot, known)
            if entry.aliased is not None:
                self.kind(entry.aliased)
        for slot in bound:
            if self.kind(slot) not in {"input", "symint"}:
                raise InvalidProgramError(f"an argument goes to slot {slot}, which is a {self.kind(slot)}")
        for guard in program.guards:
            self.names_known(guard.expr, symbols.parse_condition(guard.expr), known)
        for number, step in enumerate(program.steps):
            self.step(number)
            if step.fragment not in self.fragments:
                raise InvalidProgramError(f"step {number} calls fragment {step.fragment}, which does not exist")
        for back in program.writebacks:
            self.need(back.source, "a write-back")
            self.need(back.target, "a write-back")
            if self.kind(back.target) not in {"state", "input"}:
                raise InvalidProgramError(f"a write-back goes to slot {back.target}, a {self.kind(back.target)}")
        for leaf in self.leaves:
            self.need(leaf, "the result")

    def declare(self, slot: int, known: set[str]) -> None:
        entry = self.program.slots[slot]
        if entry.kind in NAMED:
            if entry.name not in self.names:
                raise InvalidProgramError(f"slot {slot} holds {entry.name[:120]!r}, which is not in the weight index")
            self.defined.add(slot)
        elif entry.kind == "symint":
            if not isinstance(entry.spec, SymSpec):
                raise InvalidProgramError(f"slot {slot} is a symint without an expression")
            self.names_known(entry.spec.expr, symbols.parse(entry.spec.expr), known)
            self.defined.add(slot)
        elif entry.kind == "input":
            if not any(argument.slot == slot for argument in self.program.arguments):
                raise InvalidProgramError(f"slot {slot} is an input that no argument fills")
            self.defined.add(slot)

    def names_known(self, text: str, expr: symbols.Expr, known: set[str]) -> None:
        unknown = symbols.names(expr) - known
        if unknown:
            raise InvalidProgramError(f"{text[:80]!r} uses {', '.join(sorted(unknown))}, which no argument determines")

    def step(self, number: int) -> None:
        step = self.program.steps[number]
        for slot in step.inputs:
            self.need(slot, f"step {number}")
        for slot in step.outputs:
            if self.kind(slot) != "temp" or slot in self.defined:
                raise InvalidProgramError(f"step {number} writes slot {slot}, which is not an empty temporary")
            self.defined.add(slot)
        for slot in step.frees:
            if self.kind(slot) != "temp" or slot not in self.defined:
                raise InvalidProgramError(f"step {number} frees slot {slot}, which is not a temporary in use")
            self.defined.discard(slot)
