"""What a report says, as one record made from a build's record and the cache. Knows neither HTML nor torch.

A build may still run, may have died, may have failed before it had a plan, and blobs it names may be gone: what is not
known is left out, and nothing is made up for it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from spyre_build import builds
from spyre_build.report.facts import Entry, Facts, Sizes, facts_of, sane_bytes, sane_seconds
from spyre_build.report.sources import Failure, describe, failures_of
from spyre_build.report.timing import (
    Phase,
    Segment,
    Times,
    Worker,
    critical_chain,
    in_lanes,
    length,
    phases_in_lanes,
    times_of,
    workers_of,
)
from spyre_build.report.why import Reason, reasons_of
from spyre_cache.codec import Record
from spyre_cache.digest import Digest  # noqa: TC001  msgspec reads the annotations
from spyre_cache.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre_build.builds import BuildAction, BuildRecord
    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims
    from spyre_cache.objects.action import ActionResult

DESCRIBED = 400
"""Fragments whose description is read; the rest go by their digest."""
MAX_EVENTS = 100
_KEY = re.compile(r"[0-9a-f]{64}")


class Run(Record, frozen=True, kw_only=True):
    """One distinct (fragment, target) of the build, and what is known of its compilation.

    Attributes:
        outcome: as counted in the build; `planned` while it is open.
        label: where in the model the fragment was first seen, `layers.0.attention`; may be empty.
        source: lines of the user's code it comes from, `model.py:12-40`; may be empty.
        calls: how often the programs call the fragment; 0 when that is not known.
        users: the entries that call it, where there are several and it is not for all of them.
        artifact_bytes: of what the compilation made; None when that is not known.
        seconds: measured length of the compilation, whoever asked for it; of a hit, when it was made.
        maker: who built it, as its result says.
        worker: who ran it for this build; empty for hits.
        lane: which of the worker's lanes.
    """

    fragment: Digest
    target: str
    key: str
    outcome: str
    label: str = ""
    source: str = ""
    calls: int = 0
    users: tuple[str, ...] = ()
    nodes: int = 0
    artifact_bytes: int | None = None
    seconds: float = 0.0
    codegen_seconds: float = 0.0
    cxx_seconds: float = 0.0
    link_seconds: float = 0.0
    peak_rss_bytes: int = 0
    error: str = ""
    log: Digest | None = None
    maker: str = ""
    worker: str = ""
    lane: int = 0
    times: Times = Times()

    @property
    def title(self) -> str:
        """What to call it: its place in the model, or the beginning of its digest."""
        return self.label or self.fragment.short


class Event(Record, frozen=True, kw_only=True):
    """Two results of one action that were not the same; `run` is an index into the runs."""

    run: int
    kept: str
    other: str
    differing: tuple[str, ...]


class Report(Record, frozen=True, kw_only=True):
    """Everything that the page and the trace say.

    Attributes:
        started: seconds since the epoch.
        wall: seconds from start to end, or to the last thing known of a build that has not ended; None when nothing is.
        ended: whether the build came to an end.
        hits, compiled, waited, failed, open: counts of runs; `open` are those without an outcome.
        calls: fragment calls in all programs; 0 when the programs are not known.
        reasons: why what missed did, the most frequent first.
        spent: seconds of compiling for this build, added up over workers.
        saved: seconds that its hits once took to compile.
        shared: seconds that more would have gone into compiling each call by itself.
        skewed: runs of which the worker's clock disagreed.
    """

    id: str
    name: str
    spec: str
    status: str
    error: str
    manifest: str
    started: float
    wall: float | None
    ended: bool
    hits: int
    compiled: int
    waited: int
    failed: int
    open: int
    calls: int
    distinct: int
    targets: tuple[str, ...]
    entries: tuple[Entry, ...]
    sizes: Sizes
    phases: tuple[Phase, ...]
    runs: tuple[Run, ...]
    workers: tuple[Worker, ...]
    chain: tuple[Segment, ...]
    failures: tuple[Failure, ...]
    reasons: tuple[Reason, ...]
    events: tuple[Event, ...]
    notes: tuple[str, ...]
    peak_rss_bytes: tuple[tuple[str, int], ...]
    spent: float
    saved: float
    shared: float
    skewed: int

    @property
    def total(self) -> int:
        """Distinct (fragment, target)."""
        return len(self.runs)


def make_report(cache: Cache, record: BuildRecord, claims: Claims | None = None) -> Report:
    """Reads all that a report says.

    Args:
        cache: where results, descriptions, logs and the plan are; what is gone from it is left out.
        record: the build.
        claims: tell whether the build is driven elsewhere; without them, or when they cannot be reached, only this
            machine is asked.
    """
    facts = facts_of(cache, record)
    results = _results(cache, record.actions)
    runs = [_run(action, result, facts, record.started) for action, result in zip(record.actions, results, strict=True)]
    runs = _described(cache, in_lanes(runs))
    phases = _phases(record, facts)
    status, unreachable = _status(cache, record, claims)
    made = [run for run in runs if run.outcome in {"compiled", "waited", "failed"}]
    counts = [run.outcome for run in runs]
    return Report(
        id=record.id,
        name=record.name,
        spec=record.spec,
        status=status,
        error=record.error,
        manifest=record.manifest,
        started=record.started,
        wall=_wall(record, phases, runs, facts),
        ended=status not in {"running", "died", "left"},
        hits=counts.count("hit"),
        compiled=counts.count("compiled"),
        waited=counts.count("waited"),
        failed=counts.count("failed"),
        open=counts.count("planned"),
        calls=sum(facts.calls.values()),
        distinct=len({run.fragment.hash for run in runs}),
        targets=tuple(dict.fromkeys(run.target for run in runs)),
        entries=facts.entries,
        sizes=replace(facts.sizes, artifacts=_artifact_sizes(runs)),
        phases=phases,
        runs=tuple(runs),
        workers=workers_of(runs),
        chain=critical_chain(phases, runs),
        failures=failures_of(cache, facts, runs, results),
        reasons=reasons_of(cache, record, runs),
        events=_events(cache, runs),
        notes=(*unreachable, *facts.notes),
        peak_rss_bytes=facts.peak_rss_bytes,
        spent=sum(length(run.times) or run.seconds for run in made if run.outcome != "waited"),
        saved=sum(run.seconds for run in runs if run.outcome == "hit"),
        shared=sum((run.calls - 1) * run.seconds for run in runs if run.calls > 1),
        skewed=sum(run.times.skewed for run in runs),
    )


def _status(cache: Cache, record: BuildRecord, claims: Claims | None) -> tuple[str, tuple[str, ...]]:
    try:
        return builds.state(cache, record, claims), ()
    except CacheError as error:
        return builds.state(cache, record), (f"whether the build is driven elsewhere is not known: {error}",)


def _results(cache: Cache, actions: Sequence[BuildAction]) -> list[ActionResult | None]:
    """What came of actions; a failure that was not kept must not be mixed up with a later success."""
    known: dict[str, ActionResult] = {}
    with suppress(CacheError):
        # A damaged record may name keys that are none.
        known = cache.actions.peek_many(a.key for a in actions if a.outcome != "planned" and _KEY.fullmatch(a.key))
    found = [known.get(action.key) for action in actions]
    return [
        result if result is not None and (result.status == "failed") == (action.outcome == "failed") else None
        for action, result in zip(actions, found, strict=True)
    ]


def _run(action: BuildAction, result: ActionResult | None, facts: Facts, started: float) -> Run:
    users = facts.users.get(action.fragment.hash, ())
    run = Run(
        fragment=action.fragment,
        target=action.target,
        key=action.key,
        outcome=action.outcome,
        calls=facts.calls.get(action.fragment.hash, 0),
        users=users if len(users) < len(facts.entries) else (),
        error=action.error,
        log=action.log,
        worker=action.worker,
        times=times_of(action, started, 0.0 if result is None else sane_seconds(result.statistics.seconds)),
    )
    if result is None:
        return run
    measured = result.statistics
    return replace(
        run,
        artifact_bytes=sum(output.digest.size for output in result.outputs) if result.status == "ok" else None,
        seconds=sane_seconds(measured.seconds),
        codegen_seconds=sane_seconds(measured.codegen_seconds),
        cxx_seconds=sane_seconds(measured.cxx_seconds),
        link_seconds=sane_seconds(measured.link_seconds),
        peak_rss_bytes=sane_bytes(measured.peak_rss_bytes),
        log=action.log or result.log,
        maker=result.builder,
    )


def by_weight(runs: Sequence[Run]) -> list[int]:
    """Indices of runs, what matters most first: failures, then what was waited for, by time, then hits."""
    order = {"failed": 0, "hit": 2}

    def weight(index: int) -> tuple[int, float, int]:
        run = runs[index]
        return (order.get(run.outcome, 1), -(length(run.times) or run.seconds), index)

    return sorted(range(len(runs)), key=weight)


def _described(cache: Cache, runs: list[Run]) -> list[Run]:
    for index in by_weight(runs)[:DESCRIBED]:
        found = describe(cache, runs[index].fragment)
        if found is not None:
            runs[index] = replace(runs[index], label=found.label, source=found.source, nodes=found.nodes)
    return runs


def _phases(record: BuildRecord, facts: Facts) -> tuple[Phase, ...]:
    if not record.spans:
        return tuple(Phase(name=name, seconds=seconds) for name, seconds in facts.seconds if name != "total")
    found = []
    for span in record.spans:
        began = span.began - record.started
        ended = span.ended - record.started if span.ended > 0 else None
        seconds = max(0.0, (began if ended is None else ended) - began)
        found.append(Phase(name=span.name, seconds=seconds, began=began, ended=ended))
    return phases_in_lanes(found)


def _wall(record: BuildRecord, phases: Sequence[Phase], runs: Sequence[Run], facts: Facts) -> float | None:
    if not record.spans:
        total = dict(facts.seconds).get("total")
        return total or None
    known = [phase.ended if phase.ended is not None else phase.began or 0.0 for phase in phases]
    known += [run.times.ended for run in runs if run.times.ended is not None]
    return max(0.0, *known) if known else None


def _artifact_sizes(runs: Sequence[Run]) -> tuple[tuple[str, int, int], ...]:
    found: dict[str, tuple[int, int]] = {}
    for run in runs:
        if run.artifact_bytes is not None:
            count, size = found.get(run.target, (0, 0))
            found[run.target] = (count + 1, size + run.artifact_bytes)
    return tuple((target, count, size) for target, (count, size) in found.items())


def _events(cache: Cache, runs: Sequence[Run]) -> tuple[Event, ...]:
    numbers = {run.key: index for index, run in enumerate(runs)}
    found: list[Event] = []
    try:
        events = cache.actions.events()
    except CacheError:
        return ()
    for event in events:
        if event.action in numbers and len(found) < MAX_EVENTS:
            one = {output.name: output.digest for output in event.kept.outputs}
            two = {output.name: output.digest for output in event.other.outputs}
            differing = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
            found.append(
                Event(
                    run=numbers[event.action],
                    kept=event.kept.builder,
                    other=event.other.builder,
                    differing=tuple(differing) or (f"{event.kept.status}, then {event.other.status}",),
                )
            )
    return tuple(found)
