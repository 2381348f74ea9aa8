"""One task from beginning to end: look, claim, compile, publish, say so. A pool and a fleet both call `perform`."""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from spyre_cache.claims import cancel_token
from spyre_cache.codec import encode
from spyre_cache.errors import CacheError, CacheUnavailableError
from spyre_cache.objects.action import ActionResult, Failure, FailureKind
from spyre_workers import states
from spyre_workers.claiming import decide
from spyre_workers.client import Cancelled, Run
from spyre_workers.compile import compile_action
from spyre_workers.messages import Event
from spyre_workers.states import Move, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claim, Claims
    from spyre_cache.digest import Digest
    from spyre_cache.objects.action import Action
    from spyre_workers.bus import Bus
    from spyre_workers.client import CompileServer
    from spyre_workers.compile import Limits
    from spyre_workers.heart import Heart
    from spyre_workers.messages import Task
    from spyre_workers.states import Answer
    from spyre_workers.storing import Storing

Outcome = Literal[
    "hit", "compiled", "unsupported", "failed", "crashed", "quarantined", "busy", "lost", "cancelled", "unwanted",
    "invalid",
]  # fmt: skip
"""What came of a task: `hit` (there was a result), `compiled`, `unsupported` (a failure that is remembered), `failed`
(time, memory, infrastructure), `crashed` (sent again), `quarantined`, `busy` (another run is at it), `lost` (another
took over), `cancelled` (this process ends), `unwanted` (its build was cancelled), `invalid` (no task)."""

_KEY = re.compile(r"[0-9a-f]{64}")
_T = TypeVar("_T")
Said = Literal["started", "finished", "failed", "crashed", "lost", "unstored"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """What a worker works with.

    Attributes:
        cache: where actions are found and results put.
        claims: who is at work on what.
        bus: where it is said what happens.
        server: compiles.
        worker: this worker's name.
        again: sends a task once more, after a crash.
        limits: time and memory of an action's compilation.
        heart: keeps the runs' tokens alive.
        storing: goes on trying to store a result, rather than compile it again; without, it is tried once.
    """

    cache: Cache
    claims: Claims
    bus: Bus
    server: CompileServer
    worker: str
    again: Callable[[Task, Action], None]
    limits: Callable[[Action], Limits]
    heart: Heart
    storing: Storing | None = None


def perform(task: Task, place: Workplace, handle: Run | None = None) -> Outcome:
    """Performs a task, as often as it may come: results are stored once, and an action compiled by one run at a time.

    Args:
        task: what to do.
        place: what to do it with.
        handle: ends the compilation, if this process must end.

    Raises:
        CacheUnavailableError: the cache or the claims cannot be used now; nothing is held, the task may come again.
    """
    if not _KEY.fullmatch(task.action):
        return "invalid"
    return _Performance(task, place, handle or Run()).perform()


class _Performance:
    def __init__(self, task: Task, place: Workplace, handle: Run) -> None:
        self.task, self.place, self.handle = task, place, handle
        self.build = task.build
        self.token = _token()
        self.lost = self.ended = False
        self.lock = threading.Lock()  # a run does not end while it is being resumed

    def perform(self) -> Outcome:
        if self._known():
            return "hit"
        action = self.place.cache.actions.document(self.task.action)
        if action is None:
            self._fail(self._failure("infrastructure", "the action's document is in no tier of this worker's cache"))
            return "failed"
        mark = cancel_token(self.task.build)
        if mark in self.place.claims.alive([mark]):
            return "unwanted"
        self.place.claims.begin(self.token)
        try:
            refused = self._enter()
            return refused or self._run(action)
        finally:
            with self.lock:
                self.ended = True
            self._quietly(lambda: self.place.claims.end(self.token))

    # --- before ---

    def _known(self) -> bool:
        if not self._is_done():
            return False
        self._quietly(lambda: self._decide(states.clear))
        self._say("finished", seconds=0.0)
        return True

    def _is_done(self) -> bool:
        """Whether there is a result that whoever asks can see: what only this machine has is none to them."""
        actions = self.place.cache.actions
        return actions.get(self.task.action) is not None and actions.share(self.task.action)

    def _enter(self) -> Outcome | None:
        """Claims the action; gives why it is not to be run, if it is not."""
        answer = self._decide(self._claimed)
        if isinstance(answer, Refusal):
            if answer.why != "quarantined":
                return "busy"
            self._fail(self._failure("crash", answer.text))
            return "quarantined"
        assert answer.new is not None
        if answer.new.state == "quarantined":
            self._fail(self._failure("crash", states.accusation(answer.new)))
            return "quarantined"
        self.build = answer.new.build
        # Between the first look and the claim another run may have ended.
        if self._is_done():
            self._leave(lambda claim, alive: states.finish(claim, alive, token=self.token))
            self._say("finished", seconds=0.0)
            return "hit"
        return None

    def _claimed(self, claim: Claim | None, alive: frozenset[str]) -> Answer:
        now = self.place.claims.now()
        if self.task.hedge and states.phase(claim, alive) == "running":
            return states.hedge(claim, alive, token=self.token, now=now, age=0.0)
        return states.start(
            claim,
            alive,
            key=self.task.action,
            token=self.token,
            build=self.task.build,
            worker=self.place.worker,
            now=now,
        )

    # --- the run ---

    def _run(self, action: Action) -> Outcome:
        self._say("started", seconds=0.0)
        began = time.monotonic()
        try:
            with self.place.heart.beating(self.token, self._died):
                result = compile_action(
                    action,
                    self.place.cache.blobs,
                    into=self.place.cache.disk,
                    limits=self.place.limits(action),
                    server=self.place.server,
                    builder=self.place.worker,
                    handle=self.handle,
                    keep=lambda store: self._kept(store, proof=False),
                )
                result = msgspec.structs.replace(result, build=self.build)
                return self._ended(action, result)
        except Cancelled:
            if self.lost:
                self._say("lost", seconds=time.monotonic() - began, text="another run took over")
                return "lost"
            self._leave(self._released)
            return "cancelled"
        except CacheUnavailableError:
            self._leave(self._released)
            raise
        except Exception as error:  # noqa: BLE001  a bug here must not cost the other fragments, nor come for ever
            _log.exception("action %s", self.task.action[:12])
            kind: FailureKind = "infrastructure" if isinstance(error, CacheError) else "crash"
            result = self._failure(kind, f"{type(error).__name__}: {error}"[:2000])
            return self._ended(action, msgspec.structs.replace(result, build=self.build))

    def _ended(self, action: Action, result: ActionResult) -> Outcome:
        seconds = result.statistics.seconds
        if result.failure is not None and result.failure.kind == "crash":
            return self._crashed(action, result)
        if result.failure is not None and result.failure.kind != "unsupported":
            self._leave(self._released)
            self._fail(result)
            return "failed"
        self._publish(result)
        self._leave(lambda claim, alive: states.finish(claim, alive, token=self.token))
        self._say("finished", seconds=seconds)
        return "compiled" if result.failure is None else "unsupported"

    def _publish(self, result: ActionResult) -> None:
        """Where everybody finds it, blobs first."""
        digests = [*(output.digest for output in result.outputs), *filter(None, [result.log])]

        def publish() -> None:
            self.place.cache.blobs.share(digests)
            self.place.cache.actions.put(result)

        self._kept(publish)

    def _kept(self, store: Callable[[], _T], *, proof: bool = True) -> _T:
        """What `store` gives; tried until it can, for as long as that is worth it."""
        if self.place.storing is None:
            return store()
        tell, cancelled = self._cannot_store, self.handle.cancelled
        return self.place.storing.keep(store, cancelled=cancelled, tell=tell, proof=proof)

    def _cannot_store(self, why: str) -> None:
        self._say("unstored", seconds=0.0, text=unstored(self.place.worker, why))

    def _crashed(self, action: Action, result: ActionResult) -> Outcome:
        assert result.failure is not None
        why = result.failure.message
        answer = self._decide(
            lambda claim, alive: states.crash(
                claim,
                alive,
                token=self.token,
                worker=self.place.worker,
                why=why,
                now=self.place.claims.now(),
            )
        )
        if isinstance(answer, Move) and answer.new is not None and answer.new.state == "quarantined":
            text = f"{why}; {states.accusation(answer.new)}"
            self._fail(msgspec.structs.replace(result, failure=Failure(kind="crash", message=text)))
            return "quarantined"
        self._say("crashed", seconds=result.statistics.seconds, text=why)
        self.place.again(self.task, action)
        return "crashed"

    def _died(self) -> str | None:
        """The token has lapsed (this process was frozen, or the claims were lost): goes on unless another took over."""
        with self.lock:
            if self.ended:
                return None
            fresh = _token()
            self.place.claims.begin(fresh)
            answer = self._decide(
                lambda claim, alive: states.resume(
                    claim,
                    alive,
                    key=self.task.action,
                    old=self.token,
                    token=fresh,
                    build=self.build,
                    worker=self.place.worker,
                    now=self.place.claims.now(),
                )
            )
            if isinstance(answer, Move) and self.place.cache.actions.get(self.task.action) is None:
                assert answer.new is not None
                self.token, self.build = fresh, answer.new.build
                return fresh
            self.place.claims.end(fresh)
            self.lost = True
        self.handle.cancel()
        return None

    # --- after ---

    def _released(self, claim: Claim | None, alive: frozenset[str]) -> Answer:
        return states.release(claim, alive, token=self.token, now=self.place.claims.now())

    def _decide(self, verb: Callable[[Claim | None, frozenset[str]], Answer]) -> Answer:
        return decide(self.place.claims, self.task.action, verb)

    def _leave(self, verb: Callable[[Claim | None, frozenset[str]], Answer]) -> None:
        """Gives the claim up; where it cannot be reached, its token lapses and says the same."""
        with self.lock:
            self.ended = True
        self._quietly(lambda: self._decide(verb))

    def _failure(self, kind: FailureKind, message: str) -> ActionResult:
        failure = Failure(kind=kind, message=message)
        return ActionResult(
            action=self.task.action, status="failed", failure=failure, builder=self.place.worker, build=self.build
        )

    def _fail(self, result: ActionResult) -> None:
        """Ends the action for every build, without a result that would be remembered."""
        assert result.failure is not None

        def put() -> Digest:
            with self.place.cache.blobs.batch():
                return self.place.cache.blobs.put(encode(result))

        blob = self._kept(put)
        event = self._event("failed", result.statistics.seconds, result.failure.message)
        self.place.bus.publish(msgspec.structs.replace(event, result=blob))

    def _say(self, kind: Said, *, seconds: float, text: str = "") -> None:
        self.place.bus.publish(self._event(kind, seconds, text))

    def _event(self, kind: Said, seconds: float, text: str) -> Event:
        return Event(
            kind=kind,
            action=self.task.action,
            build=self.build,
            worker=self.place.worker,
            at=time.time(),
            seconds=seconds,
            text=text.partition("\n")[0][:1000],
        )

    def _quietly(self, act: Callable[[], object]) -> None:
        try:
            act()
        except CacheError as error:
            _log.warning("action %s: %s", self.task.action[:12], error)


def unstored(worker: str, why: str) -> str:
    """For those who wait: that a worker cannot store what it makes."""
    return f"worker {worker} cannot store results, and takes no tasks until it can: {' '.join(why.split())}"


def _token() -> str:
    return f"run-{secrets.token_hex(12)}"
