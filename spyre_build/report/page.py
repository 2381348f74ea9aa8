"""The report as one HTML file: no network, no script needed, bounded whatever the build was.

Everything that a user or another machine wrote goes through the template's escaping, cut to a length and with what
cannot be seen spelled out; the page's own policy allows no script but ours, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from spyre_build.report import figures, verdict
from spyre_build.report.logs import embedded_logs
from spyre_build.report.model import by_weight
from spyre_build.report.tables import (
    chain_rows,
    entry_rows,
    event_rows,
    failure_rows,
    phase_rows,
    reason_rows,
    run_rows,
    size_rows,
    worker_rows,
)
from spyre_build.report.words import clean, count, moment, seconds

if TYPE_CHECKING:
    import jinja2

    from spyre_build.report.model import Report
    from spyre_cache.cache import Cache

MAX_ROWS = 200
MAX_PAGE_BYTES = 5 << 20
MAX_NOTES = 50
UNFOLDED = 10
"""Failures that are told at once; the rest of them are folded."""

_MARKS = {"ok": "✓", "partial": "◐", "failed": "✕", "died": "✕", "running": "▸", "left": "◌", "cancelled": "■"}
_SECTIONS = (
    ("failures", "What failed"),
    ("notes", "To know"),
    ("phases", "Where the time went"),
    ("lanes", "Workers"),
    ("reasons", "Why the rest missed"),
    ("rows", "Fragments"),
    ("entries", "Entries"),
    ("sizes", "Sizes"),
    ("logs", "Logs"),
)
_IDS = {"phases": "time", "lanes": "workers", "reasons": "misses", "rows": "fragments"}


def render(report: Report, cache: Cache | None = None) -> str:
    """The page; the same report gives the same page.

    Args:
        report: what it says.
        cache: where the logs are; without it, the page has none.
    """
    template, style, script = _assets()
    from markupsafe import Markup

    logs = embedded_logs(report, cache, by_weight(report.runs)) if cache is not None else []
    view = _view(report)
    page = ""
    # Only logs can make a page too large, and only when every byte of them has to be escaped.
    for kept in (logs, logs[: len(logs) // 4], []):
        _with_logs(view, kept, report)
        page = template.render(
            p=view,
            style=Markup(style),  # noqa: S704  our own file
            script=Markup(script),  # noqa: S704  our own file
            style_hash=_policy_hash(style),
            script_hash=_policy_hash(script),
        )
        if len(page.encode()) <= MAX_PAGE_BYTES:
            break
    return page


@lru_cache(maxsize=1)
def _assets() -> tuple[jinja2.Template, str, str]:
    import jinja2

    ours = files("spyre_build.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(ours.joinpath("page.html.j2").read_text(encoding="utf-8"))
    return (
        template,
        ours.joinpath("page.css").read_text(encoding="utf-8"),
        ours.joinpath("page.js").read_text(encoding="utf-8"),
    )


def _policy_hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _view(report: Report) -> dict[str, Any]:
    weighed = by_weight(report.runs)
    shown = weighed[:MAX_ROWS]
    lanes, lanes_more = figures.lanes(report)
    failures, failures_more = failure_rows(report)
    entries, entries_more = entry_rows(report)
    pieces = [piece for lane in lanes for piece in lane["pieces"]]
    manifest = clean(report.manifest, 80)
    return {
        "id": clean(report.id),
        "name": clean(report.name or report.spec or report.id, 120),
        "status": report.status,
        "mark": _MARKS.get(report.status, "•"),
        "bad": report.status in {"failed", "died"},
        "spec": clean(report.spec),
        "started": moment(report.started),
        "targets": clean(", ".join(report.targets)),
        "manifest": manifest,
        "ended": report.ended,
        "verdict": [clean(sentence, 700) for sentence in verdict.sentences(report)],
        "tiles": verdict.tiles(report),
        "split": figures.split(report),
        "failures": failures,
        "failures_more": failures_more,
        "unfolded": UNFOLDED,
        "notes": [clean(note) for note in report.notes[:MAX_NOTES]] + _skew_note(report),
        "events": event_rows(report),
        "phases": phase_rows(report),
        "placed": any(phase.began is not None for phase in report.phases),
        "axis": "" if report.wall is None else f"0 to {seconds(report.wall)}",
        "chain": chain_rows(report),
        "lanes": lanes,
        "lanes_more": lanes_more,
        "ticks": figures.ticks(report),
        "has_many": any(piece["kind"] == "many" for piece in pieces),
        "has_waited": any(piece["kind"] == "waited" for piece in pieces),
        "has_failed": any(piece["kind"] == "failed" for piece in pieces),
        "workers": worker_rows(report),
        "reasons": reason_rows(report),
        "rows": run_rows(report, shown),
        "rows_words": verdict.rows_words(report, len(shown)),
        "many_targets": len(report.targets) > 1,
        "placed_runs": any(run.times.began is not None for run in report.runs),
        "entries": entries,
        "entries_more": entries_more,
        "dedup": verdict.dedup(report),
        "sizes": size_rows(report),
    }


def _skew_note(report: Report) -> list[str]:
    if not report.skewed:
        return []
    runs = count(report.skewed, "run is", "runs are")
    return [f"the clock of a worker disagrees with the submitter's: {runs} placed by the measured length"]


def _with_logs(view: dict[str, Any], logs: list[dict[str, Any]], report: Report) -> None:
    view["logs"] = logs
    rest = sum(run.log is not None and run.outcome != "hit" for run in report.runs) - len(logs)
    words = "Of the compilers, failed ones first, then the longest."
    view["logs_words"] = words + (f" {count(rest, 'more log')}: spyre-build logs {report.id}" if rest > 0 else "")
    names = {log["key"]: log["id"] for log in logs}
    for failure in view["failures"]:
        failure["log"] = names.get(failure["action"], "")
    found = [
        (_IDS.get(name, name), words) for name, words in _SECTIONS if view[name] or (name == "notes" and view["events"])
    ]
    view["sections"] = found
