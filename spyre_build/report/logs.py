"""Logs inside the page: the failed ones first, then the longest runs', as many as fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spyre_build.report.sources import read_log
from spyre_build.report.words import clean, clean_block
from spyre_cache.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre_build.report.model import Report
    from spyre_cache.cache import Cache

HEAD, TAIL = 8 << 10, 24 << 10
"""Bytes of a log that are shown; compilers say what matters at the end."""
MAX_LOGS = 60
MAX_TOTAL = 1 << 20
MAX_GOOD = 20
"""Logs of what went well are read for comparison only."""


def embedded_logs(report: Report, cache: Cache, order: Sequence[int]) -> list[dict[str, Any]]:
    """What the page shows of logs; those that are gone from the cache are left out.

    Args:
        report: the report.
        cache: where they are.
        order: indices of runs, what matters most first.
    """
    found: list[dict[str, Any]] = []
    total = good = 0
    for index in order:
        run = report.runs[index]
        failed = run.outcome == "failed"
        if run.log is None or run.outcome == "hit" or (not failed and good >= MAX_GOOD):
            continue
        try:
            text, _ = read_log(cache, run.log, HEAD, TAIL)
        except CacheError:
            continue
        total += len(text)
        if len(found) >= MAX_LOGS or total > MAX_TOTAL:
            break
        good += not failed
        found.append(
            {
                "id": f"log-{len(found) + 1}",
                "key": run.key,
                "title": clean(run.title, 120),
                "digest": run.fragment.short,
                "outcome": run.outcome,
                "open": failed and len(found) == 0,
                "text": clean_block(text),
            }
        )
    return found
