"""Policy `build`: compiles what a stored model lacks for this host, from its fragments alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from spyre_build.doctor import cannot_run
from spyre_build.errors import CompilationError, MissingPieceError, TargetError
from spyre_build.events import Events, NullEvents
from spyre_cache.errors import BlobNotFoundError
from spyre_cache.objects.action import Action, ActionResult
from spyre_cache.objects.manifest import Artifact, Manifest
from spyre_cache.objects.target import TARGETS, Target

if TYPE_CHECKING:
    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest


def complete(
    cache: Cache,
    digest: Digest,
    manifest: Manifest,
    *,
    target: str = "",
    jobs: int | None = None,
    imports: tuple[str, ...] = (),
    events: Events | None = None,
) -> Digest:
    """Makes a model whole for one target: what is missing is looked up, else compiled.

    Args:
        cache: where its fragments are, and where results go.
        digest: the manifest's digest.
        manifest: the manifest.
        target: which one; by default the best of the model's that this host runs, else the best that this host runs.
        jobs: parallel compilations; None for one a core.
        imports: modules, or Python files, that define the custom operators the fragments call.
        events: listens.

    Returns:
        The digest of a whole manifest; `digest` itself when no artifact had to be added.

    Raises:
        TargetError: this host runs no target.
        MissingPieceError: a fragment itself is missing.
        CompilationError: a fragment could not be compiled.
    """
    events = events or NullEvents()
    chosen = TARGETS[target] if target in TARGETS else target_for(manifest)
    absent = cache.blobs.missing(manifest.fragments)
    if absent:
        raise MissingPieceError(f"the fragment {min(absent)} is not in the cache, so it cannot be compiled")
    there = {a.fragment: a for a in manifest.artifacts if a.target == chosen.name}
    outputs = [output.digest for artifact in there.values() for output in artifact.outputs]
    gone = cache.blobs.missing(outputs)
    whole = {i for i, artifact in there.items() if not any(output.digest in gone for output in artifact.outputs)}
    lacking = [i for i in range(len(manifest.fragments)) if i not in whole]
    if not lacking:
        return digest
    made = _compile(cache, manifest, lacking, chosen, jobs, imports, events)
    kept = [a for a in manifest.artifacts if (a.fragment, a.target) not in {(m.fragment, m.target) for m in made}]
    artifacts = tuple(sorted((*kept, *made), key=lambda a: (a.fragment, manifest_order(manifest, a.target))))
    targets = manifest.targets if chosen.name in manifest.targets else (*manifest.targets, chosen.name)
    found = cache.put_manifest(replace(manifest, artifacts=artifacts, targets=targets))
    if found != digest:
        _carry_over(cache, digest, found)
    return found


def manifest_order(manifest: Manifest, target: str) -> int:
    """Where a target stands in a manifest; a new one comes last."""
    return manifest.targets.index(target) if target in manifest.targets else len(manifest.targets)


def target_for(manifest: Manifest | None = None) -> Target:
    """The best target that this host runs, one of the model's if any.

    Raises:
        TargetError: there is none.
    """
    here = [t for t in TARGETS.values() if not cannot_run(t)]
    own = [t for t in here if manifest is not None and t.name in manifest.targets]
    if not here:
        raise TargetError("this host runs none of the targets that there are")
    return max(own or here, key=lambda t: len(t.features))


def _compile(
    cache: Cache,
    manifest: Manifest,
    lacking: list[int],
    target: Target,
    jobs: int | None,
    imports: tuple[str, ...],
    events: Events,
) -> list[Artifact]:
    from spyre_build.driving import compile_actions
    from spyre_workers.toolchain import toolchain

    tools = toolchain()
    numbers: dict[str, int] = {}
    todo: dict[str, Action] = {}
    found: dict[int, ActionResult] = {}
    for index in lacking:
        action = Action(fragment=manifest.fragments[index], target=target, toolchain=tools)
        cache.actions.describe(action)
        numbers[action.key()] = index
        hit = cache.actions.get(action.key())
        if hit is not None and hit.status == "ok":
            found[index] = hit
        else:
            todo[action.key()] = action
    events.planned(len(lacking), len(found))
    if todo:
        events.phase("compile")
        for key, result in compile_actions(cache, todo, jobs=jobs, imports=imports, events=events).items():
            if result.status != "ok":
                said = result.failure.message if result.failure is not None else "no reason was given"
                raise CompilationError(f"fragment {todo[key].fragment.short} for {target.name}: {said}")
            found[numbers[key]] = result
    return [_artifact(index, target, result) for index, result in found.items()]


def _artifact(index: int, target: Target, result: ActionResult) -> Artifact:
    assert result.requires is not None
    return Artifact(
        fragment=index, target=target.name, action=result.action, outputs=result.outputs, requires=result.requires
    )


def _carry_over(cache: Cache, old: Digest, new: Digest) -> None:
    """The golden vectors are about the model, so they hold for its other form as well."""
    from spyre_build.statements import attach_verification, verification_of

    try:
        verification = verification_of(cache, old)
    except BlobNotFoundError:
        return
    if verification is not None:
        attach_verification(cache, new, verification)
