"""Models that cannot be built right: each is refused before anything is compiled, with what, where and what to do."""

import pytest
import torch
from factories import Fn, Layer, spec
from torch import nn

import spyre_build
from spyre_build import Entry, ModelSpec
from spyre_build.errors import BuildError, CaptureError, FactoryError, SpecError, TargetError, UsageError

pytestmark = pytest.mark.xdist_group("build-refusals")
X = torch.zeros(4, 8)

FILE = """
import torch
from torch import nn


def raises():
    raise ValueError("checkpoint is gone")


def wrong():
    return {"module": nn.Linear(2, 2)}


def lacks():
    import package_that_nobody_has


def elsewhere():
    return nn.Linear(2, 2).to("privateuseone"), (torch.zeros(1, 2),)


def exits():
    raise SystemExit(3)
"""


@torch.library.custom_op("tests_undeclared::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halve.register_fake
def _(x):
    return torch.empty_like(x)


class Branches(nn.Module):
    def forward(self, x):
        return x + 1 if bool(x.sum() > 0) else x


class Prints(nn.Module):
    def forward(self, x):
        return x * float(x.max())


def refused(given, tmp_path, **more):
    with pytest.raises(BuildError) as caught:
        spyre_build.submit(given, cache=tmp_path / "cache", **more)
    error = caught.value
    assert "\n" not in str(error)
    assert error.hint or len(str(error)) > 40, f"no remedy: {error}"
    return error


@pytest.mark.parametrize(
    ("factory", "kind", "said"),
    [
        ("raises", FactoryError, "checkpoint is gone"),
        ("wrong", SpecError, "dict"),
        ("lacks", FactoryError, "package_that_nobody_has"),
        ("elsewhere", FactoryError, "rivate"),
        ("exits", FactoryError, "3"),
        ("absent", SpecError, "absent"),
    ],
)
def test_factory_with_a_flaw_is_refused_by_name(tmp_path, factory, kind, said):
    (tmp_path / "flawed.py").write_text(FILE)
    error = refused(f"{tmp_path / 'flawed.py'}:{factory}", tmp_path)
    assert isinstance(error, kind), type(error)
    assert said in str(error)


def dropout():
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))


MODELS = {
    "branch on data": (lambda: spec(Branches(), X), CaptureError, "test_refusals.py"),
    "number out of a tensor": (lambda: spec(Prints(), X), BuildError, "test_refusals.py"),
    "training mode": (lambda: ModelSpec(dropout(), {"forward": Entry((X,))}), CaptureError, "1"),
    "functional dropout": (lambda: spec(Fn(lambda _m, x: nn.functional.dropout(x, 0.1)), X), CaptureError, "dropout"),
    "undeclared operator": (lambda: spec(Fn(lambda _m, x: halve(x)), X), CaptureError, "tests_undeclared::halve"),
    "sparse argument": (lambda: spec(nn.Linear(8, 8), X.to_sparse()), BuildError, "sparse"),
    "wrong number of arguments": (lambda: spec(Layer(), X, X), BuildError, "argument"),
    "argument of an unknown class": (lambda: spec(Fn(lambda _m, x, o: x), X, object()), BuildError, "object"),
    "no entry": (lambda: ModelSpec(nn.Linear(8, 8), {}), SpecError, "entry"),
    "unknown method": (lambda: ModelSpec(nn.Linear(8, 8).eval(), {"a": Entry((X,), method="walk")}), BuildError, "walk"),
    "not a module": (lambda: (lambda x: x, (X,)), SpecError, "function"),
    "inconsistent shapes": (lambda: spec(nn.Linear(7, 8), X), CaptureError, "reduction dim"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_model_with_a_flaw_is_refused_by_name(tmp_path, name):
    make, kind, said = MODELS[name]
    with pytest.raises(kind) as caught:
        spyre_build.submit(make(), cache=tmp_path / "cache")
    assert said in str(caught.value), caught.value
    assert "\n" not in str(caught.value)


def test_meta_parameters_under_store_are_refused_with_external_as_the_remedy(tmp_path):
    error = refused(spec(Layer().to("meta"), torch.zeros(2, 16)), tmp_path)
    assert "meta" in str(error)
    assert "external" in error.hint


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"targets": ["cpu/z80"]}, TargetError),
        ({"targets": ["spyre/aiu-32c"]}, TargetError),
        ({"weights": "sometimes"}, UsageError),
        ({"partition": "blocks(max-nodes=0)"}, BuildError),
    ],
)
def test_option_out_of_its_range_is_refused(tmp_path, options, kind):
    assert isinstance(refused(spec(Layer(), torch.zeros(2, 16)), tmp_path, **options), kind)


def test_refused_model_is_left_as_it_was(tmp_path):
    module = nn.Sequential(Layer(), Branches()).eval()
    before = {name: id(tensor) for name, tensor in module.state_dict(keep_vars=True).items()}
    with pytest.raises(CaptureError):
        spyre_build.submit(spec(module, torch.zeros(2, 16)), cache=tmp_path / "cache")
    assert {name: id(tensor) for name, tensor in module.state_dict(keep_vars=True).items()} == before
