"""A build from its plan on: what is missing is driven to results, then the manifest, its verification and release.

The submitting process uses it right after capture, and whoever picks a build up later uses it with the stored plan.
"""

from __future__ import annotations

import random
import secrets
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from spyre_build.builds import BuildAction
from spyre_build.driving import Driver
from spyre_build.errors import BuildCancelledError, BuildError, MissingPieceError, UsageError, VerificationError
from spyre_build.finishing import assemble_manifest, failure_words, release, verify_manifest
from spyre_build.journal import Journal
from spyre_build.outcome import Build
from spyre_build.patience import Patience
from spyre_build.plan import PlannedAction, planned_of
from spyre_build.taking import Driving
from spyre_cache.claims import cancel_token
from spyre_cache.claims_disk import DiskClaims
from spyre_cache.codec import encode
from spyre_cache.errors import CacheError, CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spyre_build.builds import BuildRecord
    from spyre_build.events import Events, Outcome
    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims
    from spyre_cache.objects.action import ActionResult
    from spyre_cache.objects.plan import PlanRecord
    from spyre_workers.executor import Executor

_PHASES = ("import", "capture", "partition", "lookup", "compile", "publish")


def new_id() -> str:
    """A name for a build: sorts by time, unique."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)


class Building:
    """One build under way in this process.

    Attributes:
        build: what `submit` gives back, filled in as it becomes known.
        missing: what the cache had not when it was looked up.
        claims: who is at work on what, and which builds were cancelled.
        patience: outlasts tiers that go away while the build is under way.
    """

    def __init__(self, cache: Cache, record: BuildRecord, events: Events) -> None:
        self.cache, self.events = cache, events
        self.journal = Journal(cache, record)
        self.build = Build(id=record.id, name=record.name, cache=cache.url)
        self.missing: list[PlannedAction] = []
        self.claims: Claims | None = None
        self._results: dict[str, ActionResult] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._driver: Driver | None = None
        self._stack = ExitStack()
        self.patience = Patience(cache, events, broker=False)
        self._plan: PlanRecord | None = None
        self._compiling = 0.0
        self._left = False

    @property
    def id(self) -> str:
        """The build's name."""
        return self.build.id

    @property
    def record(self) -> BuildRecord:
        """Its record as it stands."""
        return self.journal.record

    def name(self, name: str) -> None:
        """The model's name, once it is known."""
        self.build.name = name
        self.journal.record = replace(self.record, name=name)

    # --- the frame ---

    @contextmanager
    def kept(self, *, mine: bool = True) -> Iterator[None]:
        """Whatever happens within, the record says so afterwards, and nothing is driven any more.

        A build that is not `mine` stays for others to pick up when this process is interrupted or cut off.
        """
        try:
            with self._stack:
                yield
        except (KeyboardInterrupt, CacheUnavailableError) as error:
            if mine:
                self._end("failed", _one_line(error))
            raise
        except UsageError:
            if self.journal.actions:
                self._end("failed", "the words of the command were wrong")
            raise  # else nothing was begun: it is no build
        except BuildCancelledError as error:
            self._end("cancelled", str(error))
            raise
        except BaseException as error:
            self._end("failed", _one_line(error))
            raise
        self._total()
        if not self._left:
            self._keep(self.build.status)

    def _total(self) -> None:
        self.build.seconds |= self.journal.seconds
        self.build.seconds["total"] = time.time() - self.record.started
        for phase in _PHASES:
            self.build.seconds.setdefault(phase, 0.0)

    def _end(self, status: Any, error: str) -> None:
        self._total()
        try:
            self._keep(status, error=error)
        except Exception:
            if status not in {"failed", "cancelled"}:  # the error that ended the build is the one to report
                raise

    def _keep(self, status: Any, **fields: Any) -> None:
        manifest = "" if self.build.manifest is None else str(self.build.manifest)
        self.journal.keep(status, name=self.build.name, manifest=manifest, summary=self.build.to_json(), **fields)

    @contextmanager
    def phase(self, name: str, *, since: float | None = None) -> Iterator[None]:
        """A phase of this process; shown, and counted."""
        self.events.phase(name)
        began = time.time() if since is None else since
        try:
            yield
        finally:
            self.journal.add_span(name, began, time.time())

    def spent(self, seconds: Mapping[str, float]) -> None:
        """Phases that ended just now, one after the other."""
        at = time.time() - sum(seconds.values())
        for name, value in seconds.items():
            self.journal.add_span(name, at, at + value)
            at += value

    # --- looking up ---

    def look_up(self, planned: Sequence[PlannedAction]) -> None:
        """Takes what the cache has: successes whose outputs are all there, and failures still remembered."""
        with self.phase("lookup"):
            found = self.patience.outlast(lambda: self.cache.actions.get_many(item.key for item in planned))
        for item in planned:
            if item.key in found:
                result = found[item.key]
                self._results[item.key] = result
                self._outcomes[item.key] = "hit" if result.status == "ok" else "failed"
        self.missing = [item for item in planned if item.key not in found]
        self.events.planned(len(planned), len(found))
        self.build.peak_rss_bytes["plan"] = _peak_rss()
        self.journal.planned(self._noted(item) for item in planned)

    def _noted(self, item: PlannedAction, before: BuildAction | None = None) -> BuildAction:
        result = self._results.get(item.key)
        said = result.failure.message.partition("\n")[0] if result is not None and result.failure is not None else ""
        known = before or BuildAction(fragment=item.action.fragment, target=item.action.target.name, key=item.key)
        log = result.log if result is not None else known.log
        return replace(known, outcome=self._outcomes.get(item.key, "planned"), error=said, log=log)

    # --- compiling ---

    def drive(self, executor: Executor) -> None:
        """Begins to drive this build; what is missing is on its way when this returns.

        Raises:
            BuildTakenError: another process drives it.
        """
        claims = self.claims
        assert claims is not None  # whoever brings an executor brings its claims
        self._compiling = time.time()
        self.events.phase("compile")
        # The broker answered a while ago, before the model was captured.
        patience = Patience(self.cache, self.events, broker=executor.durable)
        driving = Driving(claims, self.id)
        patience.outlast(lambda: self._stack.enter_context(driving))
        driver = self._driver = Driver(
            self.cache, claims, executor,
            driving=driving, build=self.id, journal=self.journal, events=self.events,
        )  # fmt: skip
        missing = {item.key: item.action for item in self.missing}
        patience.outlast(lambda: driver.hand_out(missing))

    def settle_plan(self, plan: PlanRecord, **fields: Any) -> None:
        """Stores the plan: from now on anybody can bring this build to its end."""
        self._plan = replace(plan, spec=self.record.spec, **fields)
        data = encode(self._plan)
        blob = self.patience.outlast(lambda: self.cache.blobs.put(data))
        self.patience.outlast(self.cache.blobs.flush)
        self.journal.keep("running", plan=blob, name=self.build.name)

    def resume(self, plan: PlanRecord, *, fresh: bool = False) -> None:
        """Goes on with a stored plan, from what its record and the cache say by now.

        Args:
            plan: the plan.
            fresh: this is another build of the plan, so that whatever is there by now is a hit.
        """
        self._plan = plan
        self.build.notes += plan.notes
        self.check_cancelled()
        planned = planned_of(plan)
        hits = {key for key, action in self.journal.actions.items() if action.outcome == "hit"}
        with self.phase("lookup"):
            found = self.patience.outlast(lambda: self.cache.actions.get_many(item.key for item in planned))
        for key, result in found.items():
            made: Outcome = "compiled" if result.build == self.id else "waited"
            made = "hit" if fresh or key in hits else made
            self._results[key], self._outcomes[key] = result, made if result.status == "ok" else "failed"
        self.missing = [item for item in planned if item.key not in found]
        self.events.planned(len(planned), len(found))
        self.build.peak_rss_bytes["plan"] = _peak_rss()
        before = self.journal.actions
        self.journal.planned(self._noted(item, before.get(item.key)) for item in planned)
        if fresh and self.missing:
            self.patience.outlast(self._describe)

    def _describe(self) -> None:
        """What workers need of the missing actions, which a collection may have taken since.

        Raises:
            MissingPieceError: a fragment itself is gone.
        """
        gone = self.cache.blobs.missing(item.action.fragment for item in self.missing)
        if gone:
            raise MissingPieceError(f"the fragment {min(gone)} is not in this cache", hint="submit the model again")
        with self.cache.blobs.batch():
            for item in self.missing:
                self.cache.actions.describe(item.action)

    def check_cancelled(self) -> None:
        """Nothing is published or released of a build that somebody cancelled, whoever drives it by now.

        Raises:
            BuildCancelledError: somebody did.
        """
        claims, token = self.claims, cancel_token(self.id)
        if claims is None:
            return
        patience = Patience(self.cache, self.events, broker=not isinstance(claims, DiskClaims))
        if patience.outlast(lambda: claims.alive([token])):
            raise BuildCancelledError(f"the build {self.id} was cancelled")

    def leave(self) -> None:
        """The build goes on without this process."""
        self._left = True
        self.build.status = "running"
        assert self._plan is not None  # nobody could go on without it
        if self._driver is not None:
            self._driver.look_at_the_queue()
        outcomes = {item.key: self._outcomes.get(item.key, "planned") for item in planned_of(self._plan)}
        self.build.count(self._plan, outcomes)
        self.build.status = "running"
        self._keep("running")

    def wait(self) -> None:
        """Until everything that was handed out has come to something.

        Raises:
            BuildCancelledError: somebody cancelled the build.
        """
        if self._driver is None:
            return
        self.events.phase("compile")
        self._driver.run()
        self.journal.add_span("compile", self._compiling, time.time())
        self._results |= self._driver.results
        self._outcomes |= self._driver.outcomes
        rss = [result.statistics.peak_rss_bytes for result in self._driver.results.values()]
        self.build.peak_rss_bytes["compile"] = max(rss, default=0)

    def audit(self, percent: float) -> None:
        """Compiles a sample of what this build compiled once more.

        Raises:
            VerificationError: other bytes came.
        """
        from spyre_workers.compile import audit as audit_action

        compiled = [item for item in self.missing if self._outcomes[item.key] == "compiled"]
        if not compiled:
            return
        count = min(len(compiled), max(1, round(len(compiled) * min(percent, 100.0) / 100)))
        for item in random.Random(self.id).sample(compiled, count):  # noqa: S311  a sample, not a secret
            difference = audit_action(item.action, self._results[item.key], self.cache.blobs)
            if difference:
                raise VerificationError(
                    f"compiling a fragment twice must give the same bytes: {difference}",
                    fragment=str(item.action.fragment),
                    hint="`spyre-build doctor` shows the compiler; report it with the log of both",
                )

    # --- the end ---

    def finish(self, *, replay: bool = True) -> None:
        """Counts, publishes, verifies and releases.

        Args:
            replay: whether golden vectors are replayed, for which torch is loaded; without it nothing is released.

        Raises:
            VerificationError: what was compiled does not give what eager gives.
            BuildCancelledError: somebody cancelled the build meanwhile.
        """
        plan = self._plan
        assert plan is not None  # settled before
        planned = planned_of(plan)
        self.build.count(plan, {item.key: self._outcomes[item.key] for item in planned})
        self.build.failures = [
            failure_words(self.cache, item, self._results[item.key])
            for item in planned
            if self._outcomes[item.key] == "failed"
        ]
        if self.build.status == "failed":
            return
        self.check_cancelled()
        with self.phase("publish"):
            manifest = assemble_manifest(plan, self._results)
            digest = self.patience.outlast(lambda: self.cache.put_manifest(manifest))
        if self.build.status == "ok" and replay:
            with self.phase("verify"):
                note = self.patience.outlast(lambda: verify_manifest(self.cache, plan, manifest))
            self.build.notes += [note] if note else []
        self.build.manifest = digest
        if self.build.status == "ok" and replay:
            self.check_cancelled()
            self.build.name = self.patience.outlast(lambda: release(self.cache, plan, digest))


def _peak_rss() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _one_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, (BuildError, CacheError)) else f"{type(error).__name__}: {text}"
