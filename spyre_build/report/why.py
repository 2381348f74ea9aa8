"""Why what missed did, told once for all the runs that missed for the same reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from spyre_build.misses import Explanation, explain_actions
from spyre_build.report.timing import length
from spyre_cache.codec import Record
from spyre_cache.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre_build.builds import BuildRecord
    from spyre_build.report.model import Run
    from spyre_cache.cache import Cache

COMPARED = 40
"""Runs that are compared with every other fragment of the cache, the longest first; it takes about 50 ms each."""
MAX_TEXTS = 8
MAX_REASONS = 60


class Reason(Record, frozen=True, kw_only=True):
    """A reason that runs share.

    Attributes:
        kind: `changed` for a nearest action that differs, `new` where nothing in the cache is near, `unknown` where it
            was not looked, or the documents are gone.
        texts: the differences, as `explain` says them; `more` are left out.
        same: the nearest is the same fragment, compiled otherwise.
        near: key of the nearest action; of the first run.
        runs: indices of the runs, longest first.
    """

    kind: Literal["changed", "new", "unknown"]
    texts: tuple[str, ...] = ()
    more: int = 0
    same: bool = False
    near: str = ""
    runs: tuple[int, ...] = ()


def reasons_of(cache: Cache, record: BuildRecord, runs: Sequence[Run]) -> tuple[Reason, ...]:
    """Reasons of all that missed, those of most runs first."""
    missed = [index for index, run in enumerate(runs) if run.outcome != "hit"]
    missed.sort(key=lambda index: (-(length(runs[index].times) or runs[index].seconds), index))
    if not missed:
        return ()
    try:
        found = explain_actions(cache, record, [record.actions[index] for index in missed], most=COMPARED)
    except CacheError:
        return (Reason(kind="unknown", runs=tuple(missed)),)
    groups: dict[tuple[object, ...], Reason] = {}
    members: dict[tuple[object, ...], list[int]] = {}
    for index, explanation in zip(missed, found, strict=True):
        reason = _reason(explanation)
        same = (reason.kind, reason.texts, reason.more, reason.same)
        groups.setdefault(same, reason)
        members.setdefault(same, []).append(index)
    whole = [
        Reason(kind=r.kind, texts=r.texts, more=r.more, same=r.same, near=r.near, runs=tuple(members[same]))
        for same, r in groups.items()
    ]
    whole.sort(key=lambda reason: (-len(reason.runs), reason.runs))
    return tuple(whole[:MAX_REASONS])


def _reason(explanation: Explanation) -> Reason:
    if not explanation.compared:
        return Reason(kind="unknown")
    if not explanation.near:
        return Reason(kind="new")
    texts = tuple(difference.text for difference in explanation.differences)
    return Reason(
        kind="changed",
        texts=texts[:MAX_TEXTS],
        more=max(0, len(texts) - MAX_TEXTS),
        same=explanation.same,
        near=explanation.near,
    )
