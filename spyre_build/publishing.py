"""The end of a build: manifest, weights and golden vectors into the cache, and a release when all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spyre_build.errors import VerificationError
from spyre_build.golden import attach_verification
from spyre_build.recording import record
from spyre_build.tensors import store_weights, used_weights
from spyre_build.verify import replay_golden
from spyre_cache.objects.manifest import Artifact, Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spyre_build.frontend.model import Model
    from spyre_build.plan import Plan, PlannedAction
    from spyre_build.spec import ModelSpec, WeightMode
    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest
    from spyre_cache.objects.action import ActionResult
    from spyre_cache.objects.target import Target


def publish(
    cache: Cache,
    spec: ModelSpec,
    model: Model,
    plan: Plan,
    results: Mapping[str, ActionResult],
    targets: Sequence[Target],
    mode: WeightMode,
) -> Manifest:
    """Stores fragments, weights and the manifest over them.

    Raises:
        FactoryError: the mode keeps tensors that have no data.
        CacheError: the cache cannot be written.
    """
    weights = used_weights(model.programs, model.table)
    with cache.blobs.batch():
        for fragment in model.pool.fragments:
            cache.blobs.put(fragment.encoded())
        index = store_weights(cache, weights, mode)
    manifest = Manifest(
        programs=tuple(model.programs),
        fragments=tuple(model.pool.digests),
        artifacts=tuple(
            _artifact(planned, results[planned.key]) for planned in plan.actions if results[planned.key].status == "ok"
        ),
        weights=index,
        weight_mode=mode,
        targets=tuple(sorted(target.name for target in targets)),
        custom_ops=tuple(sorted({*spec.custom_ops, *model.custom_ops})),
        partition=model.partition,
        torch=torch.__version__.partition("+")[0],
    )
    cache.put_manifest(manifest)
    return manifest


def _artifact(planned: PlannedAction, result: ActionResult) -> Artifact:
    assert result.requires is not None  # a success states what it needs
    return Artifact(
        fragment=planned.fragment,
        target=planned.action.target.name,
        action=planned.key,
        outputs=result.outputs,
        requires=result.requires,
    )


def verify_build(cache: Cache, spec: ModelSpec, model: Model, manifest: Manifest, mode: WeightMode) -> str:
    """Records golden vectors and replays them through what was just compiled, where this host can run it.

    Returns:
        Why nothing was replayed, or an empty string.

    Raises:
        VerificationError: what was compiled does not give what eager gives; names the first fragment that differs.
    """
    weights = used_weights(model.programs, model.table)
    if mode != "store" or not all(weight.real for weight in weights):
        return "golden vectors are not recorded: the model's weights are not kept"
    digest = manifest.digest()
    names = {slot.name for program in model.programs for slot in program.slots if slot.kind == "state"}
    written = [weight.tensor for weight in weights if weight.name in names]
    verification = record(cache, spec, written)
    attach_verification(cache, digest, verification)
    if not _runnable(manifest):
        return "golden vectors were not replayed: this machine can run none of the targets"
    replay = replay_golden(cache, digest, manifest, verification)
    if replay.findings:
        where = f"; the first fragment that differs is {replay.fragment}" if replay.fragment else ""
        raise VerificationError(
            f"what was compiled does not give what eager gives: {replay.findings[0]}{where}",
            fragment=replay.fragment,
            hint="nothing was released; `spyre-build verify MANIFEST --device eager` tells which side is wrong",
        )
    return ""


def _runnable(manifest: Manifest) -> bool:
    """Whether this host can run one whole target of the model."""
    from spyre_runtime.host import lacking

    for target in manifest.targets:
        mine = [artifact for artifact in manifest.artifacts if artifact.target == target]
        if len(mine) == len(manifest.fragments) and all(lacking(artifact.requires) is None for artifact in mine):
            return True
    return False


def next_version(cache: Cache, name: str, digest: Digest) -> str:
    """The version of this manifest under this name, or the next whole number."""
    entries = cache.refs.releases(name)
    for entry in entries:
        if entry.manifest == digest:
            return entry.version
    numbers = [int(entry.version) for entry in entries if entry.version.isdecimal()]
    return str(max(numbers, default=0) + 1)
