"""Builds and workers that read, decide and swap in any order, die at any time, and lose every race there is to lose."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from spyre_workers import states
from spyre_workers.states import Move

KEYS = ["a" * 64, "b" * 64]
WHICH = st.sampled_from([0, 0, 0, 1])  # they shall meet
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
    second: bool = False
    lapsed: bool = False


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

    @initialize(target=builds)
    def two_builds(self):
        return multiple(self.build_comes(), self.build_comes())

    @initialize(target=runs, hedges=st.lists(st.booleans(), min_size=4, max_size=4))
    def four_workers(self, hedges):
        return multiple(*(self.worker_takes_a_task(0, "build-0", hedge) for hedge in hedges))

    @rule(target=builds)
    def build_comes(self):
        token = f"build-{next(_numbers)}"
        self.claims.begin(token, 3600)
        return token

    @rule(token=consumes(builds))
    def build_dies(self, token):
        self.claims.end(token)

    @rule(target=runs, key=WHICH, build=builds, hedge=st.booleans())
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
    def token_lapses(self, run):
        if run.on and not run.over and not run.lapsed:
            self.claims.end(run.token)
            run.lapsed = True
            self.excuses[run.key] += 1

    @rule(run=runs)
    def run_that_lapsed_tries_to_go_on(self, run):
        if not run.lapsed or run.over:
            return
        fresh = f"run-{next(_numbers)}"
        self.claims.begin(fresh, 3600)
        claim, alive = self.claims.read([run.key])[run.key]
        more = {"key": run.key, "old": run.token, "token": fresh, "build": run.build, "worker": "w", "now": 1.0}
        answer = states.resume(claim, alive, **more)
        resumed = isinstance(answer, Move) and self.claims.swap(run.key, claim, answer.new)
        if resumed and run.key not in self.known:
            run.token, run.lapsed = fresh, False
        else:
            self.claims.end(fresh)
            run.over = True

    # --- read and decide, then swap, with anything in between ---

    @rule(target=pending, token=builds, key=WHICH, at_once=st.booleans())
    def build_decides(self, token, key, at_once):
        key = self.keys[key]
        return self._decided(
            key, lambda c, a: states.queue(c, a, key=key, token=token, build=token, now=1.0), at_once=at_once
        )

    @rule(target=pending, token=builds, key=WHICH, at_once=st.booleans())
    def build_cancels(self, token, key, at_once):
        return self._decided(self.keys[key], lambda c, a: states.cancel(c, a, token=token, now=1.0), at_once=at_once)

    @rule(target=pending, run=runs, at_once=st.booleans())
    def worker_decides(self, run, at_once):
        def verb(claim, alive):
            if run.hedge and states.phase(claim, alive) == "running":
                return states.hedge(claim, alive, token=run.token, now=9.0, age=1.0)
            return states.start(claim, alive, key=run.key, token=run.token, build=run.build, worker="w", now=1.0)

        if run.on or run.over:
            return multiple()
        return self._decided(run.key, verb, lambda old, new: self._started(run, old, new), at_once=at_once)

    @rule(target=pending, run=runs, how=st.sampled_from(["finish", "crash", "release"]), at_once=st.booleans())
    def run_ends(self, run, how, at_once):
        if not run.on or run.over:
            return multiple()
        if how == "finish":
            self.known.add(run.key)  # the result is stored first
        verbs = {
            "finish": lambda c, a: states.finish(c, a, token=run.token),
            "crash": lambda c, a: states.crash(c, a, token=run.token, worker="w", why="died", now=1.0),
            "release": lambda c, a: states.release(c, a, token=run.token, now=1.0),
        }
        return self._decided(run.key, verbs[how], lambda _old, _new: self._ended(run), at_once=at_once)

    @rule(item=consumes(pending))
    def swap(self, item):
        if isinstance(item.answer, Move) and self.claims.swap(item.key, item.old, item.answer.new) and item.then:
            item.then(item.old, item.answer.new)

    def _decided(self, key, verb, then=None, *, at_once):
        standing = self.claims.read([key])[key]
        answer = verb(standing.claim, standing.alive)
        item = Pending(key, standing.claim, answer, then)
        if not at_once:
            return item
        self.swap(item)
        return multiple()

    def _started(self, run, old, new):
        if new is None or new.state != "running" or run.over:
            return  # quarantined instead; or its process is gone by now
        run.on, run.second = True, new.hedge == run.token
        if run.key not in self.known:  # as `perform` looks once more after it has claimed
            self.compiles[run.key] += 1
            if run.second:
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
            living = [run for run in self.all if run.key == key and run.on and not run.over and not run.lapsed]
            if key not in self.known:
                claim = standing.claim
                named = () if claim is None or claim.state != "running" else (claim.owner, claim.hedge)
                assert {run.token for run in living} <= set(named)
                assert sum(not run.second for run in living) <= 1

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
