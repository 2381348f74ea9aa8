"""Small models put into a cache by hand, compiled for real."""

import struct
import time
from functools import lru_cache

import torch
from documents import layer, tensor

from spyre_build.builds import BuildAction, BuildRecord, keep
from spyre_build.golden import put_tensor
from spyre_build.statements import attach_verification
from spyre_cache.cache import Cache
from spyre_cache.objects.action import Action
from spyre_cache.objects.manifest import Artifact, Manifest
from spyre_cache.objects.program import (
    Argument,
    DictTree,
    Leaf,
    Plain,
    Program,
    Slot,
    Step,
    TupleTree,
    WeightEntry,
)
from spyre_cache.objects.release import GoldenCall, GoldenValue, Verification
from spyre_cache.objects.target import TARGETS
from spyre_workers.compile import compile_action
from spyre_workers.toolchain import toolchain

TARGET = "cpu/x86-64-v2"


def weights():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(64, 64, generator=generator) / 8, torch.randn(64, generator=generator)


def eager(x, eps, dtype=torch.float32):
    w, b = (t.to(dtype) for t in weights())
    h = x.to(dtype) @ w
    return torch.native_layer_norm(h, [64], b, b, eps)[0] + h


@lru_cache(maxsize=1)
def tools():
    return toolchain()


def put_model(cache, *, eps=1e-5, golden_eps=None, build_id="build-1", stored=True, record=True):
    """Compiles one layer, stores it as a model `layer:1`, and leaves a build's document.

    `golden_eps` other than `eps` records results that this model does not give.
    """
    fragment = layer(eps)
    cache.blobs.put(fragment.encoded())
    action = Action(fragment=fragment.digest(), target=TARGETS[TARGET], toolchain=tools())
    hit = cache.actions.get(action.key())
    cache.actions.describe(action)
    result = hit or cache.actions.put(compile_action(action, cache.blobs))
    assert result.status == "ok", result.failure
    w, b = weights()
    kept = {name: cache.blobs.put(t.numpy().tobytes(), raw=True) for name, t in (("w", w), ("b", b))}
    manifest = Manifest(
        programs=(program(),),
        fragments=(fragment.digest(),),
        artifacts=(
            Artifact(fragment=0, target=TARGET, action=action.key(), outputs=result.outputs, requires=result.requires),
        ),
        weights=tuple(
            WeightEntry(
                name=name,
                kind="parameter",
                dtype="float32",
                shape=tuple(t.shape),
                stride=t.stride(),
                digest=kept[name] if stored else None,
            )
            for name, t in (("w", w), ("b", b))
        ),
        weight_mode="store" if stored else "external",
        targets=(TARGET,),
        partition="whole",
        torch="2.13.0",
    )
    digest = cache.put_manifest(manifest)
    if record:
        attach_verification(cache, digest, golden(cache, eps if golden_eps is None else golden_eps))
    outcome = "hit" if hit else "compiled"
    entry = BuildAction(fragment=fragment.digest(), target=TARGET, key=action.key(), outcome=outcome, log=result.log)
    keep(
        cache,
        BuildRecord(
            id=build_id, started=time.time(), spec="layer.py:make", name="layer", status="ok", manifest=str(digest),
            actions=(entry,),
        ),
    )  # fmt: skip
    return digest


def program():
    x = tensor(2, 64)
    return Program(
        name="forward",
        parameters=(("x", "POSITIONAL_OR_KEYWORD"),),
        input_args=TupleTree(items=(Leaf(v=0),)),
        input_kwargs=DictTree(keys=(), items=()),
        arguments=(Argument(path="args.0", label="x", slot=0),),
        slots=(
            Slot(kind="input", spec=x),
            Slot(kind="weight", name="w", spec=tensor(64, 64)),
            Slot(kind="weight", name="b", spec=tensor(64)),
            Slot(kind="temp", spec=x),
        ),
        steps=(Step(fragment=0, inputs=(0, 1, 2), outputs=(3,)),),
        output=DictTree(
            keys=(Plain(type="str", v="hidden"), Plain(type="str", v="note")), items=(Leaf(v=3), Plain(type="int", v=3))
        ),
    )


def golden(cache, eps):
    calls = []
    for seed in (1, 2):
        x = torch.randn(2, 64, generator=torch.Generator().manual_seed(seed))
        calls.append(
            GoldenCall(
                entry="forward",
                inputs=(put_tensor(cache, "args.0", x),),
                outputs=(put_tensor(cache, "out.hidden", eager(x, eps)),),
                references=(put_tensor(cache, "out.hidden", eager(x, eps, torch.float64)),),
                plain=(GoldenValue(path="out.note", value=Plain(type="int", v=3)),),
                after=(put_tensor(cache, "args.0", x),),
                tolerance=(("out.hidden", struct.pack(">d", 2e-5).hex()),),
            )
        )
    return Verification(sequences=(tuple(calls),))


def open_cache(path):
    return Cache.open(path)
