"""The table of claims, verb by verb, and all of it at once."""

from __future__ import annotations

import itertools
import typing
import uuid

import pytest
from claims_machine import ClaimsMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from spyre_cache.claims import Claim, Crash
from spyre_cache.claims_disk import DiskClaims
from spyre_cache.claims_redis import RedisClaims
from spyre_cache.root import Root
from spyre_workers import states
from spyre_workers.states import LEGAL, Move, Refusal

KEY = "a" * 64


def made(phase, crashes=()):
    """A claim in a phase, and the tokens that live."""
    base = {"action": KEY, "build": "b0", "worker": "w0", "starts": 1, "crashes": tuple(crashes)}
    return {
        "absent": (None, set()),
        "queued": (Claim(state="queued", owner="build-0", **base), {"build-0"}),
        "orphaned": (Claim(state="queued", owner="build-0", **base), set()),
        "running": (Claim(state="running", owner="run-0", **base), {"run-0"}),
        "hedged": (Claim(state="running", owner="run-0", hedge="run-1", **base), {"run-0", "run-1"}),
        "fallen": (Claim(state="running", owner="run-0", hedge="run-1", **base), set()),
        "crashed": (Claim(state="crashed", owner="", **base), set()),
        "quarantined": (Claim(state="quarantined", owner="", **base), set()),
    }[phase]


def said(verb, claim, alive, *, token):
    calls = {
        "queue": lambda: states.queue(claim, alive, key=KEY, token=token, build="b1", now=5.0),
        "start": lambda: states.start(claim, alive, key=KEY, token=token, build="b1", worker="w1", now=5.0),
        "hedge": lambda: states.hedge(claim, alive, token=token, now=99.0, age=1.0),
        "resume": lambda: states.resume(
            claim, alive, key=KEY, old=token, token="run-9", build="b1", worker="w1", now=5.0
        ),
        "finish": lambda: states.finish(claim, alive, token=token),
        "crash": lambda: states.crash(claim, alive, token=token, worker="w1", why="x", now=5.0),
        "release": lambda: states.release(claim, alive, token=token, now=5.0),
        "cancel": lambda: states.cancel(claim, alive, token=token, now=5.0),
        "clear": lambda: states.clear(claim, alive),
    }
    return calls[verb]()


PHASES = typing.get_args(states.Phase)
VERBS = typing.get_args(states.Verb)


@pytest.mark.parametrize(("phase", "verb"), list(itertools.product(PHASES, VERBS)))
def test_verb_moves_only_as_the_table_says(phase, verb):
    for token, crashes in itertools.product(["build-0", "run-0", "run-1", "other"], [0, 2, 5]):
        claim, alive = made(phase, [Crash(worker="w", why="y", lost=crashes > 2)] * crashes)
        answer = said(verb, claim, alive, token=token)
        if isinstance(answer, Move):
            after = states.phase(answer.new, {*alive, token, "run-9"})
            assert after in LEGAL.get((phase, verb), ()), (phase, verb, after)
        else:
            assert answer.text
            assert answer.why in typing.get_args(states.Why)


@pytest.mark.parametrize(("phase", "verb"), sorted(LEGAL))
def test_every_entry_of_the_table_can_happen(phase, verb):
    seen = set()
    for token, crashes in itertools.product(["build-0", "run-0", "run-1", "other"], [0, 2, 4, 5]):
        claim, alive = made(phase, [Crash(worker="w", why="y", lost=crashes > 2)] * crashes)
        if (phase, verb) == ("running", "resume"):
            alive = {"run-1"}
            claim = Claim(action=KEY, state="running", owner="run-0", hedge="run-1", build="b0")
        answer = said(verb, claim, alive, token=token)
        if isinstance(answer, Move):
            seen.add(states.phase(answer.new, {*alive, token, "run-9"}))
    assert seen
    assert seen <= set(LEGAL[phase, verb])


def test_living_build_that_has_it_queued_is_on_whose_behalf_it_runs():
    claim, alive = made("queued")
    assert said("start", claim, alive, token="run-5").new.build == "b0"
    claim, alive = made("orphaned")
    assert said("start", claim, alive, token="run-5").new.build == "b1"


def test_run_that_fell_silent_is_a_crash_of_its_worker():
    claim, alive = made("fallen")
    after = said("start", claim, alive, token="run-5").new
    assert [c.worker for c in after.crashes] == ["w0", "a second run"]
    assert all(c.lost for c in after.crashes)
    assert after.starts == 2


def test_hedge_whose_first_run_died_is_the_run():
    claim, _ = made("hedged")
    assert states.phase(claim, {"run-1"}) == "running"
    after = states.release(claim, {"run-1"}, token="run-1", now=5.0)
    assert isinstance(after, Move)
    answer = states.hedge(claim, {"run-1"}, token="run-2", now=99.0, age=1.0)
    assert (answer.new.owner, answer.new.hedge) == ("run-1", "run-2")


@pytest.mark.parametrize(("seen", "lost", "state"), [(1, 0, "crashed"), (2, 0, "quarantined"), (0, 4, "crashed")])
def test_third_crash_quarantines_and_lost_workers_count_by_half(seen, lost, state):
    crashes = [Crash(worker="w1", why="SIGSEGV")] * seen + [Crash(worker="w2", why="fell silent", lost=True)] * lost
    claim, alive = made("running", crashes)
    after = said("crash", claim, alive, token="run-0").new
    assert after.state == state
    if state == "quarantined":
        refusal = said("queue", after, set(), token="build-9")
        assert isinstance(refusal, Refusal)
        assert "w1: SIGSEGV" in refusal.text


def test_hedge_is_refused_until_the_run_is_overdue():
    claim, alive = made("running")
    assert states.hedge(claim, alive, token="t", now=10.0, age=60.0).why == "early"
    assert states.hedge_age([1.0] * 4) == float("inf")
    assert states.hedge_age([1.0] * 10) == states.HEDGE_FLOOR_SECONDS
    assert states.hedge_age([100.0] * 20) == 200.0


@pytest.mark.parametrize("where", ["disk", "redis"])
def test_claims_hold_whatever_builds_and_workers_do(where, tmp_path, redis_url):
    claims = (
        DiskClaims(Root(tmp_path / "c")) if where == "disk" else RedisClaims(f"{redis_url}?prefix={uuid.uuid4().hex}")
    )
    machine = type("Machine", (ClaimsMachine,), {"claims": claims})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
