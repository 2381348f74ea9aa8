"""Builds and workers that read, decide and swap in any order, die at any time, and lose every race there is to lose."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from spyre_workers import states
from spyre_workers.states import Move

KEYS = ["a" * 64, "b" * 64]
_numbers = itertools.count()


@dataclass
class Run:
    """A worker's attempt; `on` once its claim was swapped in."""

    key: str
    token: str
    build: str
    hedge: bool = False
    on: bool = False
    over: bool = False


@dataclass
class Pending:
    """What an actor has read and decided, but not yet swapped."""

    key: str
    old: object
    answer: object
    then: object = None


class ClaimsMachine(RuleBasedStateMachine):
    """Subclasses give `claims`."""

    builds = Bundle("builds")
    runs = Bundle("runs")
    pending = Bundle("pending")
    claims = None

    def __init__(self):
        super().__init__()
        self.tag = next(_numbers)
        self.keys = [f"{self.tag:08x}{key[8:]}" for key in KEYS]  # the store lives longer than one machine
        self.known: set[str] = set()
        self.all: list[Run] = []
        self.compiles, self.excuses = Counter(), Counter()

    # --- actors come and go ---

    @rule(target=builds)
    def build_comes(self):
        token = f"build-{next(_numbers)}"
        self.claims.begin(token, 3600)
        return token

    @rule(token=consumes(builds))
    def build_dies(self, token):
        self.claims.end(token)

    @rule(target=runs, key=st.integers(0, 1), build=builds, hedge=st.booleans())
    def worker_takes_a_task(self, key, build, hedge):
        run = Run(self.keys[key], f"run-{next(_numbers)}", build, hedge)
        self.claims.begin(run.token, 3600)
        self.all.append(run)
        return run

    @rule(run=consumes(runs))
    def worker_dies(self, run):
        self.claims.end(run.token)
        if run.on and not run.over:
            self.excuses[run.key] += 1
        run.over = True

    @rule(run=runs)
    def token_lapses_and_the_run_tries_to_go_on(self, run):
        if not run.on or run.over:
            return
        self.claims.end(run.token)
        fresh = f"run-{next(_numbers)}"
        self.claims.begin(fresh, 3600)
        standing = self.claims.read([run.key])[run.key]
        answer = states.resume(
            standing.claim,
            standing.alive,
            key=run.key,
            old=run.token,
            token=fresh,
            build=run.build,
            worker="w",
            now=1.0,
        )
        resumed = isinstance(answer, Move) and self.claims.swap(run.key, standing.claim, answer.new)
        if resumed and run.key not in self.known:
            run.token = fresh
        else:
            self.claims.end(fresh)
            self.excuses[run.key] += 1
            run.over = True

    # --- read and decide, then swap, with anything in between ---

    @rule(target=pending, token=builds, key=st.integers(0, 1))
    def build_decides(self, token, key):
        key = self.keys[key]
        return self._decided(key, lambda c, a: states.queue(c, a, key=key, token=token, build=token, now=1.0))

    @rule(target=pending, token=builds, key=st.integers(0, 1))
    def build_cancels(self, token, key):
        return self._decided(self.keys[key], lambda c, a: states.cancel(c, a, token=token, now=1.0))

    @rule(target=pending, run=runs)
    def worker_decides(self, run):
        def verb(claim, alive):
            if run.hedge and states.phase(claim, alive) == "running":
                return states.hedge(claim, alive, token=run.token, now=9.0, age=1.0)
            return states.start(claim, alive, key=run.key, token=run.token, build=run.build, worker="w", now=1.0)

        if run.on or run.over:
            return Pending(run.key, None, None)
        return self._decided(run.key, verb, lambda old, new: self._started(run, old, new))

    @rule(target=pending, run=runs, how=st.sampled_from(["finish", "crash", "release"]))
    def run_ends(self, run, how):
        if not run.on or run.over:
            return Pending(run.key, None, None)
        if how == "finish":
            self.known.add(run.key)  # the result is stored first
        verbs = {
            "finish": lambda c, a: states.finish(c, a, token=run.token),
            "crash": lambda c, a: states.crash(c, a, token=run.token, worker="w", why="died", now=1.0),
            "release": lambda c, a: states.release(c, a, token=run.token, now=1.0),
        }
        return self._decided(run.key, verbs[how], lambda _old, _new: self._ended(run))

    @rule(item=consumes(pending))
    def swap(self, item):
        if isinstance(item.answer, Move) and self.claims.swap(item.key, item.old, item.answer.new) and item.then:
            item.then(item.old, item.answer.new)

    @rule(item=consumes(pending))
    def swap_is_never_sent(self, item):
        pass

    def _decided(self, key, verb, then=None):
        standing = self.claims.read([key])[key]
        answer = verb(standing.claim, standing.alive)
        return Pending(key, standing.claim, answer, then)

    def _started(self, run, old, new):
        if new is None or new.state != "running" or run.over:
            return  # quarantined instead; or its process is gone by now
        run.on = True
        if run.key not in self.known:  # as `perform` looks once more after it has claimed
            self.compiles[run.key] += 1
            if new.hedge == run.token:
                self.excuses[run.key] += 1

    def _ended(self, run):
        run.on, run.over = False, True
        self.claims.end(run.token)
        if run.key not in self.known:
            self.excuses[run.key] += 1

    # --- what must hold ---

    @invariant()
    def at_most_one_living_run_and_one_hedge(self):
        for key, standing in self.claims.read(self.keys).items():
            living = [run for run in self.all if run.key == key and run.on and not run.over]
            assert len(living) <= 2, living
            if key not in self.known:
                claim = standing.claim
                named = () if claim is None or claim.state != "running" else (claim.owner, claim.hedge)
                assert {run.token for run in living} <= set(named)

    @invariant()
    def compile_starts_have_their_reasons(self):
        for key in self.keys:
            assert self.compiles[key] <= 1 + self.excuses[key]

    @invariant()
    def never_stuck(self):
        for key, (claim, alive) in self.claims.read(self.keys).items():
            seen = states.phase(claim, alive)
            if seen in {"running", "hedged"}:
                continue  # its run goes on, or its token dies
            start = states.start(claim, alive, key=key, token="new", build="new", worker="w", now=1.0)
            assert isinstance(start, Move) or start.why == "quarantined"
            if seen != "queued":
                queue = states.queue(claim, alive, key=key, token="new", build="new", now=1.0)
                assert isinstance(queue, Move) or queue.why == "quarantined"
