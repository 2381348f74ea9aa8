"""Odd models equal eager: interpreted all of them, compiled a chosen third (all with SPYRE_BUILD_ALL_ODD=1)."""

import os

import odd_arithmetic
import odd_operators
import odd_published
import odd_state
import odd_structure
import odd_values
import pytest
from harness import captured, warm
from odd import CASES, COMPILED, differences, eager, make, run, wider

import spyre_build
from spyre_build.errors import BuildError
from spyre_runtime.errors import ArgumentError

HOMES = (
    odd_arithmetic,
    odd_published,
    odd_values,
    odd_state,
    odd_structure,
    odd_operators,
)  # importing them is what fills CASES
REFUSED = sorted(name for name in CASES if make(name).refused)
PLAYED = sorted(set(CASES) - set(REFUSED))
THROUGH_COMPILER = PLAYED if os.environ.get("SPYRE_BUILD_ALL_ODD") else sorted(COMPILED - set(REFUSED))


def check(name, load):
    """One loaded copy through all calls, bad ones in between, and another copy where there is state."""
    odd, fresh = make(name), make(name)
    expected, reference = eager(fresh), wider(make(name))
    model = load(odd)
    for bad in odd.bad:
        with pytest.raises(ArgumentError):
            model.entry(bad.entry)(*bad.args, **bad.kwargs)
    assert differences(run(model.entry, odd), expected, reference) == []
    if odd.stateful:
        assert differences(run(load(odd).entry, odd), expected, reference) == []
    if odd.decoy is not None:
        assert differences(eager(odd, odd.decoy), expected, reference), "the comparison must notice a wrong model"


@pytest.mark.xdist_group("models-interpreted")
@pytest.mark.parametrize("name", PLAYED)
def test_odd_model_interpreted_equals_eager(name, shared_cache):
    digest = captured(shared_cache, make(name).spec())
    check(name, lambda odd: spyre_build.load(digest, device="eager", cache=shared_cache, types=odd.types))


@pytest.fixture(scope="module")
def warmed(shared_cache):
    warm(shared_cache, (make(name).spec() for name in THROUGH_COMPILER))
    return shared_cache


@pytest.mark.xdist_group("models-compiled")
@pytest.mark.parametrize("name", THROUGH_COMPILER)
def test_odd_model_compiled_equals_eager(name, warmed):
    build = spyre_build.submit(make(name).spec(), cache=warmed, jobs=1)
    assert build.status == "ok", build.failures
    assert build.actions["compiled"] == 0
    check(name, lambda odd: spyre_build.load(build.manifest, device="cpu", cache=warmed, types=odd.types))


@pytest.mark.xdist_group("models-interpreted")
@pytest.mark.parametrize("name", REFUSED)
def test_odd_model_that_cannot_be_right_is_refused_with_its_reason(name, shared_cache):
    odd = make(name)
    with pytest.raises(BuildError, match=odd.refused):
        captured(shared_cache, odd.spec())
