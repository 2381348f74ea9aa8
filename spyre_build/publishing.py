"""What of a build needs the model itself: its fragments, weights and golden vectors into the cache, and the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spyre_build.recording import record
from spyre_build.tensors import store_weights, used_weights
from spyre_cache.codec import encode
from spyre_cache.objects.fragment import DESCRIPTION_TYPE, Description
from spyre_cache.objects.plan import PlanRecord
from spyre_workers.toolchain import toolchain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spyre_build.frontend.model import Model
    from spyre_build.plan import PlannedAction
    from spyre_build.spec import ModelSpec, WeightMode
    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest
    from spyre_cache.objects.target import Target


def store_fragments(cache: Cache, model: Model, missing: Iterable[PlannedAction]) -> None:
    """Fragments with what is known of their origins, and action documents, so that workers and `explain` find them."""
    described = []
    with cache.blobs.batch():
        for fragment, digest, origins in zip(model.pool.fragments, model.pool.digests, model.pool.origins, strict=True):
            cache.blobs.put(fragment.encoded())
            described.append((digest, cache.blobs.put(encode(Description(fragment=digest, origins=origins)))))
    for digest, blob in described:
        cache.statements.attach(digest, DESCRIPTION_TYPE, blob)
    for planned in missing:
        cache.actions.describe(planned.action)


def plan_of(
    cache: Cache,
    spec: ModelSpec,
    model: Model,
    targets: Sequence[Target],
    mode: WeightMode,
    salt: str = "",
) -> PlanRecord:
    """Stores fragments and weights, and gives the plan over them.

    Raises:
        FactoryError: the mode keeps tensors that have no data.
        CacheError: the cache cannot be written.
    """
    weights = used_weights(model.programs, model.table)
    with cache.blobs.batch():
        for fragment in model.pool.fragments:
            cache.blobs.put(fragment.encoded())
        index = store_weights(cache, weights, mode)
    return PlanRecord(
        name="",
        programs=tuple(model.programs),
        fragments=tuple(model.pool.digests),
        targets=tuple(targets),
        toolchain=toolchain(),
        salt=salt,
        weights=index,
        weight_mode=mode,
        custom_ops=tuple(sorted({*spec.custom_ops, *model.custom_ops})),
        partition=model.partition,
        torch=torch.__version__.partition("+")[0],
        notes=tuple(model.notes),
    )


def golden_of(cache: Cache, spec: ModelSpec, model: Model, mode: WeightMode) -> Digest | None:
    """Records golden vectors and stores them; None where the weights are not at hand or not kept."""
    weights = used_weights(model.programs, model.table)
    if mode != "store" or not all(weight.real for weight in weights):
        return None
    names = {slot.name for program in model.programs for slot in program.slots if slot.kind == "state"}
    written = [weight.tensor for weight in weights if weight.name in names]
    return cache.blobs.put(encode(record(cache, spec, written)))
