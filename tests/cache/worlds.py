"""Small complete contents for caches: actions, results, manifests with everything behind them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spyre_cache.codec import encode
from spyre_cache.objects.action import Action, ActionResult, OutputFile, Requires
from spyre_cache.objects.manifest import Artifact, Manifest
from spyre_cache.objects.program import WeightEntry
from spyre_cache.objects.release import (
    VERIFICATION_TYPE,
    Envelope,
    GoldenCall,
    GoldenTensor,
    Verification,
    statement_bytes,
)
from spyre_cache.objects.target import TARGETS, Toolchain
from tests.cache.store_conformance import noise

if TYPE_CHECKING:
    from spyre_cache import Cache, Digest

TOOLCHAIN = Toolchain(
    backend="test", backend_sources="", torch="2.13.0", torch_git="", torch_sources="", cxx="g++", flags=()
)
REQUIRES = Requires(arch="x86_64", features=(), torch_abi="2.13.0", device="cpu")


def key_of(number: int) -> str:
    return f"{number:064x}"


def flip(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 0x01
    return bytes(changed)


def result(cache: Cache, number: int, content: bytes = b"machine code", builder: str = "") -> ActionResult:
    output = OutputFile(name="model.so", digest=cache.blobs.put(content + b" %d" % number, raw=True))
    return ActionResult(action=key_of(number), status="ok", outputs=(output,), builder=builder)


def action(cache: Cache, number: int) -> Action:
    fragment = cache.blobs.put(b"fragment %d" % number)
    return Action(fragment=fragment, target=TARGETS["cpu/x86-64-v3"], toolchain=TOOLCHAIN)


def model(cache: Cache, number: int, shared: int = 0) -> Digest:
    """A manifest with a fragment and weight of its own, a weight shared with others, a result, and a statement."""
    blobs = cache.blobs
    act = action(cache, number)
    cache.actions.describe(act)
    outputs = (OutputFile(name="model.so", digest=blobs.put(noise(20_000, number), raw=True)),)
    log = blobs.put(b"compiling\n" * 1000 + b"%d" % number)
    cache.actions.put(ActionResult(action=act.key(), status="ok", outputs=outputs, log=log))
    weights = [blobs.put(noise(30_000, 1000 + number), raw=True), blobs.put(noise(30_000, 2000 + shared), raw=True)]
    manifest = Manifest(
        programs=(),
        fragments=(act.fragment,),
        artifacts=(Artifact(fragment=0, target="cpu/x86-64-v3", action=act.key(), outputs=outputs, requires=REQUIRES),),
        weights=tuple(
            WeightEntry(name=f"w{i}", kind="parameter", dtype="float32", shape=(7500,), stride=(1,), digest=digest)
            for i, digest in enumerate(weights)
        ),
        weight_mode="store",
        targets=("cpu/x86-64-v3",),
        partition="",
        torch="2.13.0",
    )
    digest = cache.put_manifest(manifest)
    golden = blobs.put(noise(5000, 3000 + number))
    call = GoldenCall(
        entry="main", inputs=(GoldenTensor(path="args.0", dtype="float32", shape=(1250,), digest=golden),), outputs=()
    )
    said = statement_bytes(digest, VERIFICATION_TYPE, Verification(sequences=((call,),)))
    cache.statements.attach(digest, VERIFICATION_TYPE, blobs.put(encode(Envelope.wrap(said))))
    return digest


def assert_complete(cache: Cache, manifest: Digest) -> None:
    """Everything that `model` put can be read, and is what it says."""
    record = cache.manifest(manifest)
    for fragment in record.fragments:
        cache.blobs.get(fragment)
    for artifact in record.artifacts:
        # A collection without grace may hide a result that is in use for a moment; that costs a compilation at worst.
        patience = time.monotonic() + 5
        while cache.actions.get(artifact.action) is None:
            assert time.monotonic() < patience, "the result is gone"
        for output in artifact.outputs:
            cache.blobs.path(output.digest)
    for weight in record.weights:
        assert weight.digest is not None
        cache.blobs.map(weight.digest)
    (statement,) = cache.statements.list(manifest, VERIFICATION_TYPE)
    cache.blobs.get(statement.blob)
