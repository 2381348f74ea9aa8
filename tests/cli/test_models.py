"""inspect, run, verify, explain, replay, status, logs and cache over a real compiled model."""

import json
import shutil

import numpy as np
import pytest
import torch
from documents import call as call_node
from documents import tensor
from models import TARGET, eager, open_cache, put_model, tools, weights
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from spyre_build.builds import BuildAction, BuildRecord, find, keep
from spyre_build.cli.main import app
from spyre_cache.objects.action import Action
from spyre_cache.objects.fragment import Fragment, Graph, Input, Output, Ref
from spyre_cache.objects.target import TARGETS
from spyre_workers.compile import compile_action

pytestmark = pytest.mark.xdist_group("cli-models")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A cache with the model `layer:1`."""
    path = tmp_path_factory.mktemp("models") / "cache"
    with open_cache(path) as cache:
        cache.refs.tag("layer", "1", put_model(cache))
    return path


@pytest.fixture
def cache_path(compiled, tmp_path):
    return shutil.copytree(compiled, tmp_path / "cache")


def call(*words, code=0):
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def say(*words, code=0):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    return result.output


def test_inspect_shows_entries_fragments_and_weights(cache_path):
    found = call("inspect", "layer:1", "--cache", cache_path)
    assert [e["name"] for e in found["entries"]] == ["forward"]
    assert found["entries"][0]["arguments"] == [{"path": "args.0", "label": "x", "spec": "float32[2, 64]"}]
    assert found["fragments"][0]["calls"] == 1
    assert found["fragments"][0]["nodes"] == 3
    assert [a["target"] for a in found["fragments"][0]["artifacts"]] == [TARGET]
    assert found["weights"]["bytes"] == 4 * (64 * 64 + 64)
    assert TARGET in say("inspect", "layer", "--cache", cache_path)


@pytest.mark.parametrize("device", ["cpu", "eager"])
def test_run_with_a_file_gives_what_eager_gives(cache_path, tmp_path, device):
    x = torch.randn(2, 64)
    save_file({"args.0": x}, tmp_path / "in.safetensors")
    out = tmp_path / "out.safetensors"
    found = call(
        "run", "layer:1", "--device", device, "--inputs", tmp_path / "in.safetensors", "--outputs", out,
        "--cache", cache_path,
    )  # fmt: skip
    assert found["plain"] == {"out.note": 3}
    assert torch.allclose(load_file(out)["out.hidden"], eager(x, 1e-5), atol=1e-5)


def test_run_npz_by_label_gives_npz(cache_path, tmp_path):
    x = torch.randn(2, 64)
    np.savez(tmp_path / "in.npz", x=x.numpy())
    call("run", "layer:1", "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "o.npz", "--cache", cache_path)
    with np.load(tmp_path / "o.npz") as found:
        assert torch.allclose(torch.from_numpy(found["out.hidden"]), eager(x, 1e-5), atol=1e-5)


def test_run_without_inputs_takes_the_recorded_ones_and_says_so(cache_path):
    found = call("run", "layer:1", "--cache", cache_path)
    assert found["inputs"] == "recorded"
    assert "recorded at submit" in found["notes"][0]
    assert "note: no --inputs" in say("run", "layer:1", "--cache", cache_path)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"args.1": torch.zeros(2, 64)}, "no argument is called 'args.1'"),
        ({}, "args.0 is not in the file"),
        ({"args.0": torch.zeros(2, 64, dtype=torch.float64)}, "x"),
        ({"args.0": torch.zeros(3, 64)}, "x"),
    ],
)
def test_run_with_inputs_that_do_not_fit_names_the_argument(cache_path, tmp_path, tensors, words):
    save_file(tensors, tmp_path / "in.safetensors")
    code = 2 if "args.0" not in tensors else 1
    found = call("run", "layer:1", "--inputs", tmp_path / "in.safetensors", "--cache", cache_path, code=code)
    assert words in found["error"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.safetensors", b"\xff" * 64),
        ("a.safetensors", b""),
        ("a.npz", b"PK\x03\x04 broken"),
        ("a.npz", b"no zip"),
        ("a.txt", b"x"),
    ],
)
def test_run_with_a_broken_file_is_wrong_usage(cache_path, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert name in call("run", "layer:1", "--inputs", tmp_path / name, "--cache", cache_path, code=2)["error"]


def test_run_npz_with_pickled_objects_is_refused(cache_path, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.array([{"a": 1}], dtype=object))
    found = call("run", "layer:1", "--inputs", tmp_path / "in.npz", "--cache", cache_path, code=2)
    assert "plain arrays" in found["error"]


def test_run_with_another_entry_or_device_names_those_there_are(cache_path):
    assert call("run", "layer:1", "--entry", "decode", "--cache", cache_path, code=2)["hint"] == "there are forward"
    assert "eager" in call("run", "layer:1", "--device", "card", "--cache", cache_path, code=2)["error"]


def test_verify_sound_model_says_what_was_checked(cache_path):
    found = call("verify", "layer:1", "--cache", cache_path)
    assert found["ok"]
    assert [c["status"] for c in found["checks"]] == ["ok", "ok", "ok"]
    assert "2 recorded calls" in found["checks"][2]["text"]
    assert call("verify", "layer:1", "--device", "eager", "--cache", cache_path)["ok"]


def test_verify_model_that_differs_from_eager_fails(tmp_path, cache_path):
    with open_cache(cache_path) as cache:
        digest = put_model(cache, golden_eps=0.5)
    found = call("verify", digest, "--cache", cache_path, code=1)
    assert found["checks"][2]["status"] == "failed"
    assert "out.hidden" in found["findings"][0]
    # The compiled fragment does what its graph says; the graph is not what was recorded.
    assert found["fragment"] is None


def test_verify_artifact_of_another_fragment_names_the_fragment(cache_path):
    """A compiler that is silently wrong: the artifact is sound and loads, but computes something else."""
    with open_cache(cache_path) as cache:
        right = cache.manifest(cache.refs.resolve("layer:1"))
        wrong = cache.manifest(put_model(cache, eps=0.25, build_id="build-2"))
        swapped = replace(
            right, artifacts=(replace(right.artifacts[0], outputs=wrong.artifacts[0].outputs),)
        )  # fmt: skip
        digest = cache.put_manifest(swapped)
        from spyre_build.statements import attach_verification, verification_of

        attach_verification(cache, digest, verification_of(cache, cache.refs.resolve("layer:1")))
    found = call("verify", digest, "--cache", cache_path, code=1)
    assert found["fragment"] == str(right.fragments[0])
    assert call("verify", digest, "--device", "eager", "--cache", cache_path)["ok"]


def blob_file(cache_path, digest):
    found = list((cache_path / "blobs").rglob(f"{digest.hash}*"))
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("piece", ["artifact", "weight", "fragment"])
def test_harmed_blob_is_found_by_verify_and_never_run(cache_path, piece, harm):
    with open_cache(cache_path) as cache:
        manifest = cache.manifest(cache.refs.resolve("layer:1"))
    digest = {
        "artifact": manifest.artifacts[0].outputs[0].digest,
        "weight": manifest.weights[0].digest,
        "fragment": manifest.fragments[0],
    }[piece]
    path = blob_file(cache_path, digest)
    data = bytearray(path.read_bytes())
    if harm == "remove":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(data if harm == "flip" else data[: len(data) // 2])
    copy = cache_path.parent / "copy"
    shutil.copytree(cache_path, copy)
    found = call("verify", "layer:1", "--cache", cache_path, code=1)
    assert any(piece in finding and digest.hash in finding for finding in found["findings"])
    if piece != "fragment":
        error = call("run", "layer:1", "--cache", copy, code=3)
        assert (
            digest.short in error["error"]
            or "weight" in error["error"]
            or manifest.fragments[0].short in error["error"]
        )


def test_external_weights_missing_are_skipped_and_given_are_checked(cache_path, tmp_path):
    with open_cache(cache_path) as cache:
        digest = put_model(cache, stored=False, build_id="build-3")
    assert call("verify", digest, "--cache", cache_path)["checks"][2]["status"] == "skipped"
    call("run", digest, "--cache", cache_path, code=1)
    w, b = weights()
    save_file({"w": w, "b": b}, tmp_path / "w.safetensors")
    found = call("verify", digest, "--weights", tmp_path / "w.safetensors", "--cache", cache_path)
    assert found["checks"][2]["status"] == "ok"
    save_file({"w": w, "b": b + 1}, tmp_path / "other.safetensors")
    call("verify", digest, "--weights", tmp_path / "other.safetensors", "--cache", cache_path, code=1)


def test_explain_names_the_epsilon_that_made_a_miss(cache_path):
    with open_cache(cache_path) as cache:
        put_model(cache, eps=1e-6, build_id="build-2")
    found = call("explain", "build-2", "--cache", cache_path)
    (fragment,) = found["fragments"]
    assert fragment["outcome"] == "compiled"
    assert [d["text"] for d in fragment["differences"]] == [
        "layer norm epsilon 1e-05 → 1e-06 in node 1 aten::native_layer_norm"
    ]
    assert "epsilon 1e-05 → 1e-06" in say("explain", "last", "--cache", cache_path)


def test_explain_hit_and_first_build_say_so(cache_path):
    with open_cache(cache_path) as cache:
        put_model(cache, build_id="build-2")
    assert "hit" in say("explain", "build-2", "--cache", cache_path)
    assert "nothing in the cache is like it" in say("explain", "build-1", "--cache", cache_path)


def test_status_and_logs_show_the_build(cache_path):
    assert [b["build"] for b in call("status", "--cache", cache_path)["builds"]] == ["build-1"]
    assert call("status", "last", "--cache", cache_path)["actions"][0]["outcome"] == "compiled"
    logs = call("logs", "build-1", "--cache", cache_path)["logs"]
    assert logs[0]["log"].startswith("action ")
    assert call("logs", "build-1", "ffff", "--cache", cache_path, code=2)["error"].startswith("build build-1 has no")


def test_replay_compiles_the_action_again_to_the_same_bytes(cache_path):
    with open_cache(cache_path) as cache:
        key = cache.manifest(cache.refs.resolve("layer:1")).artifacts[0].action
    found = call("replay", key, "--cache", cache_path)
    assert found["status"] == "ok"
    assert found["action"] == key
    assert "failures: none is kept" in call("replay", "abc", "--cache", cache_path, code=2)["hint"]


def test_cache_commands_list_check_pin_and_collect(cache_path):
    listed = call("cache", "ls", "--cache", cache_path)["manifests"]
    assert listed[0]["releases"] == ["layer:1"]
    assert call("cache", "verify", "--cache", cache_path)["ok"]
    assert call("cache", "pin", "layer:1", "--cache", cache_path)["changed"]
    assert not call("cache", "pin", "layer:1", "--cache", cache_path)["changed"]
    assert call("cache", "unpin", "layer:1", "--cache", cache_path)["changed"]
    assert call("cache", "gc", "--dry-run", "--cache", cache_path)["blobs"] == 0
    assert call("cache", "stats", "--cache", cache_path)["manifests"] == 1
    call("cache", "gc", "--grace", "0", "--cache", cache_path)
    assert call("verify", "layer:1", "--cache", cache_path)["ok"], "a release is a root"


def test_cache_verify_damage_is_a_finding_and_repair_sets_it_aside(cache_path):
    with open_cache(cache_path) as cache:
        manifest = cache.manifest(cache.refs.resolve("layer:1"))
    path = blob_file(cache_path, manifest.weights[0].digest)
    path.chmod(0o644)
    path.write_bytes(bytes(path.stat().st_size))
    found = call("cache", "verify", "--cache", cache_path, code=1)
    assert found["findings"][0]["kind"] == "corrupt"
    call("cache", "verify", "--repair", "--cache", cache_path)
    assert not path.exists()


def test_artifact_gone_strict_names_what_is_near_and_policy_build_makes_it_again(cache_path):
    with open_cache(cache_path) as cache:
        manifest = cache.manifest(cache.refs.resolve("layer:1"))
        put_model(cache, eps=1e-6, build_id="build-2")
        assert cache.blobs.delete(manifest.artifacts[0].outputs[0].digest)
    error = call("run", "layer:1", "--cache", cache_path, code=3)["error"]
    assert manifest.fragments[0].short in error
    assert "layer norm epsilon 1e-06 → 1e-05" in error
    with pytest.warns(RuntimeWarning, match="interpreted"):
        call("run", "layer:1", "--policy", "fetch", "--cache", cache_path)
    found = call("run", "layer:1", "--policy", "build", "--cache", cache_path)
    assert found["manifest"] == str(manifest.digest())
    # Compiled again to the same bytes, so the same manifest is whole again.
    assert call("verify", "layer:1", "--cache", cache_path)["ok"]
    call("run", "layer:1", "--cache", cache_path)


def test_model_without_this_hosts_target_policy_build_adds_it(cache_path, tmp_path):
    with open_cache(cache_path) as cache:
        bare = replace(cache.manifest(cache.refs.resolve("layer:1")), artifacts=(), targets=("cpu/aarch64",))
        digest = cache.put_manifest(bare)
    x = torch.randn(2, 64)
    save_file({"x": x}, tmp_path / "in.safetensors")
    words = ["run", digest, "--inputs", tmp_path / "in.safetensors", "--cache", cache_path]
    assert "cpu/aarch64" in call(*words, code=1)["error"]
    found = call(*words, "--policy", "build", "--outputs", tmp_path / "out.safetensors")
    assert torch.allclose(load_file(tmp_path / "out.safetensors")["out.hidden"], eager(x, 1e-5), atol=1e-5)
    assert found["plain"] == {"out.note": 3}


def test_build_that_was_killed_is_shown_as_died(cache_path):
    with open_cache(cache_path) as cache:
        keep(cache, BuildRecord(id="alive", started=1.0))
        keep(cache, BuildRecord(id="dead", started=2.0))
        with cache.lease("alive"):
            found = {b["build"]: b["status"] for b in call("status", "--cache", cache_path)["builds"]}
    assert found == {"alive": "running", "dead": "died", "build-1": "ok"}
    assert "died" in say("status", "dead", "--cache", cache_path)


def test_replay_of_a_failure_names_the_node_again_and_logs_put_it_first(cache_path):
    spec = tensor(2, 64)
    nodes = tuple(
        call_node(op, Ref(v=i), results=(spec,))
        for i, op in enumerate(("aten::sin.default", "aten::to_sparse.default", "aten::to_dense.default"))
    )
    graph = Graph(inputs=(Input(kind="tensor", spec=spec),), nodes=nodes, outputs=(Output(v=3, spec=spec),))
    fragment = Fragment(graph=graph)
    with open_cache(cache_path) as cache:
        cache.blobs.put(fragment.encoded())
        action = Action(fragment=fragment.digest(), target=TARGETS[TARGET], toolchain=tools())
        cache.actions.describe(action)
        result = compile_action(action, cache.blobs)
        good = find(cache, "build-1").actions[0]
        failed = BuildAction(
            fragment=fragment.digest(), target=TARGET, key=action.key(), outcome="failed",
            error=result.failure.message, log=result.log,
        )  # fmt: skip
        keep(cache, BuildRecord(id="build-2", started=2e9, status="partial", actions=(good, failed)))
    outcomes = [entry["outcome"] for entry in call("logs", "build-2", "--cache", cache_path)["logs"]]
    assert outcomes[0] == "failed"
    found = call("replay", action.key()[:10], "--cache", cache_path, code=1)
    assert found["failure"]["kind"] == "unsupported"
    assert set(found["failure"]["nodes"]) & {1, 2}
    assert any("sparse" in op or "dense" in op for op in found["failure"]["ops"])
    explained = call("explain", "build-2", fragment.digest().hash[:8], "--cache", cache_path)["fragments"][0]
    assert explained["outcome"] == "failed"
    assert explained["error"]
