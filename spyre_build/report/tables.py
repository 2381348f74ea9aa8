"""Rows of the page's tables: numbers said for people, text cut and cleaned, lists bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spyre_build.report.figures import piece, stages
from spyre_build.report.timing import length
from spyre_build.report.words import clean, count, number, percent, seconds, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre_build.report.model import Report, Run
    from spyre_build.report.timing import Segment
    from spyre_build.report.why import Reason

MAX_CHAIN = 20
"""Steps of the critical path from which on short ones are told together."""
MAX_APART = 6
TRIFLE = 1 / 400
"""Share of the wall-clock below which a pause or a phase is left out of the critical path's table."""
MAX_WORKERS = 64
MAX_ENTRIES = 60
MAX_PHASES = 30
MAX_NAMED = 6

Row = dict[str, Any]


def named(run: Run) -> Row:
    """What a run is called everywhere on the page."""
    users = ", ".join(run.users[:3]) + ("…" if len(run.users) > 3 else "")
    return {
        "title": clean(run.title, 120),
        "users": clean(users, 120),
        "digest": run.fragment.short,
        "source": clean(run.source, 120),
    }


def phase_rows(report: Report) -> list[Row]:
    """Phases in order; where only lengths are known, their bars all begin at the left."""
    wall = report.wall or sum(phase.seconds for phase in report.phases)
    rows = []
    for phase in report.phases[:MAX_PHASES]:
        open_ = phase.began is not None and phase.ended is None
        rows.append(
            {
                "name": clean(phase.name, 80),
                "seconds": "not ended" if open_ else seconds(phase.seconds),
                "share": "" if open_ or wall <= 0 else percent(min(1.0, phase.seconds / wall)),
                "bar": [piece("phase", phase.began or 0.0, phase.seconds, wall)],
            }
        )
    return rows


def chain_rows(report: Report) -> list[Row]:
    """The critical path in order; of many compilations in a row, the longest by themselves and the rest together."""
    wall = report.wall or 0.0
    # A row for every moment between two runs would hide what matters.
    chain = [s for s in report.chain if s.seconds >= (wall / 10_000 if s.kind == "run" else wall * TRIFLE)]
    if len(chain) <= 1 and all(segment.kind == "phase" for segment in chain):
        return []
    apart = set(range(len(chain)))
    if len(chain) > MAX_CHAIN:
        runs = sorted((i for i, s in enumerate(chain) if s.kind == "run"), key=lambda i: (-chain[i].seconds, i))
        apart = {*runs[:MAX_APART], *(i for i, s in enumerate(chain) if s.kind == "phase")}
    rows: list[Row] = []
    together: list[Segment] = []
    for index, segment in enumerate(chain):
        if index not in apart:
            together.append(segment)
            continue
        rows += _together(together, wall)
        together = []
        rows.append(_segment(report, segment, wall))
    return rows + _together(together, wall)


def _together(segments: Sequence[Segment], wall: float) -> list[Row]:
    if not segments:
        return []
    runs = sum(segment.kind == "run" for segment in segments)
    pauses = sum(segment.seconds for segment in segments if segment.kind == "wait")
    text = f"{count(runs, 'shorter compilation')} in a row" if runs else "waiting"
    if runs and pauses >= 0.0005:
        text += f", with {seconds(pauses)} between them"
    last = segments[-1]
    length = last.began + last.seconds - segments[0].began
    row = {"run": None, "text": text, "where": clean(last.worker, 80), "began": seconds(max(0.0, segments[0].began))}
    share = percent(min(1.0, length / wall)) if wall > 0 else ""
    kind = "many" if runs else "wait"
    return [row | {"seconds": seconds(length), "share": share, "bar": [piece(kind, segments[0].began, length, wall)]}]


def _segment(report: Report, segment: Segment, wall: float) -> Row:
    run = report.runs[segment.run] if segment.run >= 0 else None
    where = clean(segment.worker, 80) or ("submitter" if segment.kind == "phase" else "")
    return {
        "run": None if run is None else named(run),
        "text": clean(segment.text, 120),
        "where": where,
        "began": seconds(max(0.0, segment.began)),
        "seconds": seconds(segment.seconds),
        "share": percent(min(1.0, segment.seconds / wall)) if wall > 0 else "",
        "bar": [piece(segment.kind, segment.began, segment.seconds, wall)],
    }


def worker_rows(report: Report) -> list[Row]:
    """Workers, the busiest first."""
    rows = []
    for worker in sorted(report.workers, key=lambda worker: (-worker.busy, worker.name))[:MAX_WORKERS]:
        idle = max(0.0, worker.window * worker.lanes - worker.busy)
        rows.append(
            {
                "name": clean(worker.name, 80) or "worker",
                "runs": worker.runs,
                "lanes": worker.lanes,
                "busy": seconds(worker.busy),
                "busy_v": f"{worker.busy:.3f}",
                "idle": seconds(idle),
                "idle_v": f"{idle:.3f}",
                "share": percent(worker.share),
                "share_v": f"{worker.share:.4f}",
                "bar": [piece("run", 0, worker.share, 1)],
            }
        )
    return rows


def reason_rows(report: Report) -> list[Row]:
    """Why runs missed, with some of those that did."""
    rows = []
    for reason in report.reasons:
        members = ""
        if len(reason.runs) > 1:
            members = ", ".join(_name(report.runs[index]) for index in reason.runs[:MAX_NAMED])
            more = len(reason.runs) - MAX_NAMED
            members += f", and {number(more)} more" if more > 0 else ""
        rows.append(
            {
                "head": _head(report, reason),
                "texts": [clean(text) for text in reason.texts],
                "more": reason.more,
                "near": clean(reason.near[:12]),
                "members": members,
            }
        )
    return rows


def _name(run: Run) -> str:
    return f"{clean(run.title, 80)} ({run.fragment.short})"


def _head(report: Report, reason: Reason) -> str:
    several = len(reason.runs) > 1
    those = count(len(reason.runs), "fragment") if several else _name(report.runs[reason.runs[0]])
    if reason.kind == "new":
        return f"{those}: nothing in the cache was like {'them' if several else 'it'}"
    if reason.kind == "unknown":
        return f"{those}: not compared, as the cache holds too much; `explain` with a fragment's digest does it"
    return f"{those}: " + ("the same graph is there, but for" if reason.same else "another graph is near, but for")


def run_rows(report: Report, shown: Sequence[int]) -> list[Row]:
    """The table of fragments."""
    rows = []
    for index in shown:
        run = report.runs[index]
        bars, words = stages(run)
        queued, began = run.times.queued, run.times.began
        wait = None if queued is None or began is None or began < queued else began - queued
        took = length(run.times) or run.seconds
        rows.append(
            named(run)
            | {
                "outcome": run.outcome,
                "target": clean(run.target, 60),
                "calls": run.calls or "",
                "nodes": run.nodes or "",
                "graph": size(run.fragment.size),
                "graph_v": run.fragment.size,
                "artifact": "" if run.artifact_bytes is None else size(run.artifact_bytes),
                "artifact_v": "" if run.artifact_bytes is None else run.artifact_bytes,
                "queued": "" if wait is None else seconds(wait),
                "queued_v": "" if wait is None else f"{wait:.3f}",
                "seconds": seconds(took) if took > 0 else "",
                "seconds_v": f"{took:.3f}" if took > 0 else "",
                "stages": bars,
                "stage_words": words,
                "rss": size(run.peak_rss_bytes) if run.peak_rss_bytes else "",
                "rss_v": run.peak_rss_bytes or "",
                "worker": clean(run.worker, 60),
                "maker": clean(run.maker, 60) if run.outcome == "hit" else "",
            }
        )
    return rows


def failure_rows(report: Report) -> tuple[list[Row], str]:
    """Failures in the user's words; and how many are left out, in words."""
    rows = []
    for failure in report.failures:
        run = report.runs[failure.run]
        rows.append(
            named(run)
            | {
                "kind": clean(failure.kind, 40),
                "error": clean(failure.error, 1000),
                "lines": [clean(line) for line in failure.lines],
                "more": failure.more,
                "target": clean(run.target, 60),
                "key": run.key[:12],
                "action": run.key,
                "log": "",
            }
        )
    more = report.failed - len(rows)
    return rows, f"{count(more, 'more fragment')} failed: spyre-build status {report.id}" if more > 0 else ""


def event_rows(report: Report) -> list[Row]:
    """Nondeterminism events."""
    return [
        named(report.runs[event.run])
        | {
            "differing": clean(", ".join(event.differing), 200),
            "kept": clean(event.kept, 80) or "not said",
            "other": clean(event.other, 80) or "not said",
        }
        for event in report.events
    ]


def entry_rows(report: Report) -> tuple[list[Row], str]:
    """Entries with their calls; and how many are left out, in words."""
    most = max((entry.calls for entry in report.entries), default=0)
    rows = [
        {
            "name": clean(entry.name, 120),
            "calls": entry.calls,
            "unique": entry.unique,
            "bar": [piece("many", 0, entry.calls, most), piece("run", 0, entry.unique, most)],
        }
        for entry in report.entries[:MAX_ENTRIES]
    ]
    more = len(report.entries) - len(rows)
    return rows, f"{count(more, 'more entry', 'more entries')}" if more > 0 else ""


def size_rows(report: Report) -> list[Row]:
    """Bytes of everything."""
    sizes = report.sizes
    rows = []
    if report.total:
        rows.append({"what": "fragments (graphs)", "count": report.distinct, "size": size(sizes.fragments)})
    for target, many, total in sizes.artifacts:
        rows.append({"what": f"artifacts for {clean(target, 60)}", "count": many, "size": size(total)})
    if sizes.weights is not None:
        where = {"store": "kept in the cache", "external": "given at load", "none": "not kept"}.get(
            sizes.weight_mode, ""
        )
        rows.append({"what": f"weights, {where}", "count": sizes.weight_count, "size": size(sizes.weights)})
    if sizes.plan is not None:
        rows.append({"what": "the plan", "count": 1, "size": size(sizes.plan)})
    return rows
