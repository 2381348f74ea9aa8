"""From a ModelSpec to programs and fragments: capture, lower, encode, cut, entry by entry."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from torch import nn

from spyre_build.errors import CaptureError
from spyre_build.events import Events, NullEvents
from spyre_build.frontend import side_effects
from spyre_build.frontend.assemble import Captive, FragmentPool, assemble, labels
from spyre_build.frontend.capture import Captured, InputBinding, capture
from spyre_build.frontend.custom import declare
from spyre_build.frontend.dynamic import DimSpec, bucket_entry, entry_dims
from spyre_build.frontend.encode import Encoder
from spyre_build.frontend.ir import ModelGraph, symbols_in
from spyre_build.frontend.lower import DECOMPOSITIONS, lower
from spyre_build.frontend.partition import BlockPartition
from spyre_build.frontend.sizes import spell, strip
from spyre_build.frontend.weightless import WeightTable
from spyre_cache.objects import fragment as f
from spyre_cache.objects import program as p
from spyre_runtime.overlap import overlap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from spyre_build.spec import Entry, ModelSpec


@dataclass
class Model:
    """A model as programs over distinct fragments.

    Attributes:
        table: its tensors, constants met while capturing included.
        custom_ops: operators outside ATen that it calls.
        partition: text form of how it was lowered and cut.
        seconds: per phase.
    """

    programs: list[p.Program]
    pool: FragmentPool
    table: WeightTable
    custom_ops: tuple[str, ...]
    partition: str
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def build_model(spec: ModelSpec, partition: BlockPartition | None = None, events: Events | None = None) -> Model:
    """Captures and cuts every entry of a model, with no weights touched.

    Raises:
        CaptureError: an entry cannot be traced, or the model is in training mode where that matters.
        UnsupportedError: it uses what fragments cannot hold.
    """
    from time import perf_counter

    partition = partition or BlockPartition()
    events = events or NullEvents()
    training = training_modules(spec.module)
    declaration = declare(spec.custom_ops)
    table = WeightTable(spec.module)
    model = Model([], FragmentPool(), table, (), f"{partition}; {DECOMPOSITIONS}")
    custom: set[str] = set()
    settled: list[dict[str, Any]] = []
    with _collector_at_rest():
        for name, bucket, entry, dims in variants(spec):
            what = f"entry {name!r}" if len(spec.entries) > 1 or name != "forward" else f"{type(spec.module).__name__}"
            start = perf_counter()
            events.phase("capture")
            captured = capture(spec.module, table, entry, dims, what)
            lowered = lower(captured.graph, captured.examples, captured.fake_mode, what)
            middle = perf_counter()
            events.phase("partition")
            encoder = Encoder(declaration.names, what)
            graph = encoder.encode(lowered)
            _refuse_random(encoder.random, training, what)
            _add_symbols(graph, encoder, captured.fake_mode.shape_env)
            _check_dims(captured, graph, dims, labels(captured, spec.module, entry), what)
            sizes = [str(encoder.size(size)) for size in captured.sizes]
            captive = Captive(name, bucket, spec.module, entry, captured, graph, encoder.constants, sizes)
            program = assemble(captive, table, partition, model.pool)
            _refuse_shared_arguments(program, captured, what)
            model.programs.append(program)
            custom |= encoder.custom_ops
            model.notes += captured.notes
            model.notes += [
                f"{what}: sizes of the dimension {spec.name} begin at 2; give size 1 an entry or bucket of its own"
                for spec in {spec for item in dims.values() for spec in item.values() if spec.narrowed}
            ]
            settled.append(captured.settled)
            _count(model.seconds, "capture", middle - start)
            _count(model.seconds, "partition", perf_counter() - middle)
    model.custom_ops = tuple(sorted(custom))
    _refuse_order(settled)
    _share_state(model)
    _refuse_shared_memory(model)
    return model


def _refuse_order(settled: list[dict[str, Any]]) -> None:
    """Refuses programs that leave different things behind: what one computes would depend on which was called before.

    Raises:
        CaptureError: they do; names the attributes.
    """
    if any(values != settled[0] for values in settled):
        names = {name: None for values in settled for name in values}
        side_effects.check(names, "one entry or bucket, but not every one in the same way,")


def _count(seconds: dict[str, float], phase: str, value: float) -> None:
    seconds[phase] = seconds.get(phase, 0.0) + value


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Tracing makes millions of objects that live to its end; collecting over and over takes a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def variants(spec: ModelSpec) -> Iterator[tuple[str, Mapping[str, int], Entry, dict[int, dict[int, DimSpec]]]]:
    """Every program to make: entries with buckets give one a bucket, static."""
    for name, entry in spec.entries.items():
        what = f"entry {name!r}"
        dims = entry_dims(spec.module, entry, what)
        if not entry.buckets:
            yield name, {}, entry, dims
        for bucket in entry.buckets:
            yield name, bucket, bucket_entry(entry, bucket, dims, what), {}


def training_modules(module: nn.Module) -> list[str]:
    """Modules that compute otherwise in training mode, and are in it.

    Raises:
        CaptureError: a batch norm would update its statistics.
    """
    norms, drops = [], []
    for path, child in module.named_modules():
        if not child.training:
            continue
        if isinstance(child, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001  the public classes share only this base
            norms.append(f"{path} ({type(child).__name__})" if path else type(child).__name__)
        elif isinstance(child, nn.modules.dropout._DropoutNd) and child.p > 0:  # noqa: SLF001
            drops.append(f"{path} ({type(child).__name__})" if path else type(child).__name__)
    if norms:
        raise CaptureError(
            f"a compiled model infers, but these are in training mode: {', '.join([*norms, *drops][:6])}",
            hint="call model.eval() in the factory",
        )
    return drops


def _refuse_random(random: list[str], training: list[str], what: str) -> None:
    if not random:
        return
    modes = f"; in training mode: {', '.join(training[:6])}" if training else ""
    raise CaptureError(
        f"{what} draws random numbers, so that its result could not be repeated: {'; '.join(random[:6])}{modes}",
        hint="call model.eval(), pass functional dropout training=self.training, and pass noise as an argument",
    )


def _add_symbols(graph: ModelGraph, encoder: Encoder, shape_env: Any) -> None:
    """Ranges and guards of the symbols in use."""
    if not encoder.names:
        return
    for theirs, ours in encoder.names.items():
        bounds = shape_env.var_to_range.get(theirs)
        low = int(bounds.lower) if bounds is not None and bounds.lower.is_finite else 0
        high = int(bounds.upper) if bounds is not None and getattr(bounds.upper, "is_Integer", False) else None
        if high is not None and high >= (1 << 62):
            high = None
        graph.symbols[str(ours)] = f.Symbol(name=str(ours), min=low, max=high)
    found: set[str] = set()
    for guard in shape_env.guards:
        expr = shape_env.simplify(guard.expr)
        if expr in (True, False) or (expr.is_Boolean and not expr.free_symbols):
            continue
        if not expr.free_symbols <= encoder.names.keys():
            continue
        expr = expr.xreplace(dict(encoder.names))
        text = strip(spell(expr))
        if shape_env_knows(expr, graph):
            continue
        graph.exprs[text] = expr
        found.add(text)
    graph.guards = sorted(found, key=lambda text: (len(text), text))  # the plainest condition is checked and said first


def shape_env_knows(expr: Any, graph: ModelGraph) -> bool:
    """Whether a guard says no more than the range of its one symbol."""
    name = type(expr).__name__
    if name not in {"GreaterThan", "LessThan", "Unequality", "StrictGreaterThan", "StrictLessThan"}:
        return False
    left, right = expr.args
    if not (left.is_Symbol and right.is_Integer):
        return False
    symbol, bound = graph.symbols[str(left)], int(right)
    match name:
        case "GreaterThan":
            return symbol.min >= bound
        case "StrictGreaterThan":
            return symbol.min > bound
        case "LessThan":
            return symbol.max is not None and symbol.max <= bound
        case "StrictLessThan":
            return symbol.max is not None and symbol.max < bound
    return symbol.min > bound or (symbol.max is not None and symbol.max < bound)


def _check_dims(
    captured: Captured, graph: ModelGraph, dims: dict[int, dict[int, DimSpec]], names: list[str], what: str
) -> None:
    """Refuses an entry whose dynamic dimension the model pins to the example's size.

    Raises:
        CaptureError: names argument, dimension and size.
    """
    for value, binding in enumerate(captured.bindings):
        if not isinstance(binding, InputBinding):
            continue
        spec = graph.specs[value]
        for dim, wanted in dims.get(binding.leaf, {}).items():
            if wanted.may_be_static or not isinstance(spec, f.TensorSpec) or isinstance(spec.shape[dim], str):
                continue
            raise CaptureError(
                f"{what}: dim {dim} of {names[binding.leaf]} is marked dynamic, but the model takes only "
                f"{spec.shape[dim]} there",
                hint="leave it out of dynamic_shapes, give buckets, or remove the Python that depends on that size",
            )
    known = {text for spec in graph.inputs for text in _dims(spec)}
    loose = [name for name in graph.symbols if name not in known]
    if loose:
        raise CaptureError(
            f"{what}: the sizes {', '.join(loose)} cannot be read off any argument",
            hint="in dynamic_shapes, mark whole dimensions of tensor arguments",
        )
    graph.guards = [text for text in graph.guards if symbols_in(text) <= known]


def _dims(spec: f.ValueSpec) -> list[str]:
    return [dim for dim in spec.shape if isinstance(dim, str)] if isinstance(spec, f.TensorSpec) else []


def _refuse_shared_arguments(program: p.Program, captured: Captured, what: str) -> None:
    """Refuses examples of which one is written while another lies in the same memory: a call could not do it either.

    Raises:
        CaptureError: names both.
    """
    written = set(program.mutated_inputs)
    for place, argument in enumerate(program.arguments):
        if argument.slot not in written:
            continue
        for other, tensor in enumerate(captured.leaves.tensors):
            if other != place and overlap(captured.leaves.tensors[place], tensor):
                raise CaptureError(
                    f"{what} writes to {argument.label}, which shares memory with {program.arguments[other].label}",
                    hint="give each argument memory of its own (clone one of them)",
                )


def _share_state(model: Model) -> None:
    """A tensor that one program writes is state for all of them."""
    written = {slot.name for program in model.programs for slot in program.slots if slot.kind == "state"}
    for place, program in enumerate(model.programs):
        slots = tuple(
            p.Slot(kind="state", name=slot.name, spec=slot.spec, aliased=slot.aliased)
            if slot.kind in {"weight", "buffer", "const"} and slot.name in written
            else slot
            for slot in program.slots
        )
        if slots != program.slots:
            model.programs[place] = _with_slots(program, slots)


def _refuse_shared_memory(model: Model) -> None:
    """Refuses a tensor that is written while another tensor of the model shows the same memory.

    Raises:
        CaptureError: names both.
    """
    used = {slot.name: slot.kind == "state" for program in model.programs for slot in program.slots if slot.name}
    spans = [(*_span(weight.tensor), weight.name) for weight in model.table.weights() if weight.name in used]
    spans.sort(key=lambda span: span[:2])
    for place, (storage, start, end, name) in enumerate(spans):
        for other_storage, other_start, _, other in spans[place + 1 :]:
            if other_storage != storage or other_start >= end:
                break
            if start < end and (used[name] or used[other]):
                raise CaptureError(
                    f"{name} and {other} share memory, and one of them is written in forward",
                    hint="register one buffer and take the other as a view of it in forward",
                )


def _span(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Storage, and the first byte and the one after the last that a tensor shows of it."""
    start = tensor.storage_offset() * tensor.element_size()
    if not tensor.numel():
        return tensor.untyped_storage()._cdata, start, start  # noqa: SLF001  also tells storages on meta apart
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.untyped_storage()._cdata, start, start + (last + 1) * tensor.element_size()  # noqa: SLF001


def _with_slots(program: p.Program, slots: tuple[p.Slot, ...]) -> p.Program:
    return msgspec.structs.replace(program, slots=slots)


__all__ = ["Model", "build_model", "training_modules", "variants"]
