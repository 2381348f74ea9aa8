"""Capture by non-strict `torch.export`, where dynamo cannot trace."""

from __future__ import annotations

import contextlib
import io
import random
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensor

from spyre_build.errors import CaptureError
from spyre_build.frontend import side_effects
from spyre_build.frontend.origins import DATA, DATA_HINT, RUNS_HINT, error_place, reason
from spyre_build.frontend.structure import Leaves
from spyre_build.frontend.wiring import (
    Binding,
    GraphResult,
    InputBinding,
    OutputLeaf,
    SizeBinding,
    WeightBinding,
    constant,
)

if TYPE_CHECKING:
    from torch import nn

    from spyre_build.frontend.dynamic import DimSpec
    from spyre_build.frontend.weightless import Weight, WeightTable
    from spyre_build.spec import Entry
    from spyre_cache.objects.program import Tree


def by_export(  # noqa: PLR0913, PLR0917  the two ways to capture take the same things
    module: nn.Module,
    entry: Entry,
    table: WeightTable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fakes: list[torch.Tensor],
    dims: dict[int, dict[int, DimSpec]],
    what: str,
    problem: CaptureError,
) -> dict[str, Any]:
    """Non-strict export: any Python that runs, but branches are those of exporting."""
    from torch.export.graph_signature import InputKind

    if entry.method != "forward" or dims:
        raise problem
    before = side_effects.snapshot(module)
    before.add_globals(_source_files(module), module)
    state = random.getstate()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # export prints the graph so far when it fails
            program = torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:
        if problem.hint == DATA_HINT:
            raise problem from error
        cause = reason(error)
        # Where export says more than dynamo (which line branches on data), say that.
        raise CaptureError(
            f"{problem}; export cannot either: {cause}{error_place(error)}",
            hint=DATA_HINT if cause == DATA else RUNS_HINT,
        ) from error
    finally:
        changed = side_effects.restore(before)
    side_effects.check(changed, what)
    if random.getstate() != state:
        random.setstate(state)
        raise CaptureError(
            f"{what} draws from Python's random module; the number of this trace would stay for ever",
            hint="draw outside and pass it as an argument",
        )
    graph = program.graph_module
    named: dict[str, torch.Tensor] = dict(program.state_dict)
    named.update(program.constants)
    user = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    order = {name: index for index, name in enumerate(user)}
    flat = _user_leaves(args, kwargs, fakes)
    bindings: list[Binding] = []
    examples: list[Any] = []
    for spec, node in zip(program.graph_signature.input_specs, graph.graph.find_nodes(op="placeholder"), strict=True):
        value = node.meta.get("val")
        examples.append(value)
        if spec.kind is InputKind.USER_INPUT:
            leaf = flat[order[spec.arg.name]]
            bindings.append(InputBinding(leaf) if leaf is not None else SizeBinding())
        else:
            tensor = named[str(spec.target)]
            bindings.append(WeightBinding(table.get(tensor) or _by_name(table, str(spec.target), tensor, what)))
    mode = next(v.fake_mode for v in examples if isinstance(v, FakeTensor))
    output, results = _export_output(program, table, flat, bindings)
    return {
        "kind": "export",
        "graph": graph,
        "bindings": bindings,
        "examples": examples,
        "fake_mode": mode,
        "output": output,
        "results": results,
        "sizes": [],
    }


def _source_files(module: nn.Module) -> set[str]:
    """Files of the model's own classes."""
    homes = {type(child).__module__ for child in module.modules()}
    return {file for home in homes if (file := getattr(sys.modules.get(home), "__file__", None)) is not None}


def _by_name(table: WeightTable, name: str, tensor: torch.Tensor, what: str) -> Weight:
    for weight in table.weights():
        if name == weight.name or name in weight.aliases:
            return weight
    return constant(table, tensor, what)


def _user_leaves(args: tuple[Any, ...], kwargs: dict[str, Any], fakes: list[torch.Tensor]) -> list[int | None]:
    from torch.utils import _pytree as pytree

    leaf_of = {id(fake): index for index, fake in enumerate(fakes)}
    return [leaf_of.get(id(value)) for value in pytree.tree_leaves((args, kwargs))]


def _export_output(
    program: Any, table: WeightTable, flat: list[int | None], bindings: list[Binding]
) -> tuple[Tree, list[OutputLeaf]]:
    """Unflattens markers through export's own tree, so that containers come out as the model made them."""
    from torch.export.graph_signature import ConstantArgument
    from torch.utils import _pytree as pytree

    del table, flat
    names = [node.name for node in program.graph_module.graph.find_nodes(op="placeholder")]
    results: list[OutputLeaf] = []
    marks: list[Any] = []
    leaves: dict[int, int] = {}
    keep: list[torch.Tensor] = []
    for index, spec in enumerate(program.graph_signature.output_specs):
        if spec.kind.name != "USER_OUTPUT":
            continue
        if isinstance(spec.arg, ConstantArgument):
            marks.append(spec.arg.value)
            continue
        mark = torch.empty(0)
        keep.append(mark)
        leaves[id(mark)] = len(results)
        marks.append(mark)
        bound = bindings[names.index(spec.arg.name)] if spec.arg.name in names else GraphResult(index)
        results.append(GraphResult(index) if isinstance(bound, SizeBinding) else bound)
    value = pytree.tree_unflatten(marks, program.call_spec.out_spec)
    found = Leaves()
    output = found.tree(value, "out")
    return output, [results[leaves[id(mark)]] for mark in found.tensors]
