"""What is in a precompiled model, from its manifest and the fragments it names."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from spyre_build.errors import RefError, UsageError
from spyre_build.spelling import shown_spec
from spyre_cache.codec import decode
from spyre_cache.errors import BlobNotFoundError, ReferenceError_
from spyre_cache.objects.fragment import Fragment
from spyre_cache.objects.manifest import Manifest

if TYPE_CHECKING:
    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest
    from spyre_cache.objects.fragment import ValueSpec
    from spyre_cache.objects.program import Argument, Program, WeightEntry

_REF = re.compile(
    r"blake3:[0-9a-f]{6,64}|(?!blake3:)[a-z0-9][a-z0-9._-]{0,127}([:@][A-Za-z0-9][A-Za-z0-9._+-]{0,127})?"
)
DTYPE_BYTES = {"complex128": 16, "float64": 8, "int64": 8, "uint64": 8, "complex64": 8}
DTYPE_BYTES |= dict.fromkeys(("float32", "int32", "uint32"), 4) | dict.fromkeys(("float16", "bfloat16", "int16"), 2)


def read_manifest(cache: Cache, ref: str) -> tuple[Digest, Manifest]:
    """The manifest that a REF names.

    Raises:
        RefError: the REF names none.
        UsageError: it is malformed or ambiguous.
        BlobNotFoundError: it is not in the cache.
        InvalidRecordError: its bytes are not a manifest this version knows.
    """
    digest = resolve(cache, ref)
    return digest, decode(cache.blobs.get(digest), Manifest)


def resolve(cache: Cache, ref: str) -> Digest:
    """The manifest that a REF names.

    Raises:
        RefError: the REF is well-formed, but nothing has that name here.
        UsageError: it is malformed, or begins the digests of several manifests.
    """
    try:
        return cache.refs.resolve(ref)
    except ReferenceError_ as error:
        several = sum(d.hash.startswith(ref.removeprefix("blake3:")) for d in cache.refs.manifests()) > 1
        if _REF.fullmatch(ref) and not several:
            raise RefError(str(error)) from None
        raise UsageError(
            str(error), hint="a REF is name:version, name@channel, or blake3:… (six digits or more)"
        ) from None


def describe(cache: Cache, ref: str) -> dict[str, Any]:
    """Entries, fragments, artifacts and weights of a model as one JSON object."""
    digest, manifest = read_manifest(cache, ref)
    calls = Counter(step.fragment for program in manifest.programs for step in program.steps)
    return {
        "manifest": str(digest),
        "torch": manifest.torch,
        "targets": list(manifest.targets),
        "partition": manifest.partition,
        "weight_mode": manifest.weight_mode,
        "custom_ops": list(manifest.custom_ops),
        "entries": [_entry(program) for program in manifest.programs],
        "fragments": [_fragment(cache, manifest, i, calls[i]) for i in range(len(manifest.fragments))],
        "weights": _weights(manifest.weights),
        "statements": [
            {"type": said.predicate_type, "digest": str(said.blob)} for said in cache.statements.list(digest)
        ],
    }


def _entry(program: Program) -> dict[str, Any]:
    fragments = [step.fragment for step in program.steps]
    return {
        "name": program.name,
        "bucket": dict(program.bucket),
        "capture": program.capture,
        "calls": len(fragments),
        "unique": len(set(fragments)),
        "arguments": [{"path": a.path, "label": a.label, "spec": _argument(program, a)} for a in program.arguments],
        "state": [slot.name for slot in program.slots if slot.kind == "state"],
        "symbols": [
            {"name": s.symbol.name, "min": s.symbol.min, "max": s.symbol.max, "slot": s.slot, "dim": s.dim}
            for s in program.symbols
        ],
        "guards": [guard.text for guard in program.guards],
    }


def slot_spec(program: Program, index: int | None) -> ValueSpec | None:
    """What a slot holds; None for no slot, and for one that a malformed program does not have."""
    return program.slots[index].spec if index is not None and 0 <= index < len(program.slots) else None


def _argument(program: Program, argument: Argument) -> str:
    if argument.value is not None:
        return "constant"
    spec = argument.unused if argument.slot is None else slot_spec(program, argument.slot)
    return "?" if spec is None else shown_spec(spec)


def _fragment(cache: Cache, manifest: Manifest, index: int, calls: int) -> dict[str, Any]:
    digest = manifest.fragments[index]
    try:
        nodes: int | None = len(decode(cache.blobs.get(digest), Fragment).graph.nodes)
    except BlobNotFoundError:
        nodes = None
    return {
        "fragment": str(digest),
        "calls": calls,
        "nodes": nodes,
        "bytes": digest.size,
        "artifacts": [
            {
                "target": artifact.target,
                "action": artifact.action,
                "bytes": sum(output.digest.size for output in artifact.outputs),
                "requires": {
                    "arch": artifact.requires.arch,
                    "features": list(artifact.requires.features),
                    "torch_abi": artifact.requires.torch_abi,
                    "device": artifact.requires.device,
                },
                "outputs": [{"name": o.name, "digest": str(o.digest)} for o in artifact.outputs],
            }
            for artifact in manifest.artifacts
            if artifact.fragment == index
        ],
    }


def weight_bytes(entry: WeightEntry) -> int:
    """Bytes that a weight takes in memory."""
    if entry.digest is not None:
        return entry.digest.size
    return math.prod(d for d in entry.shape if isinstance(d, int)) * DTYPE_BYTES.get(entry.dtype, 1)


def _weights(weights: tuple[WeightEntry, ...]) -> dict[str, Any]:
    return {
        "count": len(weights),
        "stored": sum(entry.digest is not None for entry in weights),
        "bytes": sum(map(weight_bytes, weights)),
        "tensors": [
            {
                "name": entry.name,
                "aliases": list(entry.aliases),
                "kind": entry.kind,
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "digest": None if entry.digest is None else str(entry.digest),
            }
            for entry in weights
        ],
    }
