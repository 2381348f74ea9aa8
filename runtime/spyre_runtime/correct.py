"""What correct means, in one place: for tests, `submit`, `verify`, rollouts and benches.

With R the result in higher precision, E eager's and X the one in question:
`e(X) = max|X - R| / max(1e-6, max|R|)`, and X is accepted when `e(X) <= max(floor, 2 e(E))`. Integers, structure,
types, dtypes, shapes and the places of NaN and infinity are equal. Strides are no part of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

import torch

from spyre_runtime.plain import same, show
from spyre_runtime.trees import class_name

FLOORS: Final[dict[torch.dtype, float]] = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.bfloat16: 1.6e-2,
    torch.float16: 2e-3,
    torch.complex32: 2e-3,
}
"""Errors that are accepted whatever eager's own is. Dtypes that are not listed are compared exactly."""

EMULATOR_KERNEL_FLOOR: Final = 1e-3
EMULATOR_BLOCK_FLOOR: Final = 3e-3

_SMALLEST: Final = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One difference: where, and what."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path or 'the result'}: {self.what}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of a comparison.

    Attributes:
        findings: all differences; none means correct.
        errors: e(X) of each floating tensor, by path.
        tolerances: what each was allowed.
    """

    findings: tuple[Finding, ...]
    errors: Mapping[str, float]
    tolerances: Mapping[str, float]

    @property
    def correct(self) -> bool:
        """Whether there is no finding."""
        return not self.findings

    @property
    def worst(self) -> float:
        """The largest e(X); 0 where nothing was floating."""
        return max(self.errors.values(), default=0.0)

    def __str__(self) -> str:
        return "; ".join(str(finding) for finding in self.findings) or "no difference"


def tensor_error(x: torch.Tensor, reference: torch.Tensor) -> float:
    """e(X): the largest difference over the largest magnitude of the reference, where both are finite."""
    if x.numel() == 0:
        return 0.0
    wide = torch.complex128 if x.is_complex() or reference.is_complex() else torch.float64
    a, b = x.detach().to(wide), reference.detach().to(wide)
    finite = torch.isfinite(a) & torch.isfinite(b)
    if not bool(finite.any()):
        return 0.0
    difference = (a - b).abs()[finite].max().item()
    return float(difference / max(_SMALLEST, b.abs()[finite].max().item()))


def tolerance(eager: torch.Tensor, reference: torch.Tensor | None, floor: float | None = None) -> float:
    """The e(X) that is accepted: the dtype's floor (or a given one), or twice eager's own error."""
    least = FLOORS.get(eager.dtype, 0.0) if floor is None else floor
    return least if reference is None else max(least, 2 * tensor_error(eager, reference))


def compare(
    actual: object,
    eager: object,
    reference: object = None,
    *,
    floor: float | None = None,
    tolerances: Mapping[str, float] | None = None,
    path: str = "out",
) -> Report:
    """Compares a whole result with eager's, by the rule above.

    Args:
        actual: the result in question.
        eager: eager's result: its structure, types, dtypes and plain values are the right ones.
        reference: the same in higher precision; without it eager's result is its own reference.
        floor: instead of the dtype's.
        tolerances: accepted errors by path, recorded earlier; win over what eager and reference give.
        path: what the result is called in findings.
    """
    comparison = _Comparison(floor, tolerances or {})
    comparison.compare(path, actual, eager, reference)
    return Report(findings=tuple(comparison.findings), errors=comparison.errors, tolerances=comparison.allowed)


class _Comparison:
    def __init__(self, floor: float | None, tolerances: Mapping[str, float]) -> None:
        self.floor, self.recorded = floor, tolerances
        self.findings: list[Finding] = []
        self.errors: dict[str, float] = {}
        self.allowed: dict[str, float] = {}

    def find(self, path: str, what: str) -> None:
        self.findings.append(Finding(path=path, what=what))

    def compare(self, path: str, actual: Any, eager: Any, reference: Any) -> None:
        as_dict: Any = eager
        if isinstance(eager, torch.Tensor):
            if isinstance(actual, torch.Tensor):
                self.tensor(path, actual, eager, reference if isinstance(reference, torch.Tensor) else None)
            else:
                self.find(path, f"{show(eager)} is due, but {show(actual)} came")
        elif type(actual) is not type(eager):
            self.find(path, f"a {class_name(type(eager))} is due, but a {class_name(type(actual))} came")
        elif dataclasses.is_dataclass(eager):
            for field in dataclasses.fields(eager):
                parts = (getattr(value, field.name, None) for value in (actual, eager, reference))
                self.compare(f"{path}.{field.name}", *parts)
            if isinstance(as_dict, dict) and list(actual) != list(as_dict):  # transformers' outputs are dicts as well
                self.find(path, f"the keys {list(as_dict)} are due, but {list(actual)} came")
        elif isinstance(eager, Mapping):
            self.mapping(path, actual, eager, reference)
        elif isinstance(eager, (list, tuple)):
            self.sequence(path, actual, eager, reference)
        elif not same(eager, actual):
            self.find(path, f"{show(eager)} is due, but {show(actual)} came")

    def mapping(self, path: str, actual: Any, eager: Any, reference: Any) -> None:
        if list(actual) != list(eager):
            self.find(path, f"the keys {list(eager)} are due, in this order, but {list(actual)} came")
        for key in eager:
            if key in actual:
                wider = reference.get(key) if isinstance(reference, Mapping) else None
                self.compare(f"{path}.{key}", actual[key], eager[key], wider)

    def sequence(self, path: str, actual: Any, eager: Any, reference: Any) -> None:
        if len(actual) != len(eager):
            self.find(path, f"{len(eager)} items are due, but {len(actual)} came")
        wider = (
            reference if isinstance(reference, (list, tuple)) and len(reference) == len(eager) else [None] * len(eager)
        )
        names = getattr(type(eager), "_fields", range(len(eager)))
        for name, x, e, r in zip(names, actual, eager, wider, strict=False):
            self.compare(f"{path}.{name}", x, e, r)

    def tensor(self, path: str, actual: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor | None) -> None:
        if actual.dtype != eager.dtype or actual.shape != eager.shape:
            self.find(path, f"{show(eager)} is due, but {show(actual)} came")
            return
        if not eager.is_floating_point() and not eager.is_complex():
            different = int((actual != eager).sum())
            if different:
                self.find(path, f"{different} of {eager.numel()} elements differ, and integers are exact")
            return
        places = _odd_places(actual) != _odd_places(eager)
        if bool(places.any()):
            self.find(path, f"NaN or infinity differs at {int(places.sum())} of {eager.numel()} places")
            return
        if reference is not None and reference.shape != eager.shape:
            self.find(path, f"the reference has the shape {list(reference.shape)}")
            return
        error = tensor_error(actual, eager if reference is None else reference)
        allowed = self.recorded.get(path)
        if allowed is None:
            allowed = tolerance(eager, reference, self.floor)
        self.errors[path], self.allowed[path] = error, allowed
        if not error <= allowed or math.isnan(error):
            self.find(path, f"the error is {error:.3g}, but at most {allowed:.3g} is accepted")


def _odd_places(tensor: torch.Tensor) -> torch.Tensor:
    """0 for finite, 1 for NaN, 2 and 3 for the infinities; for complex numbers, of both parts."""
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.detach().to(torch.complex128).resolve_conj())
        return _odd_places(parts[..., 0]) + 4 * _odd_places(parts[..., 1])
    wide = tensor.detach().to(torch.float64)
    return torch.isnan(wide).int() + 2 * torch.isposinf(wide).int() + 3 * torch.isneginf(wide).int()
