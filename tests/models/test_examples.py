"""The examples are built as users build them, loaded, and equal eager."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import warm

import spyre_build
from spyre_runtime.correct import compare

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("models-examples")]
FACTORIES = [
    "mlp:build", "granite:tiny", "llama:build", "bert:build", "resnet:build", "t5:build", "moe:build", "embeddings:build",
]  # fmt: skip
FRAGMENTS = {"mlp": 1, "granite": 4, "llama": 6, "bert": 8, "resnet": 10, "t5": 10, "moe": 2, "embeddings": 4}
"""More would mean that equal layers are no longer found to be equal."""


def made(words):
    name, _, factory = words.partition(":")
    return getattr(importlib.import_module(name), factory)()


@pytest.fixture(scope="module")
def warmed(shared_cache):
    warm(shared_cache, (made(words) for words in FACTORIES))
    return shared_cache


@pytest.fixture(scope="module")
def built(warmed):
    found = {}

    def build(words):
        if words not in found:
            file, _, factory = words.partition(":")
            found[words] = spyre_build.submit(f"{EXAMPLES / file}.py:{factory}", cache=warmed, jobs=2)
        return found[words]

    return build


@pytest.mark.parametrize("words", FACTORIES)
def test_example_equals_eager_with_few_fragments(words, built, warmed):
    build = built(words)
    assert build.status == "ok", build.failures
    assert build.actions["total"] <= FRAGMENTS[words.partition(":")[0]]
    model, spec = spyre_build.load(build, cache=warmed), made(words)
    for name, entry in spec.entries.items():
        with torch.no_grad():
            expected = getattr(spec.module, entry.method)(*entry.args, **entry.kwargs)
        report = compare(model.entry(name)(*entry.args, **entry.kwargs), expected)
        assert report.correct, str(report)


def test_llama_compiled_generates_the_tokens_that_eager_does(built, warmed):
    import llama

    build, eager = built("llama:build"), llama.make()
    for prompt in ([11, 42, 7, 300, 5], [1], list(range(16))):
        model = spyre_build.load(build, cache=warmed)
        eager.reset()
        tokens = llama.generate(model.entry("prefill"), model.entry("decode"), prompt, 12)
        assert tokens == llama.generate(eager, eager, prompt, 12)
        assert len(set(tokens)) > 1


def test_llama_prompt_that_does_not_fit_is_refused():
    import llama

    for prompt, new in (([], 3), ([1] * 17, 3), ([1], 64)):
        with pytest.raises(ValueError, match="tokens"):
            llama.generate(llama.make(), llama.make(), prompt, new)


def test_embeddings_compiled_find_the_sentence_that_means_the_same(built, warmed):
    import embeddings

    model = spyre_build.load(built("embeddings:build"), cache=warmed)
    vectors = model(*embeddings.tokenize("How old are you?", "What is your age?", "The train was late again."))
    near = vectors @ vectors.T
    assert torch.allclose(near.diagonal(), torch.ones(3), atol=1e-5)
    assert near[0, 1] > 0.7 > 0.3 > near[0, 2]


def test_granite_of_eight_billion_is_captured_without_its_weights():
    import granite

    from spyre_build.frontend.model import build_model
    from spyre_build.frontend.weightless import parameters_on_meta

    config = granite.GRANITE_3_3_8B | {"num_hidden_layers": 4}
    with parameters_on_meta(enabled=True):
        spec = granite.spec(config, "granite-8b", 128, torch.bfloat16)
    model = build_model(spec)
    assert len(model.pool.fragments) <= 4
    (program,) = model.programs
    names = {slot.name for slot in program.slots if slot.kind == "weight"}
    assert "model.layers.3.mlp.down_proj.weight" in names
    assert "model.embed_tokens.weight" in names
    assert not any(weight.real for weight in model.table.weights() if weight.kind == "parameter")


@pytest.mark.timeout(400)
def test_demo_ends_with_ok_and_hits_when_run_again(warmed, tmp_path):
    words = [sys.executable, "-W", "ignore", str(EXAMPLES / "demo.py"), "--cache", str(warmed.path)]
    first = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert first.returncode == 0, first.stderr + first.stdout
    assert "0 compiled" in first.stdout
    assert "ok after" in first.stdout.splitlines()[-1]
    assert json.loads(first.stdout.split("generated  ")[1].splitlines()[0])
