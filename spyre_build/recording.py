"""Golden vectors: what eager gives for the example and for another input, recorded while the weights are at hand."""

from __future__ import annotations

import copy
import platform
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spyre_build.calling import named
from spyre_build.frontend.model import variants
from spyre_build.frontend.structure import flatten_call, rebuild_call
from spyre_build.golden import put_tensor
from spyre_cache.codec import float_bits
from spyre_cache.objects.release import GoldenCall, GoldenValue, Verification
from spyre_runtime.correct import tensor_error, tolerance
from spyre_runtime.plain import to_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spyre_build.spec import Entry, ModelSpec
    from spyre_cache.cache import Cache

CALLS = 3
"""Calls in one sequence: the example, another input, the example again (so that state shows)."""
REFERENCE_LIMIT = 2 << 30
"""Models with more bytes of tensors than this get no higher-precision reference: it would need twice as many."""


@dataclass
class _Call:
    entry: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    method: str


def record(cache: Cache, spec: ModelSpec, written: list[torch.Tensor]) -> Verification:
    """Runs eager and stores what it was given and what it gave; `written` tensors are put back afterwards.

    One sequence of calls: every entry with its example and with a varied input, and the first entry once more.
    Reference: the same in fp64 (fp32 models) or fp32 (16-bit models).
    """
    calls = list(_calls(spec))
    kept = [tensor.detach().clone() for tensor in written]
    try:
        eager = _run(spec.module, calls)
    finally:
        with torch.no_grad():
            for tensor, before in zip(written, kept, strict=True):
                tensor.copy_(before)
    reference = None if _bytes(spec.module) > REFERENCE_LIMIT else _run_wider(spec.module, calls)
    recorded = []
    for index, (call, outcome) in enumerate(zip(calls, eager, strict=True)):
        wide = reference[index] if reference is not None else None
        recorded.append(_golden(cache, call, outcome, wide))
    return Verification(sequences=(tuple(recorded),), host=platform.machine())


def _calls(spec: ModelSpec) -> Iterator[_Call]:
    first: _Call | None = None
    for name, _, entry, _ in variants(spec):
        for seed in (None, 1):
            args, kwargs = _varied(entry, seed)
            call = _Call(name, args, kwargs, entry.method)
            first = first or call
            yield call
    assert first is not None  # a ModelSpec has an entry
    yield first


def _varied(entry: Entry, seed: int | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the example's tensors; with a seed, other values of the same kind and range."""
    args_tree, kwargs_tree, leaves = flatten_call(entry.args, entry.kwargs)
    generator = torch.Generator().manual_seed(seed or 0)
    tensors = [_copy(tensor) if seed is None else _other(tensor, generator) for tensor in leaves.tensors]
    return rebuild_call(args_tree, kwargs_tree, tensors)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _other(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Values the model can take where it takes the example's: indices are permuted, reals get other signs and sizes."""
    tensor = tensor.detach()
    if tensor.numel() == 0:
        return tensor.clone()
    if tensor.is_floating_point():
        noise = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        finite = torch.isfinite(tensor)
        spread = tensor[finite].float().std(correction=0).to(tensor.dtype) if bool(finite.any()) else 0
        # What is not finite (a mask's -inf) or does not vary at all is meant; the rest is drawn anew around it.
        return torch.where(finite, tensor + noise * spread, tensor)
    order = torch.randperm(tensor.numel(), generator=generator)
    return tensor.reshape(-1)[order].reshape(tensor.shape).clone()


@dataclass
class _Outcome:
    before: dict[str, torch.Tensor]
    result: Any
    after: dict[str, torch.Tensor]


def _run(module: nn.Module, calls: list[_Call], dtype: torch.dtype | None = None) -> list[_Outcome]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [_one(module, call, dtype) for call in calls]


def _run_wider(module: nn.Module, calls: list[_Call]) -> list[_Outcome] | None:
    """The calls on a copy of higher precision; None where the model fixes its dtypes and cannot run so."""
    dtype = _wider(module)
    try:
        return _run(copy.deepcopy(module).to(dtype), calls, dtype)
    except Exception:  # noqa: BLE001  whatever the user's code raises: eager is then its own reference
        return None


def _one(module: nn.Module, call: _Call, dtype: torch.dtype | None) -> _Outcome:
    args_tree, kwargs_tree, leaves = flatten_call(call.args, call.kwargs)
    tensors = [tensor.clone() for tensor in leaves.tensors]
    if dtype is not None:
        tensors = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors]
    before = {path: tensor.clone() for path, tensor in zip(leaves.paths, tensors, strict=True)}
    args, kwargs = rebuild_call(args_tree, kwargs_tree, tensors)
    function = module if call.method == "forward" else getattr(module, call.method)
    result = function(*args, **kwargs)
    result = _detached(result)
    changed = {
        path: tensor.clone()
        for path, tensor in zip(leaves.paths, tensors, strict=True)
        if not torch.equal(_bits(tensor), _bits(before[path]))
    }
    return _Outcome(before, result, changed)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor.reshape(-1)


def _detached(value: Any) -> Any:
    """Results may be views of state that the next call changes: what is compared is what they were."""
    found = named(value)
    found.tensors.update({path: tensor.detach().clone() for path, tensor in found.tensors.items()})
    return found


def _golden(cache: Cache, call: _Call, eager: _Outcome, wide: _Outcome | None) -> GoldenCall:
    references: dict[str, torch.Tensor] = {}
    tolerances: list[tuple[str, str]] = []
    for path, tensor in eager.result.tensors.items():
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        exact = wide.result.tensors.get(path) if wide is not None else None
        if exact is not None and exact.shape == tensor.shape and tensor_error(tensor, exact) < _AGREES:
            references[path] = exact
        tolerances.append((path, float_bits(tolerance(tensor, references.get(path)))))
    return GoldenCall(
        entry=call.entry,
        inputs=tuple(put_tensor(cache, path, tensor) for path, tensor in eager.before.items()),
        outputs=tuple(put_tensor(cache, path, tensor) for path, tensor in eager.result.tensors.items()),
        references=tuple(put_tensor(cache, path, tensor) for path, tensor in references.items()),
        plain=tuple(
            GoldenValue(path=path, value=plain)
            for path, value in eager.result.plain.items()
            if (plain := to_plain(value)) is not None
        ),
        after=tuple(put_tensor(cache, path, tensor) for path, tensor in eager.after.items()),
        tolerance=tuple(tolerances),
    )


_AGREES = 0.05
"""A reference farther from eager than this took another branch (a sort, a threshold): it tells nothing of rounding."""


def _wider(module: nn.Module) -> torch.dtype:
    dtypes = [t.dtype for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
    return torch.float32 if dtypes and all(t.itemsize == 2 for t in dtypes) else torch.float64


def _bytes(module: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
