"""Drives the actions of a build to their results: claims, hands out, listens, and starts over what was lost.

Knows neither torch nor who compiles. Anything may be lost at any time (a worker, an event, everything in Redis): the
action cache says what is done and the claims who is at it, and whoever is missing in both is handed out again.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from spyre_build.errors import BuildCancelledError
from spyre_build.events import Events, NullEvents, Outcome
from spyre_build.patience import Patience
from spyre_cache.claims import Claim, Claims, Standing, cancel_token
from spyre_cache.codec import decode
from spyre_cache.errors import BlobNotFoundError, CacheUnavailableError, InvalidRecordError
from spyre_cache.objects.action import Action, ActionResult, Failure
from spyre_workers import states
from spyre_workers.messages import Event, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spyre_build.journal import Notes
    from spyre_build.taking import Driving
    from spyre_cache.cache import Cache
    from spyre_workers.executor import Executor

_CHUNK = 500
_SWEEP_SECONDS = 1.0
_SWEPT = 200  # outstanding actions looked at in a sweep although nothing was heard of them: constant cost
_SLOW_SECONDS = 10.0
_LEASE_SECONDS = 45.0  # a lease that is shared is good for two minutes


class Driver:
    """One build's actions on their way.

    Attributes:
        results: what is known, by key.
        outcomes: how it came about, by key.
    """

    def __init__(
        self,
        cache: Cache,
        claims: Claims,
        executor: Executor,
        *,
        driving: Driving,
        build: str,
        journal: Notes,
        events: Events | None = None,
    ) -> None:
        self.cache, self.claims, self.executor = cache, claims, executor
        self.build, self.journal, self.events = build, journal, events or NullEvents()
        self.results: dict[str, ActionResult] = {}
        self.outcomes: dict[str, Outcome] = {}
        self._driving = driving
        self._outstanding: dict[str, Action] = {}
        self._running: set[str] = set()
        self._elsewhere: set[str] = set()  # another build's claim; told to people once
        self._doubtful: set[str] = set()
        self._hedged: set[str] = set()
        self._window: deque[str] = deque()
        self._took: deque[float] = deque(maxlen=1000)
        self._epoch = ""
        self._patience = Patience(cache, self.events, broker=executor.durable)
        self._said: set[str] = set()
        self._unstoring: set[str] = set()  # workers that cannot store, until they can
        self._next_sweep = self._next_slow = self._next_lease = 0.0

    # --- from outside ---

    def hand_out(self, actions: Mapping[str, Action]) -> None:
        """Claims and dispatches what nobody has or does; returns at once.

        Raises:
            CacheUnavailableError: claims or broker cannot be reached; call it again.
        """
        self._window.extend(key for key in actions if key not in self._outstanding)
        self._outstanding |= actions
        self._epoch = self.claims.epoch()
        self._next_sweep = time.monotonic() + _SWEEP_SECONDS
        self._next_slow = time.monotonic() + _SLOW_SECONDS
        self._hand_out(actions)

    def run(self) -> None:
        """Waits until every action that was handed out has come to something.

        Raises:
            BuildCancelledError: somebody cancelled the build.
            CacheError: what runs on this machine cannot use the cache any more.
        """
        try:
            self._wait()
        finally:
            self.cache.end_shared_lease(self.build)

    def _wait(self) -> None:
        while self._outstanding:
            self.executor.check()
            try:
                self._recover()
                self._hear(self._listen())
                self._sweep_when_due()
                self.executor.check()
            except CacheUnavailableError as error:
                self._patience.wait(error)

    def _listen(self) -> list[Event]:
        """What was said until the next sweep. Without events the sweeps find everything, only later."""
        seconds = max(0.0, min(1.0, self._next_sweep - time.monotonic()))
        try:
            return self.executor.bus.read(seconds)
        except CacheUnavailableError as error:
            self.claims.alive([self._driving.token])  # raises where it is not the events alone
            if "deaf" not in self._said:
                self._said.add("deaf")
                self.events.note(f"{error}; going by what is found instead")
            time.sleep(seconds)
            self._doubtful.update(islice(self._outstanding, _SWEPT))
            return []

    def _recover(self) -> None:
        if not self._patience.is_waiting:
            return
        if not self._start_over():
            self._hand_out_again()
        self._patience.over()

    def _start_over(self) -> bool:
        """Hands everything out again if the broker has lost what it had; whether it has."""
        epoch = self.claims.epoch()
        if epoch == self._epoch:
            return False
        if self._epoch:
            self.events.note("the broker lost what it had; handing out again what is outstanding")
        self._hand_out_again()
        self._epoch = epoch
        return True

    # --- handing out ---

    def _hand_out_again(self) -> None:
        """What is still wanted after something was lost, an event perhaps that told of a result."""
        self._collect(list(self._outstanding))
        self._hand_out(list(self._outstanding))

    def _hand_out(self, keys: Iterable[str]) -> None:
        pending = iter(keys)
        while chunk := list(islice(pending, _CHUNK)):
            standings = self.claims.read(chunk)
            self._claim([key for key in chunk if key in self._outstanding], standings)

    def _claim(self, keys: list[str], standings: Mapping[str, Standing]) -> None:
        now = self.claims.now()
        wanted: dict[str, tuple[str, Claim | None, Claim | None]] = {}
        for key in keys:
            standing = standings[key]
            answer = states.queue(
                standing.claim, standing.alive, key=key, token=self._driving.token, build=self.build, now=now
            )
            if isinstance(answer, states.Refusal):
                self._refused(key, standing, answer)
            else:
                wanted[key] = (key, standing.claim, answer.new)
        swapped = self.claims.swap_many(wanted.values())
        self._doubtful |= wanted.keys() - swapped
        ready = [(Task(action=key, build=self.build), self._outstanding[key]) for key in wanted if key in swapped]
        if ready:
            # Noted first: a worker may begin before the last of them is sent.
            self.journal.queued(task.action for task, _ in ready)
            self.executor.dispatch(ready)

    def _refused(self, key: str, standing: Standing, refusal: states.Refusal) -> None:
        claim = standing.claim
        if claim is None or refusal.why == "quarantined":
            failure = Failure(kind="crash", message=refusal.text)
            self._settle(key, ActionResult(action=key, status="failed", failure=failure, build=self.build))
            return
        if claim.state == "running":
            self._running.add(key)
        if claim.build != self.build and key not in self._elsewhere:
            self._elsewhere.add(key)
            if "elsewhere" not in self._said:
                self._said.add("elsewhere")
                self.events.note(f"build {claim.build} compiles some of the same fragments; waiting for them")

    # --- hearing ---

    def _hear(self, events: Iterable[Event]) -> None:
        done: list[str] = []
        for event in events:
            action = self._outstanding.get(event.action)
            if action is None:
                continue
            match event.kind:
                case "started":
                    self._running.add(event.action)
                    self.journal.began(event.action, event.worker, event.at)
                    self.events.started(str(action.fragment), action.target.name)
                case "finished":
                    self._unstoring.discard(event.worker)
                    done.append(event.action)
                case "failed":
                    self._failed(event)
                case "crashed":
                    self.events.note(f"{str(action.fragment)[:19]}: {event.text}; it is tried again")
                    self._doubtful.add(event.action)
                case "lost":
                    self._doubtful.add(event.action)
                case "unstored":
                    self._doubtful.add(event.action)
                    if event.worker not in self._unstoring:
                        self._unstoring.add(event.worker)
                        self.events.note(event.text)
        self._collect(done)

    def _failed(self, event: Event) -> None:
        if event.build != self.build:
            # An event is a hint. Another's run may have failed for reasons of its own: this build looks for itself.
            self._doubtful.add(event.action)
            return
        result = None
        if event.result is not None:
            with suppress(BlobNotFoundError, InvalidRecordError):
                result = decode(self.cache.blobs.get(event.result), ActionResult)
        if result is None or result.action != event.action or result.status != "failed":
            failure = Failure(kind="infrastructure", message=event.text or "the worker said no more")
            result = ActionResult(action=event.action, status="failed", failure=failure, build=event.build)
        self._settle(event.action, result)

    def _collect(self, keys: Iterable[str]) -> None:
        """Takes what the action cache has; what it has not is looked into at the next sweep."""
        wanted = [key for key in dict.fromkeys(keys) if key in self._outstanding]
        if not wanted:
            return
        found = self.cache.actions.get_many(wanted)
        self._doubtful |= set(wanted) - found.keys()
        for key, result in found.items():
            self._settle(key, result)

    def _settle(self, key: str, result: ActionResult) -> None:
        outcome: Outcome = "compiled" if result.build == self.build else "waited"
        if result.status == "failed":
            outcome = "failed"
        action = self._outstanding.pop(key)
        self.results[key], self.outcomes[key] = result, outcome
        self._running.discard(key)
        self._doubtful.discard(key)
        self._took.append(result.statistics.seconds)
        said = result.failure.message if result.failure is not None else ""
        self.journal.settled(key, outcome, error=said, log=result.log, worker=result.builder)
        self.events.finished(str(action.fragment), action.target.name, outcome, result.statistics.seconds)

    # --- looking after ---

    def _sweep_when_due(self) -> None:
        now = time.monotonic()
        if now < self._next_sweep:
            return
        self._next_sweep = now + _SWEEP_SECONDS
        if cancel_token(self.build) in self.claims.alive([cancel_token(self.build)]):
            raise BuildCancelledError(f"the build {self.build} was cancelled")
        if self._start_over():
            return
        self._sweep()
        if now >= self._next_lease:
            self._next_lease = now + _LEASE_SECONDS
            self.cache.renew_shared_lease(self.build)
        if now >= self._next_slow:
            self._next_slow = now + _SLOW_SECONDS
            self.look_at_the_queue()
        self.journal.keep_when_due()

    def _sweep(self) -> None:
        # Where events come from this process alone, what others do is only found by looking.
        blind = set() if self.executor.durable else self._elsewhere
        keys = {*self._running, *self._doubtful, *(blind & self._outstanding.keys()), *self._some()}
        self._doubtful.clear()
        looked = list(islice((key for key in keys if key in self._outstanding), 10 * _CHUNK))
        standings = self.claims.read(looked)
        idle = [key for key in looked if not _is_held(standings[key])]
        self._collect(idle)
        again = [key for key in idle if key in self._outstanding]
        for key in again:
            self._running.discard(key)
            self._doubtful.discard(key)
        self._hand_out(again)
        self._hedge({key: standings[key] for key in looked if key not in idle and key in self._outstanding})

    def _some(self) -> list[str]:
        """The next few outstanding ones, round and round."""
        found = []
        for _ in range(min(_SWEPT, len(self._window))):
            key = self._window.popleft()
            if key in self._outstanding:
                self._window.append(key)
                found.append(key)
        return found

    def _hedge(self, standings: Mapping[str, Standing]) -> None:
        """Asks for a second run of what takes far longer than others did."""
        if not self.executor.durable:
            return
        limit, now = states.hedge_age(self._took), self.claims.now()
        late = [
            key
            for key, standing in standings.items()
            if standing.claim is not None and standing.claim.state == "running" and not standing.claim.hedge
            and now - standing.claim.since > limit and key not in self._hedged
        ]  # fmt: skip
        self._hedged.update(late)
        tasks = [(Task(action=key, build=self.build, hedge=True), self._outstanding[key]) for key in late]
        if tasks:
            self.executor.dispatch(tasks)

    def look_at_the_queue(self) -> None:
        """Says when nobody takes this build's work; sends again what the queue has lost."""
        if self._running or not self.executor.durable:
            return
        sample = list(islice(self._outstanding.values(), _SWEPT))
        lacking = self.executor.lacking(sample)
        if lacking and lacking not in self._said:
            self._said.add(lacking)
            self.events.note(lacking)
        if not lacking and self.executor.backlog(sample) == 0:
            self.executor.dispatch([(Task(action=a.key(), build=self.build), a) for a in sample])


def _is_held(standing: Standing) -> bool:
    return states.phase(standing.claim, standing.alive) in {"queued", "running", "hedged"}


def compile_actions(
    cache: Cache,
    actions: Mapping[str, Action],
    *,
    jobs: int | None = None,
    imports: tuple[str, ...] = (),
    events: Events | None = None,
) -> dict[str, ActionResult]:
    """Results of actions, described before, from this machine's own pool; nothing is recorded as a build.

    Raises:
        CacheError: the cache cannot be used.
    """
    from spyre_build.building import new_id
    from spyre_build.journal import NoNotes
    from spyre_build.taking import Driving
    from spyre_build.workshop import workshop

    build = new_id()
    with workshop(cache, None, jobs=jobs, imports=imports) as (claims, executor), Driving(claims, build) as driving:
        driver = Driver(cache, claims, executor, driving=driving, build=build, journal=NoNotes(), events=events)
        driver.hand_out(actions)
        driver.run()
    return driver.results
