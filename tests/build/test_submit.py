"""`submit`: what is compiled and what is not, weights given later, and builds of which a part fails."""

import copy

import pytest
import torch
from factories import spec, stack
from safetensors.torch import save_file
from torch import nn

import spyre_build
from spyre_build import Entry, ModelSpec
from spyre_build.errors import MissingPieceError, UsageError
from spyre_cache.cache import Cache
from spyre_cache.errors import ReferenceError_
from spyre_runtime.correct import compare
from spyre_runtime.errors import WeightsError

pytestmark = pytest.mark.xdist_group("build-submit")
X = torch.linspace(-2, 2, 32).reshape(2, 16)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Empty at first: these tests count. They run in order, each after what the ones before it compiled."""
    with Cache.open(tmp_path_factory.mktemp("submit") / "cache") as opened:
        yield opened


def submit(cache, module, **more):
    return spyre_build.submit(spec(module, X), cache=cache, **more)


def check(model, module):
    with torch.no_grad():
        report = compare(model(X.clone()), module(X.clone()))
    assert report.correct, str(report)


@pytest.fixture(scope="module")
def first(cache):
    return submit(cache, stack(40))


def test_forty_layers_are_compiled_once_each_distinct(first, cache):
    assert first.status == "ok"
    assert first.actions["total"] <= 4
    assert first.actions["compiled"] == first.actions["total"]
    assert first.actions["deduplicated"] >= 38
    (entry,) = first.entries
    assert entry["unique"] == first.actions["total"]
    assert entry["calls"] == first.actions["total"] + first.actions["deduplicated"]
    check(spyre_build.load(first, cache=cache), stack(40))


def test_same_model_again_compiles_nothing_and_is_the_same_manifest(first, cache):
    again = submit(cache, stack(40))
    assert again.actions["hit"] == again.actions["total"] == first.actions["total"]
    assert again.actions["compiled"] == 0
    assert again.manifest == first.manifest


def test_fine_tuned_model_shares_all_compiled_code(first, cache):
    tuned = stack(40)
    with torch.no_grad():
        tuned[3].up.weight.add_(0.1)
    build = submit(cache, tuned)
    assert build.actions["hit"] == build.actions["total"]
    assert build.manifest != first.manifest
    check(spyre_build.load(build, cache=cache), tuned)


def test_one_changed_layer_compiles_one_fragment_and_an_audit_finds_the_same_bytes(first, cache):
    build = submit(cache, stack(40, 17, scale=0.5), audit=100)
    assert build.status == "ok"
    assert build.actions["compiled"] == 1
    assert build.actions["hit"] == first.actions["total"]
    check(spyre_build.load(build, cache=cache), stack(40, 17, scale=0.5))


def test_salt_keeps_tenants_apart(cache):
    from spyre_build.plan import choose_targets, make_plan
    from spyre_workers.toolchain import toolchain

    manifest = cache.manifest(submit(cache, stack(2)).manifest)
    mine = make_plan(manifest.fragments, choose_targets(None), toolchain())
    theirs = make_plan(manifest.fragments, choose_targets(None), toolchain(), "tenant")
    assert len(cache.actions.get_many(planned.key for planned in mine)) == len(mine)
    assert not cache.actions.get_many(planned.key for planned in theirs)


# --- weights ---------------------------------------------------------------------------------------------------------


def external(cache):
    """A model without weights, and two sets of weights for it."""
    build = submit(cache, stack(2).to("meta"), weights="external")
    assert build.status == "ok"
    other = stack(2)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    return build, other


def test_external_weights_are_taken_from_a_state_dict_a_file_and_shards(cache, tmp_path):
    build, module = external(cache)
    state = module.state_dict()
    check(spyre_build.load(build, weights=state, cache=cache), module)
    save_file(state, tmp_path / "model.safetensors")
    check(spyre_build.load(build, weights=tmp_path / "model.safetensors", cache=cache), module)
    names, shards = sorted(state), tmp_path / "shards"
    shards.mkdir()
    save_file({name: state[name] for name in names[::2]}, shards / "model-00001-of-00002.safetensors")
    save_file({name: state[name] for name in names[1::2]}, shards / "model-00002-of-00002.safetensors")
    check(spyre_build.load(build, weights=shards, cache=cache), module)


@pytest.mark.parametrize("flaw", ["absent", "one missing", "another shape", "another dtype"])
def test_external_weights_that_do_not_fit_are_refused(cache, flaw):
    build, module = external(cache)
    state = dict(module.state_dict())
    if flaw == "one missing":
        del state["1.up.weight"]
    elif flaw == "another shape":
        state["1.up.weight"] = torch.zeros(24, 17)
    elif flaw == "another dtype":
        state["1.up.weight"] = state["1.up.weight"].double()
    with pytest.raises(WeightsError, match="weight"):
        spyre_build.load(build, weights=None if flaw == "absent" else state, cache=cache)


def test_weights_none_keeps_no_tensor_and_takes_all_at_load(cache):
    build = submit(cache, stack(2), weights="none")
    assert all(entry.digest is None for entry in cache.manifest(build.manifest).weights)
    check(spyre_build.load(build, weights=stack(2).state_dict(), cache=cache), stack(2))


def test_tied_weights_change_together(cache):
    def tied():
        module = stack(2)
        module.append(nn.Linear(4, 16, bias=False))
        module.append(nn.Linear(16, 4, bias=False))
        module.append(nn.Linear(4, 16, bias=False))
        module[-1].weight = module[-3].weight
        return module.eval()

    build = submit(cache, tied(), weights="external")
    (entry,) = [entry for entry in cache.manifest(build.manifest).weights if entry.aliases]
    assert len(entry.aliases) == 1
    changed = tied()
    with torch.no_grad():
        changed[-1].weight.mul_(3)
    state = changed.state_dict()
    check(spyre_build.load(build, weights=state, cache=cache), changed)
    # Files that keep a tie once name either of the two.
    for name in (entry.name, *entry.aliases):
        check(spyre_build.load(build, weights={k: v for k, v in state.items() if k != name}, cache=cache), changed)


# --- parts that fail -------------------------------------------------------------------------------------------------

FRAGILE = """
import os

import torch


@torch.library.custom_op("fragile::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    if "FRAGILE_HERE" not in os.environ:
        raise RuntimeError("no shape can be told on this machine")
    return torch.empty_like(x)
"""


class Middle(nn.Module):
    """A block that a compiling process cannot know the shape of: its environment is not the caller's."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(16, 16)

    def forward(self, x):
        return torch.relu(torch.ops.fragile.twice(self.lin(x)) + x) - 1


def test_fragment_that_cannot_be_compiled_makes_the_build_partial_and_keeps_the_others(
    first, cache, tmp_path, monkeypatch
):
    (tmp_path / "fragile_operators.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FRAGILE_HERE", "1")
    module = stack(4)
    blocks = [*module[:3], Middle(), Middle(), *module[3:]]
    model = ModelSpec(nn.Sequential(*blocks).eval(), {"forward": Entry((X,))}, custom_ops=["fragile_operators"])
    build = spyre_build.submit(model, cache=cache, tag="partial:1")
    assert build.status == "partial"
    assert build.actions["failed"] == len(build.failures) >= 1
    assert build.actions["hit"] >= 1
    assert build.actions["total"] == sum(build.actions[name] for name in ("hit", "compiled", "waited", "failed"))
    assert "fragile" in str(build.failures), build.failures
    with pytest.raises(MissingPieceError):
        spyre_build.load(build, cache=cache)
    assert not any(release.name == "partial" for release in cache.refs.releases())
    with pytest.warns(RuntimeWarning, match="interpreted"):
        loaded = spyre_build.load(build, cache=cache, policy="fetch")
    check(loaded, copy.deepcopy(model.module))


def test_cache_verifies_after_all_this(first, cache):
    assert [str(finding) for finding in cache.verify() if finding.is_error] == []


@pytest.mark.parametrize("tag", ["a:", ":", ""])
def test_tag_without_a_name_or_a_version_is_refused_before_anything_runs(tmp_path, tag):
    with pytest.raises((UsageError, ReferenceError_)):
        spyre_build.submit("nosuch.py:build", cache=tmp_path / "cache", tag=tag)
    assert not (tmp_path / "cache").exists()
