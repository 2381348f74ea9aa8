"""The end of a build: the manifest over what was compiled, its golden vectors replayed, and a release when all is well.

Needs the plan and the results alone, so that it need not happen where the model was captured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spyre_build.errors import VerificationError
from spyre_build.plan import planned_of
from spyre_build.statements import attach_verification
from spyre_cache.codec import decode
from spyre_cache.errors import BlobNotFoundError, InvalidRecordError
from spyre_cache.objects.fragment import DESCRIPTION_TYPE, Description
from spyre_cache.objects.manifest import Artifact, Manifest
from spyre_cache.objects.release import Verification

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spyre_build.plan import PlannedAction
    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest
    from spyre_cache.objects.action import ActionResult
    from spyre_cache.objects.plan import PlanRecord


def assemble_manifest(plan: PlanRecord, results: Mapping[str, ActionResult]) -> Manifest:
    """The manifest over the results that are good; pure."""
    return Manifest(
        programs=plan.programs,
        fragments=plan.fragments,
        artifacts=tuple(
            _artifact(planned, results[planned.key])
            for planned in planned_of(plan)
            if results[planned.key].status == "ok"
        ),
        weights=plan.weights,
        weight_mode=plan.weight_mode,
        targets=tuple(sorted(target.name for target in plan.targets)),
        custom_ops=plan.custom_ops,
        partition=plan.partition,
        torch=plan.torch,
    )


def _artifact(planned: PlannedAction, result: ActionResult) -> Artifact:
    assert result.requires is not None  # a success states what it needs
    return Artifact(
        fragment=planned.fragment,
        target=planned.action.target.name,
        action=planned.key,
        outputs=result.outputs,
        requires=result.requires,
    )


def verify_manifest(cache: Cache, plan: PlanRecord, manifest: Manifest) -> str:
    """Attaches the plan's golden vectors and replays them through what was compiled, where this host can run it.

    Returns:
        Why nothing was replayed, or an empty string.

    Raises:
        VerificationError: what was compiled does not give what eager gives; names the first fragment that differs. Or
            golden vectors were due, and the plan has none.
    """
    if plan.golden is None:
        if plan.weight_mode == "store":
            raise VerificationError(
                "a build is released when it gives what eager gives, and whoever submitted it went away before that "
                "was recorded",
                hint="submit it again: everything is compiled",
            )
        return "golden vectors are not recorded: the model's weights are not kept"
    verification = decode(cache.blobs.get(plan.golden), Verification)
    digest = manifest.digest()
    attach_verification(cache, digest, verification)
    if not runnable(manifest):
        return "golden vectors were not replayed: this machine can run none of the targets"
    from spyre_build.verify import replay_golden

    replay = replay_golden(cache, digest, manifest, verification)
    if replay.findings:
        where = f"; the first fragment that differs is {replay.fragment}" if replay.fragment else ""
        raise VerificationError(
            f"what was compiled does not give what eager gives: {replay.findings[0]}{where}",
            fragment=replay.fragment,
            hint="nothing was released; `spyre-build verify MANIFEST --device eager` tells which side is wrong",
        )
    return ""


def runnable(manifest: Manifest) -> bool:
    """Whether this host can run one whole target of the model."""
    from spyre_runtime.host import lacking

    for target in manifest.targets:
        mine = [artifact for artifact in manifest.artifacts if artifact.target == target]
        if len(mine) == len(manifest.fragments) and all(lacking(artifact.requires) is None for artifact in mine):
            return True
    return False


def release(cache: Cache, plan: PlanRecord, digest: Digest) -> str:
    """Tags a manifest as the plan says; gives the label, or the model's name where no release was asked for.

    Raises:
        ReferenceError_: the version stands for another manifest.
    """
    if plan.release is None:
        return plan.name
    name, version = plan.release
    version = version or next_version(cache, name, digest)
    cache.refs.tag(name, version, digest)
    return f"{name}:{version}"


def next_version(cache: Cache, name: str, digest: Digest) -> str:
    """The version of this manifest under this name, or the next whole number."""
    entries = cache.refs.releases(name)
    for entry in entries:
        if entry.manifest == digest:
            return entry.version
    numbers = [int(entry.version) for entry in entries if entry.version.isdecimal()]
    return str(max(numbers, default=0) + 1)


def failure_words(cache: Cache, planned: PlannedAction, result: ActionResult) -> dict[str, Any]:
    """A failed fragment in the user's words: operators with the lines of the model they come from."""
    failure = result.failure
    assert failure is not None  # a failed result says why
    origins = _origins(cache, planned.action.fragment)
    nodes = []
    for index in failure.nodes:
        if 0 <= index < len(origins):
            origin = origins[index]
            place = " at " + origin.source if origin.source else ""
            where = f" ({origin.module})" if origin.module else ""
            nodes.append(f"{origin.op}{place}{where}")
    return {
        "fragment": str(planned.action.fragment),
        "target": planned.action.target.name,
        "kind": failure.kind,
        "error": failure.message,
        "nodes": nodes or list(failure.ops),
        "action": planned.key,
    }


def _origins(cache: Cache, fragment: Digest) -> tuple[Any, ...]:
    for said in cache.statements.list(fragment, DESCRIPTION_TYPE):
        try:
            return decode(cache.blobs.get(said.blob), Description).origins
        except (BlobNotFoundError, InvalidRecordError):
            continue
    return ()
