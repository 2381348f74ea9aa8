"""One capture for every door: dynamo on fake weights, `torch.export` where dynamo cannot.

Dynamo's bytecode is run once on fake tensors, with a function in the graph's place that gives back the graph's own
results. Whatever comes out is matched by identity: each leaf is a result of the graph, an argument, or a weight. So
containers, orders and aliases are those of the model's own Python, not of a guess.
"""

from __future__ import annotations

import dis
import logging
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx, nn
from torch._subclasses import FakeTensorMode

from spyre_build.errors import CaptureError
from spyre_build.frontend import side_effects
from spyre_build.frontend.dynamic import DimSpec, mark_dynamic
from spyre_build.frontend.exporting import by_export
from spyre_build.frontend.origins import DATA, DATA_HINT, error_place, reason
from spyre_build.frontend.structure import Leaves, argument_stride, flatten_call, rebuild_call
from spyre_build.frontend.weightless import WeightTable, fake_weights
from spyre_build.frontend.wiring import (
    Binding,
    GraphResult,
    InputBinding,
    OutputLeaf,
    SizeBinding,
    WeightBinding,
    end_identity,
    wire,
)
from spyre_cache.objects.program import Leaf, Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spyre_build.spec import Entry

CaptureKind = Literal["dynamo", "export"]


@dataclass
class Captured:
    """A graph at torch's level (or export's) with its wiring.

    Attributes:
        graph: placeholders in order of `bindings`; outputs a flat tuple.
        examples: fake tensors and sizes for the placeholders, all of `fake_mode`.
        args_tree: the caller's arguments; its leaves are numbered through `leaves`.
        output: the result's tree; its leaves are numbered through `results`, its sizes through `sizes`.
        settled: attributes that the first call assigns, and every later one finds as they are then.
    """

    kind: CaptureKind
    graph: fx.GraphModule
    bindings: list[Binding]
    examples: list[Any]
    fake_mode: FakeTensorMode
    args_tree: Tree
    kwargs_tree: Tree
    leaves: Leaves
    output: Tree
    results: list[OutputLeaf]
    sizes: list[Any]
    notes: list[str] = field(default_factory=list)
    settled: dict[str, Any] = field(default_factory=dict)


def capture(
    module: nn.Module, table: WeightTable, entry: Entry, dims: dict[int, dict[int, DimSpec]], what: str
) -> Captured:
    """Captures one entry with no weights touched.

    Args:
        module: in eval mode.
        table: its tensors by identity; constants met on the way are added.
        entry: example arguments and the method to call.
        dims: dynamic dimensions by tensor leaf of `(args, kwargs)`, then by dimension.
        what: names the entry in errors.

    Raises:
        CaptureError: neither dynamo nor export can trace it, or the forward keeps state where it cannot be followed.
    """
    args_tree, kwargs_tree, leaves = flatten_call(entry.args, entry.kwargs)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with fake_weights(module, table, mode), torch.no_grad(), _quiet():
        fakes = [_fake_input(mode, leaf, dims.get(index, {})) for index, leaf in enumerate(leaves.tensors)]
        args, kwargs = rebuild_call(args_tree, kwargs_tree, fakes)
        call = getattr(module, entry.method) if entry.method != "forward" else module
        problem: CaptureError
        try:
            found = _by_dynamo(module, call, table, args, kwargs, fakes, what)
        except _DynamoCannot as error:
            problem = error.as_capture_error(what)
        else:
            return Captured(args_tree=args_tree, kwargs_tree=kwargs_tree, leaves=leaves, **found)
        found = by_export(module, entry, table, args, kwargs, fakes, dims, what, problem)
        return Captured(
            args_tree=args_tree,
            kwargs_tree=kwargs_tree,
            leaves=leaves,
            notes=[f"captured by export: {problem}"],
            **found,
        )


def _fake_input(mode: FakeTensorMode, leaf: torch.Tensor, dims: dict[int, DimSpec]) -> torch.Tensor:
    # One fake a leaf, whatever the example shares: two arguments that happen to be one object stay two.
    if leaf.layout is not torch.strided:
        raise CaptureError(f"arguments are strided tensors, but a {leaf.layout} one came", hint="call .to_dense()")
    with mode:
        fake = torch.empty_strided(leaf.shape, argument_stride(leaf), dtype=leaf.dtype, device="cpu")
    mark_dynamic(fake, dims)
    return fake


_LOGGERS = ("torch._dynamo", "torch.fx.experimental", "torch._export", "torch._subclasses.fake_tensor")


@contextmanager
def _quiet() -> Iterator[None]:
    """Dynamo's logs and warnings go nowhere: what matters comes back as an error of ours."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class _DynamoCannot(Exception):  # noqa: N818  not an error to anyone outside this module
    def __init__(self, cause: BaseException, text: str = "") -> None:
        super().__init__(text or str(cause))
        self.cause = cause

    def as_capture_error(self, what: str) -> CaptureError:
        cause = reason(self)
        hint = DATA_HINT if cause == DATA else ""
        return CaptureError(f"{what} cannot be traced: {cause}{error_place(self.cause)}", hint=hint)


def dynamo_settings() -> Any:
    """The settings under which every door captures: static unless marked, numbers frozen, one graph."""
    return torch._dynamo.config.patch(  # noqa: SLF001  dynamo has no public door for a capture
        specialize_int=True,
        specialize_float=True,
        assume_static_by_default=True,
        automatic_dynamic_shapes=False,
        capture_scalar_outputs=True,
        capture_dynamic_output_shape_ops=True,
    )


def _by_dynamo(
    module: nn.Module,
    call: Any,
    table: WeightTable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fakes: list[torch.Tensor],
    what: str,
) -> dict[str, Any]:
    def trace() -> tuple[dict[str, Any], dict[str, Any]]:
        return _traced(module, call, table, args, kwargs, fakes, what)

    found, changed = trace()
    if changed:
        _check_settled(module, trace, found, changed, what)
    return found | {"settled": changed}


def _check_settled(module: nn.Module, trace: Any, found: dict[str, Any], changed: dict[str, Any], what: str) -> None:
    """Accepts attributes that are assigned once and for all: the call after it computes the same and changes nothing.

    Raises:
        CaptureError: what a call leaves behind matters to the next one, or cannot be told.
    """
    before = side_effects.snapshot(module)
    side_effects.assign(module, changed)
    try:
        again, more = trace()
    except (_DynamoCannot, CaptureError):
        again, more = {}, changed
    finally:
        side_effects.restore(before)
    if more or _identity(again) != _identity(found):  # where it could not be traced again, there is more
        side_effects.check(changed, what)


def _identity(found: dict[str, Any]) -> tuple[Any, ...]:
    """What two captures of one call have in common when they compute the same."""
    code = [module.code for module in found["graph"].modules() if isinstance(module, fx.GraphModule)]
    wires = [end_identity(end) for end in (*found["bindings"], *found["results"])]
    examples = [
        (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else None
        for value in found["examples"]
    ]
    return code, wires, found["output"], str(found["sizes"]), str(examples)


def _traced(
    module: nn.Module,
    call: Any,
    table: WeightTable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fakes: list[torch.Tensor],
    what: str,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Dynamo's graph with its wiring, and the attributes that the forward assigned."""
    from torch._dynamo.convert_frame import fullgraph_capture, get_traced_fn
    from torch._dynamo.utils import dynamo_timed, get_metrics_context
    from torch.fx.experimental import _config as shapes_config

    torch._dynamo.reset()  # noqa: SLF001
    before = side_effects.snapshot(module)
    try:
        with (
            get_metrics_context(),
            dynamo_timed("fullgraph_capture"),
            dynamo_settings(),
            # Two dims that are equal in the example by chance must not become one symbol.
            shapes_config.patch(use_duck_shape=False),
        ):
            out = fullgraph_capture(call, args, kwargs)
        if out.backend_input is None:
            raise _DynamoCannot(CaptureError("no operators"), "its forward calls no tensor operator")  # noqa: TRY301
        graph = out.backend_input.graph_module
        seen: dict[str, Any] = {}

        def stand_in(*values: Any) -> tuple[Any, ...]:
            seen["inputs"] = values
            node = next(iter(reversed(graph.graph.nodes)))
            given = dict(zip(graph.graph.find_nodes(op="placeholder"), values, strict=True))
            seen["outputs"] = tuple(_stands_for(item, given) for item in node.args[0])
            return seen["outputs"]  # type: ignore[no-any-return]

        found = out.graph_capture_output
        assigned = [i.argval for i in dis.get_instructions(found.bytecode) if i.opname == "STORE_GLOBAL"]
        side_effects.check([name for name in assigned if not name.startswith("__")], what)
        before.add_globals({code.co_filename for code in found.traced_code}, module)
        before_call = flatten_call(args, kwargs)
        run = out.forward_callable(compiled_fn=stand_in, extra_globals=found.f_globals)
        _, root = get_traced_fn(call)
        result = run(*(() if root is None else (root,)), *args, **kwargs)
    except (_DynamoCannot, CaptureError):
        raise
    except Exception as error:
        raise _DynamoCannot(error) from error
    finally:
        changed = side_effects.restore(before)
    side_effects.check_containers(before_call, flatten_call(args, kwargs), what)
    shape_env = out.backend_input.fake_mode.shape_env
    if changed and not side_effects.plain(changed):
        side_effects.check(changed, what)
    wired = {
        "kind": "dynamo",
        "graph": graph,
        **wire(table, seen["inputs"], seen["outputs"], fakes, result, what),
        **_examples(graph, shape_env),
    }
    return wired, changed


def _stands_for(item: Any, given: dict[fx.Node, Any]) -> Any:
    """What a result of the graph is: the input that operators in place were called on, or a value of its own.

    So `self.count += 1`, which assigns to `count` what the addition gives, is seen to assign what was there.
    """
    if not isinstance(item, fx.Node):
        return item
    node = item
    while node not in given and _in_place(node) and node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return given.get(node, item.meta["example_value"]) if node is not item else item.meta["example_value"]


def _in_place(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op == "call_function" and getattr(node.target, "__module__", "") == "_operator":
        return name in _IN_PLACE
    return name.endswith("_") and not name.endswith("__")


_IN_PLACE = {
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
}  # fmt: skip


def _examples(graph: fx.GraphModule, shape_env: Any) -> dict[str, Any]:
    """Fresh fakes for the placeholders: tracing may have changed the metadata of dynamo's own."""
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    examples: list[Any] = []
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta["example_value"]
        if isinstance(value, torch.Tensor):
            with mode:
                value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        examples.append(value)
    return {"examples": examples, "fake_mode": mode}


__all__ = [
    "Binding",
    "Captured",
    "GraphResult",
    "InputBinding",
    "Leaf",
    "SizeBinding",
    "WeightBinding",
    "capture",
    "dynamo_settings",
]
