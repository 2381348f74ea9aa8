"""Is a stored model complete, undamaged, and right? Used by `verify`, and by `submit` on what it just compiled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from blake3 import blake3

from spyre_build.inspection import read_manifest
from spyre_cache.codec import bits_float
from spyre_cache.digest import hash_threads
from spyre_cache.errors import BlobNotFoundError, InvalidRecordError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import torch

    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest
    from spyre_cache.objects.manifest import Manifest
    from spyre_cache.objects.release import GoldenCall, Verification

READ_BYTES = 8 << 20
MAX_FINDINGS = 50


@dataclass(kw_only=True)
class Replay:
    """What came of playing golden vectors.

    Attributes:
        calls: recorded calls that were made.
        findings: what differs from eager, one line each.
        fragment: `blake3:…` of the first fragment whose outputs differ, or empty.
        worst: the largest error e(X) of any output.
    """

    calls: int = 0
    findings: list[str] = field(default_factory=list)
    fragment: str = ""
    worst: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was checked, in words."""

    name: Literal["complete", "blobs", "results"]
    status: Literal["ok", "failed", "skipped"]
    text: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of `verify`."""

    manifest: str
    checks: tuple[Check, ...]
    findings: tuple[str, ...]
    fragment: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; what could not be checked is no fault."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "manifest": self.manifest,
            "ok": self.ok,
            "checks": [{"name": c.name, "status": c.status, "text": c.text} for c in self.checks],
            "findings": list(self.findings),
            "fragment": self.fragment or None,
        }


def verify(cache: Cache, ref: str, *, device: str = "cpu", weights: Path | None = None) -> Report:
    """Checks a model: all its blobs are there, each has the bytes it is named for, and it gives what eager gave.

    Args:
        cache: where the model is.
        ref: which one.
        device: what plays the golden vectors.
        weights: tensors of a model that does not store its own.

    Raises:
        RefError: the REF names nothing.
        SpyreRuntimeError: the model cannot be loaded here, though complete.
    """
    digest, manifest = read_manifest(cache, ref)
    needed = everything_of(cache, digest, manifest)
    absent = cache.blobs.missing(needed)
    findings = [f"{what} {blob} is missing" for blob, what in needed.items() if blob in absent]
    checks = [_check("complete", findings, f"{len(needed)} blobs named", f"{len(findings)} of {len(needed)} missing")]
    damaged = [f"{what} {blob}: {said}" for blob, what, said in damaged_blobs(cache, needed, absent)]
    size = sum(blob.size for blob in needed)
    checks.append(
        _check("blobs", damaged, f"{size} bytes read, each blob is what its name says", f"{len(damaged)} bad")
    )
    findings += damaged
    if findings:
        checks.append(Check(name="results", status="skipped", text="not played, because pieces are missing or damaged"))
        return Report(manifest=str(digest), checks=tuple(checks), findings=tuple(findings))
    replay, check = _results(cache, digest, manifest, device, weights)
    return Report(
        manifest=str(digest),
        checks=(*checks, check),
        findings=tuple(replay.findings),
        fragment=replay.fragment,
    )


def _check(name: Literal["complete", "blobs"], findings: list[str], good: str, bad: str) -> Check:
    return Check(name=name, status="failed" if findings else "ok", text=bad if findings else good)


def everything_of(cache: Cache, digest: Digest, manifest: Manifest) -> dict[Digest, str]:
    """Every blob that a model consists of, with what it is: the manifest, its pieces, and what is said about it."""
    found = {digest: "manifest"} | dict.fromkeys(manifest.fragments, "fragment")
    for artifact in manifest.artifacts:
        found |= {output.digest: f"artifact for {artifact.target}" for output in artifact.outputs}
    found |= {entry.digest: f"weight {entry.name}" for entry in manifest.weights if entry.digest is not None}
    found |= {said.blob: "statement" for said in cache.statements.list(digest)}
    from spyre_build.statements import verification_of

    try:
        verification = verification_of(cache, digest)
    except (BlobNotFoundError, InvalidRecordError):
        verification = None  # the statement itself is among what is checked
    for call in (call for sequence in (verification.sequences if verification else ()) for call in sequence):
        for tensor in (*call.inputs, *call.outputs, *call.references, *call.after):
            found[tensor.digest] = f"golden tensor {tensor.path}"
    return found


def damaged_blobs(
    cache: Cache, blobs: dict[Digest, str], absent: Iterable[Digest] = ()
) -> Iterable[tuple[Digest, str, str]]:
    """Reads every blob whole and yields those whose bytes are not what their name says."""
    skipped = set(absent)
    for blob, what in blobs.items():
        if blob in skipped:
            continue
        hasher = blake3(max_threads=hash_threads(blob.size))
        try:
            # Not `get`: a weight may be larger than memory has room for. Not trusted: the store's memory of an
            # earlier verdict.
            with cache.blobs.open(blob) as reader:
                while block := reader.read(READ_BYTES):
                    hasher.update(block)
        except (BlobNotFoundError, InvalidRecordError) as error:
            yield blob, what, str(error)
            continue
        if hasher.hexdigest() != blob.hash:
            yield blob, what, f"its bytes hash to blake3:{hasher.hexdigest()}"


def _results(
    cache: Cache, digest: Digest, manifest: Manifest, device: str, weights: Path | None
) -> tuple[Replay, Check]:
    from spyre_build.statements import verification_of

    verification = verification_of(cache, digest)
    if verification is None:
        text = "no golden vectors were recorded, because the weights were not there at submit"
        return Replay(), Check(name="results", status="skipped", text=text)
    stored = all(entry.digest is not None for entry in manifest.weights)
    if not stored and weights is None:
        text = "this model does not store its weights; give them with --weights"
        return Replay(), Check(name="results", status="skipped", text=text)
    replay = replay_golden(cache, digest, manifest, verification, device=device, weights=weights)
    if replay.findings:
        where = f"; the first fragment that differs is {replay.fragment}" if replay.fragment else ""
        return replay, Check(name="results", status="failed", text=f"differs from eager on {device}{where}")
    text = f"{replay.calls} recorded calls on {device} agree with eager, largest error {replay.worst:.2g}"
    return replay, Check(name="results", status="ok", text=text)


def replay_golden(
    cache: Cache,
    digest: Digest,
    manifest: Manifest,
    verification: Verification,
    *,
    device: str = "cpu",
    weights: Path | dict[str, torch.Tensor] | None = None,
) -> Replay:
    """Makes every recorded call, each sequence on a freshly loaded copy, and compares with what eager gave.

    Args:
        cache: where the model is; artifacts and fragments must be there, a registered manifest need not.
        digest: the manifest's.
        manifest: the manifest.
        verification: the golden vectors.
        device: `cpu` or `eager`.
        weights: tensors of a model that does not store its own.

    Raises:
        SpyreRuntimeError: the model cannot be loaded, or a recorded call is refused.
    """
    from spyre_build.calling import golden_call
    from spyre_runtime.load import load

    replay = Replay()
    for number, sequence in enumerate(verification.sequences):
        model = load(cache, digest, device=device, weights=weights, plain=True)
        for position, call in enumerate(sequence):
            named, after = golden_call(cache, manifest, model, call)
            place = f"sequence {number}, call {position} of {call.entry}"
            _compare(cache, call, named.tensors, replay, place, after=False)
            _compare(cache, call, after, replay, place, after=True)
            _compare_untouched(cache, call, after, replay, place)
            _compare_plain(call, named.plain, replay, place)
            replay.calls += 1
        if replay.findings:
            break
    if replay.findings and device != "eager":
        from spyre_build.differing import first_differing

        calls = verification.sequences[number]
        replay.fragment = first_differing(cache, manifest, calls, weights=weights) or ""
    del replay.findings[MAX_FINDINGS:]
    return replay


def _compare(
    cache: Cache, call: GoldenCall, actual: dict[str, torch.Tensor], replay: Replay, place: str, *, after: bool
) -> None:
    from spyre_build.golden import golden_tensor, golden_tensors
    from spyre_runtime.correct import compare

    tolerances = {path: bits_float(bits) for path, bits in call.tolerance}
    references = {} if after else golden_tensors(cache, call.references)
    recorded = call.after if after else call.outputs
    what = "argument after the call" if after else "result"
    for tensor in recorded:
        found = actual.get(tensor.path)
        if found is None:
            replay.findings.append(f"{place}: the {what} {tensor.path} is due, but did not come")
            continue
        report = compare(
            found,
            golden_tensor(cache, tensor),
            references.get(tensor.path),
            tolerances=tolerances if not after else None,
            path=tensor.path,
        )
        replay.worst = max(replay.worst, report.worst)
        replay.findings += [f"{place}: {finding}" for finding in report.findings]
    if not after:
        for path in actual.keys() - {tensor.path for tensor in recorded}:
            replay.findings.append(f"{place}: the result {path} came, but eager gave none")


def _compare_untouched(
    cache: Cache, call: GoldenCall, after: dict[str, torch.Tensor], replay: Replay, place: str
) -> None:
    """What eager did not write to must come out as it went in, to the bit."""
    from spyre_build.golden import golden_tensor, tensor_bytes

    written = {tensor.path for tensor in call.after}
    for tensor in call.inputs:
        if tensor.path not in written and tensor_bytes(after[tensor.path]) != tensor_bytes(
            golden_tensor(cache, tensor)
        ):
            replay.findings.append(f"{place}: the argument {tensor.path} was written to, and eager leaves it alone")


def _compare_plain(call: GoldenCall, actual: dict[str, Any], replay: Replay, place: str) -> None:
    from spyre_runtime.plain import from_plain, same, show

    for item in call.plain:
        due = from_plain(item.value)
        if item.path not in actual or not same(due, actual[item.path]):
            came = show(actual[item.path]) if item.path in actual else "nothing"
            replay.findings.append(f"{place}: {item.path} is {show(due)} in eager, but {came} came")
