"""Model cases from a directory outside the repository: each module gives `build()` and what else it knows.

`SPYRE_BUILD_CASES` names the directory. Known are `calls`, `other_calls`, `bad_calls`, `dynamic_shapes`, `decoys`,
`OUTCOME` (`match`, `error`, `match-or-error`), `STATEFUL`, `ATOL` and `RTOL`.
"""

import copy
import importlib.util
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from harness import warm
from odd import clone, clone_result

import spyre_build
from spyre_build import Entry, ModelSpec
from spyre_build.errors import BuildError
from spyre_build.frontend.structure import Leaves
from spyre_cache.errors import CacheError
from spyre_runtime.correct import compare
from spyre_runtime.errors import SpyreRuntimeError

DIRECTORY = Path(os.environ.get("SPYRE_BUILD_CASES") or Path(__file__).parents[3] / "shared" / "cases")
OURS = (BuildError, SpyreRuntimeError, CacheError)


def _is_case(path):
    return "\ndef build(" in path.read_text()


CASES = sorted(path for path in DIRECTORY.glob("*.py") if _is_case(path)) if DIRECTORY.is_dir() else []
pytestmark = [
    pytest.mark.skipif(not CASES, reason="no directory of cases: set SPYRE_BUILD_CASES to one"),
    pytest.mark.xdist_group("models-handed"),
]


ARCHITECTURES = DIRECTORY / "architectures.py"


def load_module(path):
    spec = importlib.util.spec_from_file_location(f"handed_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dynamo looks the functions of a model up by their module's name
    spec.loader.exec_module(module)
    return module


def spec_of(case):
    module, args, kwargs = case.build()
    shapes = case.dynamic_shapes() if hasattr(case, "dynamic_shapes") else None
    return ModelSpec(module, {"forward": Entry(tuple(args), kwargs, dynamic_shapes=shapes)})


def calls_of(case):
    if hasattr(case, "calls"):
        return case.calls()
    _, args, kwargs = case.build()
    return [(args, kwargs)]


def play(function, calls):
    out = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for given in calls:
            args, kwargs = clone((tuple(given[0]), dict(given[1])))
            out.append((clone_result(function(*args, **kwargs)), args, kwargs))
    return out


def differ(actual, expected, case):
    """What differs: containers, types, dtypes, values within the case's tolerance."""
    mine, theirs = Leaves(), Leaves()
    if mine.tree(actual, "") != theirs.tree(expected, ""):
        return "another structure or another plain value"
    for place, a, b in zip(theirs.paths, mine.tensors, theirs.tensors, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{place}: {a.dtype} {list(a.shape)} instead of {b.dtype} {list(b.shape)}"
        exact = not (b.is_floating_point() or b.is_complex())
        tolerance = {"atol": 0, "rtol": 0} if exact else {"atol": case.ATOL, "rtol": case.RTOL}
        if not torch.allclose(a, b, equal_nan=True, **tolerance):
            return f"{place}: values differ"
    return ""


def eager_of(case, module=None):
    return (case.build()[0] if module is None else module).eval()


def built(case, cache):
    """Submits, loads and calls; or the error of ours that one of these ended in."""
    try:
        build = spyre_build.submit(spec_of(case), cache=cache, jobs=1)
        assert build.status == "ok", build.failures
        model = spyre_build.load(build.manifest, cache=cache)
        return build, model, play(model, calls_of(case)), None
    except OURS as error:
        return None, None, None, error


@pytest.fixture(scope="module")
def warmed(shared_cache):
    warm(shared_cache, (spec_of(load_module(path)) for path in CASES))
    return shared_cache


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_handed_case_has_its_outcome(path, warmed):
    case = load_module(path)
    build, model, actual, error = built(case, warmed)
    if error is not None:
        assert case.OUTCOME in {"error", "match-or-error"}, error
        assert len(str(error)) > 20
        return
    assert case.OUTCOME != "error", "an error is due"
    expected = play(eager_of(case), calls_of(case))
    for mine, theirs in zip(actual, expected, strict=True):
        assert differ(mine, theirs, case) == ""
    check_calls(case, model)
    check_decoys(case)
    if getattr(case, "STATEFUL", False):
        again = play(spyre_build.load(build.manifest, cache=warmed), calls_of(case))
        assert all(differ(mine, theirs, case) == "" for mine, theirs in zip(again, expected, strict=True))


def check_calls(case, model):
    """Unusual calls are right or refused; bad ones refused."""
    for args, kwargs in case.other_calls() if hasattr(case, "other_calls") else ():
        try:
            (mine,) = play(model, [(args, kwargs)])
        except OURS:
            continue
        (theirs,) = play(eager_of(case), [(args, kwargs)])
        assert differ(mine, theirs, case) == ""
    for args, kwargs in case.bad_calls() if hasattr(case, "bad_calls") else ():
        with pytest.raises(OURS):
            model(*copy.copy(args), **kwargs)


def check_decoys(case):
    """A plausible wrong model must differ somewhere, or this comparison is worth nothing."""
    _, args, kwargs = case.build()
    (expected,) = play(eager_of(case), [(args, kwargs)])
    for name, (decoy, *given) in (case.decoys() if hasattr(case, "decoys") else {}).items():
        (wrong,) = play(decoy.eval(), [tuple(given)])
        assert differ(wrong, expected, case), name


def _architectures():
    return sorted(load_module(ARCHITECTURES).ARCHITECTURES) if ARCHITECTURES.is_file() else []


@pytest.fixture(scope="module")
def architectures(shared_cache):
    """What makes each, with all their fragments compiled in one go."""
    families = load_module(ARCHITECTURES).ARCHITECTURES

    def spec(name):
        torch.manual_seed(0)
        module, kwargs = families[name]()
        return ModelSpec(module, {"forward": Entry((), kwargs)})

    warm(shared_cache, (spec(name) for name in sorted(families)))
    return spec


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", _architectures())
def test_handed_architecture_equals_eager(name, architectures, shared_cache):
    spec = architectures(name)
    build = spyre_build.submit(spec, cache=shared_cache, jobs=1)
    assert (build.status, build.actions["compiled"]) == ("ok", 0)
    model = spyre_build.load(build)
    kwargs = dict(spec.entries["forward"].kwargs)
    for _ in range(2):
        with torch.no_grad():
            expected = spec.module(**clone(kwargs))
        assert compare(model(**clone(kwargs)), expected).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", _architectures())
def test_handed_architecture_submitted_and_compiled_has_the_same_keys(name):
    from doors import keys_of_compile, keys_of_submit

    def make():
        torch.manual_seed(0)
        return load_module(ARCHITECTURES).ARCHITECTURES[name]()

    assert keys_of_submit(make) == keys_of_compile(make)
