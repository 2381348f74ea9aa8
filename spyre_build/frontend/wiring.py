"""What the placeholders of a captured graph take, and what a model's result is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensor

from spyre_build.errors import CaptureError
from spyre_build.frontend.structure import Leaves

if TYPE_CHECKING:
    from spyre_build.frontend.weightless import Weight, WeightTable


@dataclass(frozen=True)
class InputBinding:
    """A placeholder that takes the caller's tensor leaf `leaf`."""

    leaf: int


@dataclass(frozen=True)
class WeightBinding:
    """A placeholder that takes a tensor of the model."""

    weight: Weight


@dataclass(frozen=True)
class SizeBinding:
    """A placeholder that takes a size."""


Binding = InputBinding | WeightBinding | SizeBinding


@dataclass(frozen=True)
class GraphResult:
    """An output leaf that is result `index` of the graph."""

    index: int


OutputLeaf = GraphResult | InputBinding | WeightBinding


def wire(
    table: WeightTable,
    inputs: tuple[Any, ...],
    outputs: tuple[Any, ...],
    fakes: list[torch.Tensor],
    result: Any,
    what: str,
) -> dict[str, Any]:
    """Finds by identity what each input of the graph and each leaf of the result is.

    Args:
        table: the model's tensors; others that are met are added as constants.
        inputs: what the graph was called with.
        outputs: what stood for its results.
        fakes: the caller's tensors, by leaf.
        result: what the model returned.
        what: names the entry in errors.

    Raises:
        CaptureError: a tensor comes from nowhere.
    """
    leaf_of = {id(fake): index for index, fake in enumerate(fakes)}
    bindings: list[Binding] = []
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            bindings.append(SizeBinding())
        elif id(value) in leaf_of:
            bindings.append(InputBinding(leaf_of[id(value)]))
        else:
            bindings.append(WeightBinding(table.get(value) or constant(table, value, what)))
    result_of = {id(value): index for index, value in enumerate(outputs) if isinstance(value, torch.Tensor)}
    found = Leaves()
    output = found.tree(result, "out")
    results: list[OutputLeaf] = []
    for value in found.tensors:
        if id(value) in result_of:
            results.append(GraphResult(result_of[id(value)]))
        elif id(value) in leaf_of:
            results.append(InputBinding(leaf_of[id(value)]))
        else:
            results.append(WeightBinding(table.get(value) or constant(table, value, what)))
    return {"bindings": bindings, "output": output, "results": results, "sizes": found.sizes}


def constant(table: WeightTable, value: torch.Tensor, what: str) -> Weight:
    """A tensor that no module owns, as a constant of the model.

    Raises:
        CaptureError: it has no data.
    """
    if isinstance(value, FakeTensor):
        raise CaptureError(
            f"{what} returns or reads a tensor that is neither an argument, a weight nor computed in its forward",
            hint="register it as a buffer",
        )
    if value.device.type == "meta":
        raise CaptureError(f"{what} reads a tensor on meta that no module owns", hint="register it as a parameter")
    return table.add_constant(value)


def end_identity(end: Binding | OutputLeaf) -> tuple[str, int]:
    """What an end of the graph is, to compare two captures by."""
    match end:
        case InputBinding():
            return "input", end.leaf
        case WeightBinding():
            return "weight", id(end.weight)
        case GraphResult():
            return "result", end.index
    return "size", 0
