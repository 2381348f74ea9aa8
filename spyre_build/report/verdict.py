"""What to say first about a build: how it went, what bounded it, what the cache spared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyre_build.report.timing import length
from spyre_build.report.words import count, number, percent, seconds, size

if TYPE_CHECKING:
    from spyre_build.report.model import Report

BUSY = 0.8
"""Share of their lanes' time from which on workers count as fully used."""


def sentences(report: Report) -> list[str]:
    """The most important first."""
    found = [_status(report), _time(report), _bound(report), _spared(report)]
    return [sentence for sentence in found if sentence]


def _status(report: Report) -> str:
    if report.status == "running":
        return f"Still running{_open(report)}." + (f" {_cached(report)}" if report.total else "")
    if report.status == "died":
        where = f" in the phase {report.phases[-1].name}" if report.phases else ""
        return (
            f"The process that ran this build is gone{where}{_open(report)}. What was finished is kept: submitting the "
            "same again goes on from there."
        )
    if report.status == "left":
        return f"Nobody drives this build any more{_open(report)}: `spyre-build watch {report.id}` goes on with it."
    if report.status == "cancelled":
        return f"Cancelled{_open(report)}. What was finished is kept."
    if report.status == "failed" and report.failed < max(1, report.total):
        when = " before there was a plan" if not report.total else ""
        return f"The build failed{when}: {report.error or 'no reason was kept'}"
    if report.failed:
        bad = f"{number(report.failed)} of {count(report.total, 'fragment')} could not be compiled"
        rest = "" if report.status == "failed" else f"; {_others(report.total - report.failed)}"
        return f"{bad}{rest}."
    return _cached(report) if report.total else "There was nothing to compile."


def _others(rest: int) -> str:
    return "the other one is ready" if rest == 1 else f"the other {number(rest)} are ready"


def _open(report: Report) -> str:
    return f", with {number(report.open)} of {count(report.total, 'fragment')} open" if report.open else ""


def _cached(report: Report) -> str:
    if report.hits == report.total:
        return "All came from the cache: nothing was compiled."
    if report.hits == 0 and report.waited == 0:
        return f"Nothing was in the cache: {count(report.compiled, 'fragment was', 'fragments were')} compiled."
    parts = [f"{number(report.hits)} of {count(report.total, 'fragment')} came from the cache"]
    if report.compiled:
        parts.append(f"{number(report.compiled)} {'was' if report.compiled == 1 else 'were'} compiled")
    if report.waited:
        those = "it" if report.waited == 1 else "them"
        parts.append(f"{number(report.waited)} came from other builds that compiled {those}")
    return ", ".join(parts) + "."


def _time(report: Report) -> str:
    if not report.wall or not report.phases:
        return ""
    longest = sorted((p for p in report.phases if p.seconds > 0), key=lambda phase: -phase.seconds)[:2]
    parts = [f"{p.name} took {seconds(p.seconds)} ({percent(min(1.0, p.seconds / report.wall))})" for p in longest]
    whole = "in all" if report.ended else "so far"
    return f"{seconds(report.wall)} {whole}: {', '.join(parts)}." if parts else f"{seconds(report.wall)} {whole}."


def _bound(report: Report) -> str:
    """Whether more workers would have helped; only where it is known who ran what when."""
    chain = [report.runs[segment.run] for segment in report.chain if segment.run >= 0]
    if not chain or not report.workers:
        return ""
    longest = max((run for run in report.runs if run.times.began is not None), key=lambda run: length(run.times))
    busy = sum(worker.busy for worker in report.workers)
    room = sum(worker.window * worker.lanes for worker in report.workers)
    used = min(1.0, busy / room) if room > 0 else 0.0
    who = count(len(report.workers), "worker was", "workers were")
    head = f"{who} busy for {percent(used)} of the time"
    floor = f"the longest single compilation, {longest.title}, takes {seconds(length(longest.times))}"
    if len(chain) == 1:
        return f"{head}; {floor}, and nothing but that was waited for: more workers would not help."
    if used >= BUSY:
        row = f"{len(chain)} compilations one after the other"
        return f"{head}, {row}: more workers would help, down to a point ({floor})."
    return f"{head}; the last result had {count(len(chain), 'compilation')} in a row before it, and {floor}."


def _spared(report: Report) -> str:
    hits = f"hits spared {seconds(report.saved)} of compiling" if report.saved > 0 else ""
    calls = f"calls that share a fragment spared {seconds(report.shared)}" if report.shared > 0 else ""
    text = f"{hits}, and {calls} more" if hits and calls else hits or (f"{calls} of compiling" if calls else "")
    return f"{text[0].upper()}{text[1:]}." if text else ""


def tiles(report: Report) -> list[dict[str, str]]:
    """A handful of numbers."""
    found = []

    def tile(value: str, words: str) -> None:
        found.append({"value": value, "words": words})

    if report.wall:
        tile(seconds(report.wall), "wall-clock" if report.ended else "known so far")
    if report.total:
        tile(f"{number(report.hits)} of {number(report.total)}", "in the cache")
    if report.compiled:
        tile(number(report.compiled), "compiled")
    if report.waited:
        tile(number(report.waited), "waited for")
    if report.failed:
        tile(number(report.failed), "failed")
    if report.open:
        tile(number(report.open), "open")
    if report.spent > 0:
        tile(seconds(report.spent), "of compiling, over all workers")
    if report.calls > report.distinct > 0:
        tile(f"{number(report.calls)} → {number(report.distinct)}", "fragment calls to fragments")
    made = sum(taken for _, _, taken in report.sizes.artifacts)
    if made:
        tile(size(made), "of artifacts")
    for name, value in report.peak_rss_bytes:
        tile(
            size(value), {"plan": "memory of the submitter", "compile": "memory of the largest compile"}.get(name, name)
        )
    return found


def rows_words(report: Report, shown: int) -> str:
    """What the table of fragments holds."""
    words = "Failures first, then by the time their compilation took, then what came from the cache."
    if shown < report.total:
        rest = report.total - shown
        words += (
            f" The first {shown} of {number(report.total)}; the other {number(rest)} are in the trace and in `explain`."
        )
    return words + " The time of a hit is what it took when it was made."


def dedup(report: Report) -> str:
    """How calls share fragments."""
    if not report.calls:
        return "How often each entry calls fragments, and how many of those are different."
    sharing = max(0, report.calls - report.distinct)
    return (
        f"{count(report.calls, 'fragment call')} in all, of {count(report.distinct, 'different fragment')}: "
        f"{number(sharing)} {'shares' if sharing == 1 else 'share'} another's."
    )
