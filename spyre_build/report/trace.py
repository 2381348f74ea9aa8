"""The build as Chrome trace events, for ui.perfetto.dev or chrome://tracing.

Only what has times is there: a build that kept none gives a trace with its name and nothing else. Stages of a run were
measured, but not when each began; they are drawn one after the other from the run's beginning.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from spyre_build.report.timing import length

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spyre_build.report.model import Report, Run
    from spyre_build.report.timing import Phase

BUILD, PHASES = 1, 1
"""Process and first thread that the phases are on; workers are processes from 2 on, their lanes threads from 1 on."""
MAX_TEXT = 200
STAGES = "durations of codegen, cxx and link are measured; when each began is not, so they follow each other"

Event = dict[str, Any]


def trace_json(report: Report) -> str:
    """The trace as one JSON object; the same report gives the same text."""
    events = list(trace_events(report))
    about = {
        "build": report.id,
        "name": _text(report.name),
        "status": report.status,
        "stages": __doc__.split("\n\n")[1],
    }
    whole = {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}
    return json.dumps(whole, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"


def trace_events(report: Report) -> Iterator[Event]:
    """Metadata first, then everything by time."""
    workers = {run.worker for run in report.runs if run.times.began is not None}
    numbers = {name: BUILD + 1 + index for index, name in enumerate(sorted(workers))}
    yield from _names(report, numbers)
    events: list[Event] = []
    for phase in report.phases:
        events += _phase(phase)
    for index, run in enumerate(report.runs):
        events += _queued(index, run)
        if run.times.began is not None:
            process = numbers[run.worker]
            events += _run(run, process)
            events += _flow(index, run, process, report.phases)
    events += _counters(report.runs)
    order = {"E": 0, "e": 0, "X": 1, "B": 1, "b": 1}
    # An enclosing slice comes before what it encloses.
    events.sort(key=lambda event: (event["ts"], order.get(event["ph"], 2), -event.get("dur", 0)))
    yield from events


def _names(report: Report, workers: dict[str, int]) -> Iterator[Event]:
    def named(kind: str, process: int, thread: int, **values: Any) -> Event:
        return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": values}

    yield named("process_name", BUILD, 0, name=_text(f"build {report.id} of {report.name or report.spec}"))
    for lane in range(max((phase.lane for phase in report.phases), default=0) + 1):
        yield named("thread_name", BUILD, PHASES + lane, name="meanwhile" if lane else "phases")
    lanes: dict[str, int] = {}
    for run in report.runs:
        lanes[run.worker] = max(lanes.get(run.worker, 0), run.lane)
    for worker, process in workers.items():
        yield named("process_name", process, 0, name=_text(f"worker {worker}") if worker else "worker")
        yield named("process_sort_index", process, 0, sort_index=process)
        for lane in range(lanes[worker] + 1):
            yield named("thread_name", process, lane + 1, name=f"lane {lane + 1}")


def _slice(name: str, category: str, at: tuple[int, int], began: float, seconds: float, **values: Any) -> Event:
    # Beginning and end are rounded alike, so that what touches does not overlap.
    start = _micros(began)
    event = {"ph": "X", "name": _text(name), "cat": category, "pid": at[0], "tid": at[1], "ts": start}
    return event | {"dur": max(0, _micros(began + seconds) - start), "args": values}


def _phase(phase: Phase) -> list[Event]:
    if phase.began is None:
        return []
    at = (BUILD, PHASES + phase.lane)
    if phase.ended is None:
        begin = {"ph": "B", "name": _text(phase.name), "cat": "phase", "pid": at[0], "tid": at[1]}
        return [begin | {"ts": _micros(phase.began), "args": {}}]
    return [_slice(phase.name, "phase", at, phase.began, phase.seconds)]


def _queued(index: int, run: Run) -> list[Event]:
    """Many wait at once, so they have no track of their own but are asynchronous events."""
    queued, began = run.times.queued, run.times.began
    if queued is None or began is None or began <= queued:
        return []
    common = {"name": "queued", "cat": "queue", "id": index + 1, "pid": BUILD, "tid": PHASES}
    return [
        common | {"ph": "b", "ts": _micros(queued), "args": {"fragment": str(run.fragment), "what": _text(run.title)}},
        common | {"ph": "e", "ts": _micros(began)},
    ]


def _run(run: Run, process: int) -> list[Event]:
    times, at = run.times, (process, run.lane + 1)
    began = times.began or 0.0
    about = {
        "fragment": str(run.fragment),
        "target": _text(run.target),
        "action": run.key,
        "outcome": run.outcome,
        "source": _text(run.source),
        "error": _text(run.error),
        "measured_seconds": round(run.seconds, 6),
        "peak_rss_bytes": run.peak_rss_bytes,
        "artifact_bytes": run.artifact_bytes,
    }
    about = {name: value for name, value in about.items() if value not in ("", 0, None)}
    if times.ended is None:
        begin = {"ph": "B", "name": _text(run.title), "cat": "run", "pid": at[0], "tid": at[1]}
        return [begin | {"ts": _micros(began), "args": about}]
    whole = length(times)
    found = [_slice(run.title, "run", at, began, whole, **about)]
    stages = (("codegen", run.codegen_seconds), ("cxx", run.cxx_seconds), ("link", run.link_seconds))
    offset = 0.0
    for name, seconds in stages:
        shown = min(seconds, whole - offset)
        if shown > 0:
            found.append(_slice(name, "stage", at, began + offset, shown))
            offset += shown
    return found


def _flow(index: int, run: Run, process: int, phases: Sequence[Phase]) -> list[Event]:
    """An arrow from the phase that handed it out to the run; without such a phase it would hang in the air."""
    queued, began = run.times.queued, run.times.began
    if queued is None or began is None or began < queued:
        return []
    around = [p for p in phases if p.began is not None and p.ended is not None and p.began <= queued < p.ended]
    if not around:
        return []
    common = {"name": "dispatch", "cat": "dispatch", "id": index + 1, "args": {}}
    return [
        common | {"ph": "s", "pid": BUILD, "tid": PHASES + around[0].lane, "ts": _micros(queued)},
        common | {"ph": "f", "bp": "e", "pid": process, "tid": run.lane + 1, "ts": _micros(began)},
    ]


def _counters(runs: Sequence[Run]) -> list[Event]:
    """How many wait and how many run, whenever that changes."""
    changes: dict[int, list[int]] = {}
    for run in runs:
        queued, began, ended = run.times.queued, run.times.began, run.times.ended
        for moment, waiting, running in (
            (queued if began is None or (queued is not None and queued <= began) else None, 1, 0),
            (began, -1 if queued is not None and began is not None and queued <= began else 0, 1),
            (ended if began is not None else None, 0, -1),
        ):
            if moment is not None:
                change = changes.setdefault(_micros(moment), [0, 0])
                change[0] += waiting
                change[1] += running
    found, now = [], [0, 0]
    for moment in sorted(changes):
        now = [now[0] + changes[moment][0], now[1] + changes[moment][1]]
        values = {"queued": max(0, now[0]), "running": max(0, now[1])}
        found.append({"ph": "C", "name": "actions", "pid": BUILD, "tid": 0, "ts": moment, "args": values})
    return found


def _micros(seconds: float) -> int:
    # A week before the build's start, or a century after it, is a broken clock; a trace viewer would choke on more.
    return round(min(max(seconds, -7 * 86400.0), 3.2e9) * 1e6)


def _text(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
