"""Bars and time lines as percentages of their width, so that they need no script and fit any screen."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from spyre_build.report.timing import length
from spyre_build.report.words import clean, count, number, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre_build.report.model import Report, Run

MAX_LANES = 16
MAX_PHASES, MAX_PHASE_LANES = 30, 4
NARROW = 0.5
"""Percent of the width; what is narrower, and near its like, is drawn as one."""

Piece = dict[str, Any]


def piece(kind: str, began: float, size: float, whole: float, text: str = "") -> Piece:
    """A rectangle from `began` on a line that is `whole` long, cut to it."""
    if whole <= 0:
        return {"kind": kind, "x": 0, "width": 0, "text": text}
    start = min(max(began / whole, 0.0), 1.0) * 100
    end = min(max((began + size) / whole, 0.0), 1.0) * 100
    return {
        "kind": kind,
        "x": _number(start),
        "width": _number(max(end - start, 0.15 if size > 0 else 0.0)),
        "text": text,
    }


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def split(report: Report) -> list[Piece]:
    """Outcomes as parts of one bar."""
    parts = (
        ("hit", report.hits, "in the cache"),
        ("compiled", report.compiled, "compiled"),
        ("waited", report.waited, "compiled by another build, waited for"),
        ("failed", report.failed, "failed"),
        ("planned", report.open, "open"),
    )
    found, before = [], 0
    for kind, many, words in parts:
        if many:
            found.append(piece(kind, before, many, report.total, f"{number(many)} {words}"))
            before += many
    return found


def stages(run: Run) -> tuple[list[Piece], str]:
    """The stages of a compilation as parts of its time, and in words."""
    known = (("codegen", run.codegen_seconds), ("cxx", run.cxx_seconds), ("link", run.link_seconds))
    if run.seconds <= 0 or not any(value for _, value in known):
        return [], ""
    found, before = [], 0.0
    for kind, value in known:
        found.append(piece(kind, before, value, run.seconds))
        before += value
    found.append(piece("rest", before, max(0.0, run.seconds - before), run.seconds))
    return found, " + ".join(f"{value:.1f}" for _, value in known) + f" + {max(0.0, run.seconds - before):.1f} s"


def lanes(report: Report) -> tuple[list[dict[str, Any]], str]:
    """The phases and what every lane of every worker did, on one axis; and what is left out, in words."""
    wall = report.wall or 0.0
    placed = [run for run in report.runs if run.times.began is not None and run.times.ended is not None]
    if not placed or wall <= 0:
        return [], ""
    found = _phase_lanes(report, wall)
    by_lane: defaultdict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in placed:
        by_lane[run.worker, run.lane].append(run)
    wide = {worker for worker, lane in by_lane if lane > 0}
    for worker, lane in sorted(by_lane)[:MAX_LANES]:
        runs = sorted(by_lane[worker, lane], key=lambda run: (run.times.began or 0.0, run.key))
        name = clean(worker, 80) or "worker"
        found.append(
            {
                "name": f"{name} · {lane + 1}" if worker in wide else name,
                "pieces": _pieces(runs, wall),
                "words": f"{name}: {count(len(runs), 'run')}, {seconds(sum(length(r.times) for r in runs))} of work",
            }
        )
    more = len(by_lane) - MAX_LANES
    return found, f"{count(more, 'more line')} are left out; the trace has them all." if more > 0 else ""


def _phase_lanes(report: Report, wall: float) -> list[dict[str, Any]]:
    found = []
    phases = [phase for phase in report.phases if phase.began is not None and phase.ended is not None]
    for lane in sorted({phase.lane for phase in phases})[:MAX_PHASE_LANES]:
        mine = [phase for phase in phases if phase.lane == lane][:MAX_PHASES]
        words = ", ".join(f"{clean(phase.name, 80)} {seconds(phase.seconds)}" for phase in mine)
        pieces = [
            piece("phase", p.began or 0.0, p.seconds, wall, f"{clean(p.name, 80)}, {seconds(p.seconds)}") for p in mine
        ]
        found.append({"name": "meanwhile" if lane else "phases", "pieces": pieces, "words": f"Phases: {words}"})
    return found


def _pieces(runs: Sequence[Run], wall: float) -> list[Piece]:
    found: list[Piece] = []
    short: list[Run] = []

    def flush() -> None:
        if not short:
            return
        began = min(run.times.began or 0.0 for run in short)
        ended = max(run.times.ended or 0.0 for run in short)
        if len(short) == 1:
            found.append(_single(short[0], wall))
        else:
            busy = sum(length(run.times) for run in short)
            failed = sum(run.outcome == "failed" for run in short)
            text = f"{len(short)} short runs, {seconds(busy)} of work" + (f", {failed} failed" if failed else "")
            found.append(piece("many", began, ended - began, wall, text))
        short.clear()

    limit = wall * NARROW / 100
    for run in runs:
        if length(run.times) >= limit:
            flush()
            found.append(_single(run, wall))
            continue
        if short and (run.times.began or 0.0) - (short[-1].times.ended or 0.0) > limit:
            flush()
        short.append(run)
    flush()
    return found


def _single(run: Run, wall: float) -> Piece:
    kind = {"failed": "failed", "waited": "waited"}.get(run.outcome, "run")
    times = run.times
    text = f"{clean(run.title, 120)} ({run.fragment.short}), {run.outcome}, {seconds(length(times))}"
    return piece(kind, times.began or 0.0, length(times), wall, text)


def ticks(report: Report) -> list[dict[str, Any]]:
    """Five marks of the time axis."""
    wall = report.wall or 0.0
    anchors = ("start", "middle", "middle", "middle", "end")
    return [{"x": 25 * i, "anchor": anchors[i], "text": seconds(wall * i / 4)} for i in range(5)]
