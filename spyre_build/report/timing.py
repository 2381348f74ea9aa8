"""When things ran: spans on one axis, lanes of workers, and the chain that bounded the wall-clock. Pure.

Seconds count from the build's start. Workers tell when they began by their own clocks, so what contradicts the
submitter's is set right by the measured duration, and counted. None stands for what is not known.
"""

from __future__ import annotations

import bisect
import heapq
from collections import defaultdict
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from spyre_cache.codec import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spyre_build.builds import BuildAction
    from spyre_build.report.model import Run

TOLERANCE = 2.0
"""Seconds by which clocks may differ, or a busy submitter may be late to note a time, before it is worth a word."""
_TOUCH = 0.01
"""Seconds by which one run may begin before the last one's end and still share its lane."""


class Phase(Record, frozen=True, kw_only=True):
    """A phase of a build; `began` is None where only its length was kept, `ended` is None while it lasts.

    `lane` is 0, or more for what went on while another phase did.
    """

    name: str
    seconds: float
    began: float | None = None
    ended: float | None = None
    lane: int = 0


class Times(Record, frozen=True, kw_only=True):
    """When an action was handed out, began and ended, as far as it is known; `skewed` when clocks disagreed."""

    queued: float | None = None
    began: float | None = None
    ended: float | None = None
    skewed: bool = False


class Worker(Record, frozen=True, kw_only=True):
    """What one worker did for the build.

    Attributes:
        lanes: most runs at once.
        busy: seconds, summed over runs.
        window: seconds from the build's first dispatch to its last result.
    """

    name: str
    runs: int
    lanes: int
    busy: float
    window: float

    @property
    def share(self) -> float:
        """Of the time that its lanes had, the part that was used; 0 to 1."""
        return min(1.0, self.busy / (self.window * self.lanes)) if self.window > 0 else 0.0


class Segment(Record, frozen=True, kw_only=True):
    """A piece of the chain that bounded the wall-clock; `run` is an index into the report's runs, -1 for none."""

    kind: Literal["phase", "run", "wait"]
    text: str
    began: float
    seconds: float
    run: int = -1
    worker: str = ""


def times_of(action: BuildAction, started: float, seconds: float) -> Times:
    """An action's times on the build's axis.

    Args:
        action: as recorded; hits have no times.
        started: the build's start, seconds since the epoch.
        seconds: measured length of its run, 0 when it is not known.
    """
    if action.outcome == "hit":
        return Times()
    queued = action.queued - started if action.queued > 0 else None
    known = action.ended - started if action.ended > 0 else None
    began = action.began - started if action.began > 0 else None
    if known is None:
        return Times(queued=queued, began=began)
    # Another build's run may well have begun before this one asked for it.
    first = queued if queued is not None and action.outcome != "waited" else None
    skewed = False
    if began is not None and (began > known + TOLERANCE or (first is not None and began < first - TOLERANCE)):
        began, skewed = None, True
    if began is None and (skewed or action.worker) and seconds > 0:
        began = known - seconds
    if began is None:
        return Times(queued=queued, ended=known, skewed=skewed)
    began = min(began, known)
    if first is not None:
        queued = min(first, began)
    ended = min(known, began + seconds) if seconds > 0 else known
    return Times(queued=queued, began=began, ended=ended, skewed=skewed)


def in_lanes(runs: Sequence[Run]) -> list[Run]:
    """The runs with their lanes: a worker that runs two things at once has two."""
    found = list(runs)
    by_worker: defaultdict[str, list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        if run.times.began is not None:
            by_worker[run.worker].append(index)
    for indices in by_worker.values():
        times = [(runs[index].times.began or 0.0, runs[index].times.ended) for index in indices]
        for index, lane in zip(indices, _lanes(times), strict=True):
            found[index] = replace(runs[index], lane=lane)
    return found


def phases_in_lanes(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """The phases by their beginning, with their lanes: some go on while others do."""
    order = sorted(phases, key=lambda phase: (phase.began or 0.0, -phase.seconds))
    lanes = _lanes([(phase.began or 0.0, phase.ended) for phase in order])
    return tuple(replace(phase, lane=lane) for phase, lane in zip(order, lanes, strict=True))


def _lanes(times: Sequence[tuple[float, float | None]]) -> list[int]:
    """The lowest line for each interval on which nothing else is; an open end lasts for ever."""
    found = [0] * len(times)
    busy: list[tuple[float, int]] = []  # (end, lane) of lanes at work
    free: list[int] = []
    for index in sorted(range(len(times)), key=lambda i: (times[i][0], i)):
        began, ended = times[index]
        while busy and busy[0][0] <= began + _TOUCH:
            heapq.heappush(free, heapq.heappop(busy)[1])
        found[index] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (float("inf") if ended is None else ended, found[index]))
    return found


def workers_of(runs: Iterable[Run]) -> tuple[Worker, ...]:
    """Workers by name, with what they did; only runs whose beginning and end are known count."""
    by_name: defaultdict[str, list[Run]] = defaultdict(list)
    first, last = float("inf"), 0.0
    for run in runs:
        times = run.times
        if times.began is not None and times.ended is not None:
            by_name[run.worker].append(run)
            first = min(first, times.began if times.queued is None else times.queued)
            last = max(last, times.ended)
    return tuple(
        Worker(
            name=name,
            runs=len(mine),
            lanes=1 + max(run.lane for run in mine),
            busy=sum(length(run.times) for run in mine),
            window=max(0.0, last - first),
        )
        for name, mine in sorted(by_name.items())
    )


def length(times: Times) -> float:
    """Seconds from beginning to end; 0 where either is not known."""
    return 0.0 if times.began is None or times.ended is None else max(0.0, times.ended - times.began)


def critical_chain(phases: Sequence[Phase], runs: Sequence[Run]) -> tuple[Segment, ...]:
    """What bounded the wall-clock: phase after phase, and within those that runs fill, the runs one waited for.

    The chain goes backwards: before a phase came the one that ended last when it began, so that what went on meanwhile
    is no part of it; before a run came whatever kept its lane busy while it waited.
    """
    by_lane: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        if run.times.began is not None and run.times.ended is not None:
            by_lane[run.worker, run.lane].append(index)
    for indices in by_lane.values():
        indices.sort(key=lambda i: (runs[i].times.ended or 0.0, i))
    found: list[Segment] = []
    at, later = float("inf"), ""
    placed = [(phase.ended, phase.began, phase.name) for phase in phases if phase.ended is not None]
    for ended, began, name in sorted(placed, key=lambda item: (-item[0], item[1] or 0.0)):
        if began is None or ended > at + _TOUCH or began >= at:
            continue
        until = min(ended, at)
        if later and at > until:
            found.append(Segment(kind="wait", text=f"between {name} and {later}", began=until, seconds=at - until))
        found += _inside(name, began, until, runs, by_lane)[::-1]
        at, later = began, name
    if later and at > 0:
        found.append(Segment(kind="wait", text=f"before {later}", began=0.0, seconds=at))
    return tuple(segment for segment in found[::-1] if segment.seconds > 0)


def _inside(
    name: str, began: float, ended: float, runs: Sequence[Run], by_lane: dict[tuple[str, int], list[int]]
) -> list[Segment]:
    lasts = []
    for indices in by_lane.values():
        at = bisect.bisect_right(indices, ended, key=lambda i: runs[i].times.ended or 0.0) - 1
        if at >= 0 and (runs[indices[at]].times.ended or 0.0) > began:
            lasts.append((runs[indices[at]].times.ended or 0.0, indices, at))
    if not lasts:
        return [Segment(kind="phase", text=name, began=began, seconds=ended - began)]
    end, indices, at = max(lasts, key=lambda last: (last[0], -last[1][last[2]]))
    back = [Segment(kind="phase", text=f"{name}: taking in the results", began=end, seconds=ended - end)]
    while True:
        run = runs[indices[at]]
        start, stop = max(began, run.times.began or 0.0), run.times.ended or 0.0
        back.append(Segment(kind="run", text="", began=start, seconds=stop - start, run=indices[at], worker=run.worker))
        asked = began if run.times.queued is None else max(began, run.times.queued)
        before = (runs[indices[at - 1]].times.ended or 0.0) if at > 0 else began
        if at == 0 or before <= asked or before <= began:
            if start > asked:
                back.append(Segment(kind="wait", text="waiting for a worker", began=asked, seconds=start - asked))
            back.append(
                Segment(kind="phase", text=f"{name}: handing out", began=began, seconds=min(asked, start) - began)
            )
            return back[::-1]
        if start > before:
            back.append(
                Segment(kind="wait", text="between two runs", began=before, seconds=start - before, worker=run.worker)
            )
        at -= 1
