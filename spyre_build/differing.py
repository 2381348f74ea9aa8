"""Which fragment is to blame: each runs compiled and interpreted, on the same inputs, in the program's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spyre_build.calling import call_arguments, choose_program
from spyre_build.golden import golden_tensors
from spyre_runtime.correct import compare
from spyre_runtime.drivers.cpu import CpuDriver
from spyre_runtime.drivers.eager import EagerDriver
from spyre_runtime.errors import SpyreRuntimeError
from spyre_runtime.overlap import repeats
from spyre_runtime.program import NAMED, Executable, written_names
from spyre_runtime.weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from spyre_cache.cache import Cache
    from spyre_cache.objects.manifest import Artifact, Manifest
    from spyre_cache.objects.release import GoldenCall
    from spyre_runtime.drivers.base import Call


class _Differs(Exception):  # noqa: N818  ends the run at the culprit
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def first_differing(
    cache: Cache,
    manifest: Manifest,
    calls: Sequence[GoldenCall],
    *,
    weights: Path | dict[str, torch.Tensor] | None = None,
) -> str | None:
    """The first fragment whose compiled outputs are not those of its interpreted form.

    Args:
        cache: where the pieces are.
        manifest: the model.
        calls: a recorded sequence.
        weights: tensors of a model that does not store its own.

    Returns:
        `blake3:…` of the fragment; None where each agrees by itself, so that no single one is to blame.
    """
    compiled, eager = CpuDriver(cache.blobs), EagerDriver(cache.blobs, frozenset(manifest.custom_ops))
    pairs: dict[int, Call] = {}
    for index, fragment in enumerate(manifest.fragments):
        artifact = _runnable(manifest, index, compiled)
        if artifact is not None:
            pairs[index] = _pair(index, compiled.load(fragment, artifact), eager.load(fragment, None))
        else:
            pairs[index] = eager.load(fragment, None)
    tensors = load_weights(manifest.weights, cache.blobs, weights).tensors
    tensors |= {name: tensors[name].clone() for name in written_names(manifest.programs) & tensors.keys()}
    try:
        for call in calls:
            given = golden_tensors(cache, call.inputs)
            program = choose_program(manifest, call.entry, given)
            named = {slot.name: tensors[slot.name] for slot in program.slots if slot.kind in NAMED}
            args, kwargs = call_arguments(program, given)
            Executable(program, pairs, named, plain=True)(*args, **kwargs)
    except _Differs as found:
        return str(manifest.fragments[found.index])
    except SpyreRuntimeError:
        # The model is at fault already; that it cannot even be taken apart must not hide the finding.
        return None
    return None


def _runnable(manifest: Manifest, index: int, driver: CpuDriver) -> Artifact | None:
    from spyre_cache.objects.target import TARGETS

    fit = [
        artifact
        for artifact in manifest.artifacts
        if artifact.fragment == index
        and artifact.target in TARGETS
        and driver.provides(TARGETS[artifact.target]) is None
    ]
    return max(fit, key=lambda artifact: len(TARGETS[artifact.target].features), default=None)


def _pair(index: int, compiled: Callable[..., list[Any]], eager: Callable[..., list[Any]]) -> Call:
    def call(inputs: Sequence[Any]) -> list[Any]:
        # Either may write to its inputs; what goes on is the interpreted form, so that one error is not told twice.
        copies = [_copy(value) for value in inputs]
        outputs = compiled(copies)
        right = eager(inputs)
        if not compare([*outputs, *copies], [*right, *inputs]).correct:
            raise _Differs(index)
        return right

    return call


def _copy(value: Any) -> Any:
    # What repeats its memory (an expanded tensor) cannot be written to, so both forms may read the one there is.
    if not isinstance(value, torch.Tensor) or repeats(value):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value)
