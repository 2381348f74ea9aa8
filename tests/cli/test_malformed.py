"""Manifests that decode but contradict themselves: commands say so, and nothing is called a defect of ours."""

import json

import pytest
import torch
from models import golden, open_cache, program
from msgspec.structs import replace
from safetensors.torch import save_file
from typer.testing import CliRunner

from spyre_build.cli.main import app
from spyre_build.statements import attach_verification
from spyre_cache.codec import encode
from spyre_cache.objects.manifest import Manifest
from spyre_cache.objects.program import Argument, Leaf, ListTree, Plain, Step, TupleTree, WeightEntry
from spyre_cache.objects.release import VERIFICATION_TYPE, Envelope


def manifest(**changes):
    base = {
        "programs": (program(),), "fragments": (), "artifacts": (), "weights": (), "weight_mode": "store",
        "targets": ("cpu/x86-64-v2",), "partition": "whole", "torch": "2.13.0",
    }  # fmt: skip
    return Manifest(**(base | changes))


def weight(shape):
    return WeightEntry(name="w", kind="parameter", dtype="float32", shape=shape, stride=(1,), digest=None)


MALFORMED = {
    "fragment-index": manifest(),
    "no-programs": manifest(programs=()),
    "slot-index": manifest(programs=(replace(program(), arguments=(Argument(path="args.0", label="x", slot=99),)),)),
    "negative-slot": manifest(programs=(replace(program(), arguments=(Argument(path="args.0", label="x", slot=-1),)),)),
    "leaf-index": manifest(programs=(replace(program(), input_args=TupleTree(items=(Leaf(v=7),))),)),
    "arguments-no-tuple": manifest(programs=(replace(program(), input_args=Plain(type="int", v=3)),)),
    "keywords-no-dict": manifest(programs=(replace(program(), input_kwargs=ListTree(items=(Leaf(v=0),))),)),
    "step-index": manifest(programs=(replace(program(), steps=(Step(fragment=-5, inputs=(9,), outputs=(9,)),)),)),
    "symbolic-weight": manifest(weights=(weight(("s0", 3)),)),
    "negative-weight": manifest(weights=(weight((-4, 3)),)),
    "unknown-target": manifest(targets=("cpu/z80",)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_manifest_is_refused_in_our_words(tmp_path, name):
    path = tmp_path / "cache"
    with open_cache(path) as cache:
        digest = cache.put_manifest(MALFORMED[name])
        attach_verification(cache, digest, golden(cache, 1e-5))
    save_file({"args.0": torch.zeros(2, 64)}, tmp_path / "in.safetensors")
    for words in (
        ["inspect", digest],
        ["run", digest],
        ["run", digest, "--inputs", tmp_path / "in.safetensors"],
        ["run", digest, "--device", "eager"],
        ["verify", digest],
        ["verify", digest, "--device", "eager"],
        ["explain", digest],
        ["cache", "ls"],
    ):
        result = CliRunner().invoke(app, [*map(str, words), "--cache", str(path), "--json"])
        found = json.loads(result.stdout)
        assert "unexpected" not in found.get("error", ""), (words, found)
        if words[0] == "run":
            assert result.exit_code in {1, 2, 3}


@pytest.mark.parametrize(
    "blob", [b"", b"{}", b"\xff" * 40, encode(Envelope.wrap(b"{}")), encode(Envelope.wrap(b"{", "x"))]
)
def test_statement_that_is_none_is_refused_in_our_words(tmp_path, blob):
    path = tmp_path / "cache"
    with open_cache(path) as cache:
        digest = cache.put_manifest(manifest())
        cache.statements.attach(digest, VERIFICATION_TYPE, cache.blobs.put(blob))
    for command in ("run", "verify", "inspect"):
        result = CliRunner().invoke(app, [command, str(digest), "--cache", str(path), "--json"])
        found = json.loads(result.stdout)
        assert "unexpected" not in found.get("error", ""), found


def test_blob_that_is_no_manifest_is_refused(tmp_path):
    path = tmp_path / "cache"
    with open_cache(path) as cache:
        digest = cache.blobs.put(b'{"schema":"manifest/2"}')
        cache.refs.register(digest)
    for command in ("run", "verify", "inspect"):
        result = CliRunner().invoke(app, [command, str(digest), "--cache", str(path), "--json"])
        assert result.exit_code == 1
        assert "not a Manifest this version knows" in json.loads(result.stdout)["error"]
