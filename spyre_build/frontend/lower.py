"""One lowering for every door: functional ATen, traced once, with our own named decomposition table.

Composite operators are taken apart by torch's dispatcher as for a CPU without gradients (so attention becomes
`_scaled_dot_product_flash_attention_for_cpu`); mutations of inputs come out as `copy_` at the end.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from spyre_build.errors import BuildError, CaptureError, UnsupportedError
from spyre_build.frontend.origins import error_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._subclasses import FakeTensorMode

DECOMPOSITIONS = "cpu-inference/1"
"""Name of the table below; part of the manifest's partition record."""


def _grouped_mm(inputs: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Transformers' grouped matrix product in plain ATen: rows (S, K), experts (E, K, M), ends of groups (E,).

    transformers' own is Python that loops over data, which no node could run without transformers; `aten::_grouped_mm`
    takes bfloat16 alone. Few rows gather their experts, many rows go through every expert and keep what is theirs.
    """
    rows, experts = inputs.shape[0], weight.shape[0]
    number = torch.arange(rows, dtype=offs.dtype, device=inputs.device)
    expert = (number.unsqueeze(1) >= offs.unsqueeze(0)).sum(1)
    zeros = torch.zeros(rows, weight.shape[2], dtype=inputs.dtype, device=inputs.device)
    if isinstance(rows, int) and rows <= experts:
        chosen = weight.index_select(0, expert.clamp(max=experts - 1))
        product = torch.bmm(inputs.unsqueeze(1), chosen).squeeze(1)
        return torch.where((expert < experts).unsqueeze(1), product, zeros)
    for index in range(experts):
        zeros = torch.where((expert == index).unsqueeze(1), inputs.mm(weight[index]), zeros)
    return zeros


def _floor_divide(a: Any, b: Any, *, rounding_mode: str | None = "floor") -> Any:
    """Division towards minus infinity of real numbers as torch does it, by the remainder.

    The compiler's own is `floor(a / b)`, which is 10 for 1.0 and 0.1, where torch has 9, and infinite for infinity.
    """
    kind = torch.result_type(a, b)
    if rounding_mode != "floor" or not kind.is_floating_point:
        return NotImplemented
    # As in torch, 16-bit numbers are divided as 32-bit ones.
    wide = torch.float32 if kind.itemsize == 2 else kind
    example = a if isinstance(a, torch.Tensor) else b
    a, b = (
        x.to(wide) if isinstance(x, torch.Tensor) else torch.scalar_tensor(x, dtype=wide, device=example.device)
        for x in (a, b)
    )
    rest = torch.fmod(a, b)
    ratio = (a - rest) / b
    ratio = torch.where((rest != 0) & ((b < 0) != (rest < 0)), ratio - 1, ratio)
    floor = torch.floor(ratio)
    floor = torch.where(ratio - floor > 0.5, floor + 1, floor)
    result = torch.where(ratio != 0, floor, torch.copysign(torch.zeros_like(ratio), a / b))
    return torch.where(b == 0, a / b, result).to(kind)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Operators replaced while lowering, besides what torch's dispatcher takes apart by itself."""
    # Conjugation and negation as flags on a view would be lost between fragments: they are computed.
    table: dict[Any, Callable[..., Any]] = {
        torch.ops.aten._conj.default: torch.ops.aten._conj_physical.default,  # noqa: SLF001
        torch.ops.aten._neg_view.default: torch.ops.aten.neg.default,  # noqa: SLF001
        torch.ops.aten.floor_divide.default: _floor_divide,
        torch.ops.aten.div.Tensor_mode: _floor_divide,
    }
    if "transformers::grouped_mm_fallback" in _library_operators():
        table[torch.ops.transformers.grouped_mm_fallback.default] = _grouped_mm
    return table


def _library_operators() -> set[str]:
    names = torch._C._dispatch_get_all_op_names()  # noqa: SLF001  no public list of operators
    return {name for name in names if name.startswith("transformers::")}


def _functional(run: Callable[..., Any], what: str) -> Callable[..., Any]:
    """`run` without mutations: what it wrote to its inputs is written at the end, by `copy_`.

    Python's functionalisation, not C++'s (`torch.func.functionalize`): that one reads symbolic sizes as numbers.
    """

    def inner(*values: Any) -> Any:
        above = torch._C._ExcludeDispatchKeyGuard(  # noqa: SLF001  as torch's own dispatch_functionalize does
            torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)  # noqa: SLF001
        )
        with above, FunctionalTensorMode():
            wrapped = [FunctionalTensor.to_functional(v) if isinstance(v, torch.Tensor) else v for v in values]
            results = pytree.tree_map_only(FunctionalTensor, FunctionalTensor.from_functional, run(*wrapped))
            updates = []
            for value, item in zip(values, wrapped, strict=True):
                if not isinstance(item, FunctionalTensor):
                    continue
                if torch._functionalize_has_metadata_mutation(item.elem):  # noqa: SLF001
                    raise UnsupportedError(
                        f"{what} changes the shape or strides of an argument or weight in place",
                        hint="assign the result to a new name (x = x.t() instead of x.t_())",
                    )
                if torch._functionalize_has_data_mutation(item.elem):  # noqa: SLF001
                    updates.append((value, item.from_functional()))
        for value, update in updates:
            value.copy_(update)
        return results

    return inner


def lower(graph: fx.GraphModule, examples: list[Any], mode: FakeTensorMode, what: str) -> fx.GraphModule:
    """Traces a captured graph into functional ATen.

    Args:
        graph: at torch's level or export's; a flat tuple of results.
        examples: fake tensors of `mode` and sizes, one a placeholder.
        mode: holds the symbols.
        what: names the entry in errors.

    Returns:
        A graph with the same placeholders and results. Trailing `aten.copy_` nodes write placeholders.

    Raises:
        CaptureError: an operator cannot be traced on fake tensors.
    """

    def interpret(*values: Any) -> Any:
        with fx_traceback.preserve_node_meta():
            return fx.Interpreter(graph).run(*values)

    loggers = [logging.getLogger(name) for name in ("torch.fx.experimental", "torch._subclasses.fake_tensor")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with torch.no_grad(), mode, enable_python_dispatcher():
            return make_fx(
                _functional(interpret, what),
                decomposition_table=decompositions(),
                tracing_mode="real",
                _allow_non_fake_inputs=True,
            )(*examples)
    except BuildError:
        raise
    except Exception as error:
        if "token for effect" in str(error):
            raise CaptureError(
                f"{what} calls an operator that checks its result and raises{error_place(error)}; compiled code cannot",
                hint="call the form that returns the outcome instead: torch.linalg.inv_ex, cholesky_ex, solve_ex",
            ) from error
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CaptureError(f"{what} cannot be lowered to ATen: {text[:300]}{error_place(error)}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
