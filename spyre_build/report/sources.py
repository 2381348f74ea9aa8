"""Fragments and failures in the user's words: modules, source lines, logs."""

from __future__ import annotations

import re
from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING

from spyre_cache.codec import Record, decode
from spyre_cache.errors import CacheError
from spyre_cache.objects.fragment import DESCRIPTION_TYPE, Description, NodeOrigin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spyre_build.report.facts import Facts
    from spyre_build.report.model import Run
    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest
    from spyre_cache.objects.action import ActionResult

MAX_FAILURES = 100
MAX_LINES = 40
MAX_SOURCE = 1000
_PLACE = re.compile(r"(.+):(\d+)( in .*)?")


class Words(Record, frozen=True, kw_only=True):
    """Where a fragment comes from: a place in the model, lines of code, how many operators."""

    label: str
    source: str
    nodes: int


class Failure(Record, frozen=True, kw_only=True):
    """A fragment that could not be compiled; `lines` are operators with the lines of the model they come from.

    `run` is an index into the report's runs, `more` the number of lines left out.
    """

    run: int
    kind: str
    error: str
    lines: tuple[str, ...]
    more: int = 0


def origins_of(cache: Cache, fragment: Digest) -> tuple[NodeOrigin, ...]:
    """Origins of a fragment's nodes, as first described; empty when nothing is known."""
    try:
        for said in cache.statements.list(fragment, DESCRIPTION_TYPE):
            found = decode(cache.blobs.get(said.blob), Description)
            if found.fragment == fragment:
                return found.origins
    except CacheError:
        pass
    return ()


def describe(cache: Cache, fragment: Digest) -> Words | None:
    """A fragment in the user's words, or None when it has no description here."""
    origins = origins_of(cache, fragment)
    if not origins:
        return None
    return Words(label=_label(origins), source=_lines(origin.source for origin in origins), nodes=len(origins))


def _label(origins: Sequence[NodeOrigin]) -> str:
    """The module that holds all of it, or the two that hold most."""
    paths = [origin.module.split(".") for origin in origins if origin.module]
    if not paths:
        return ""
    parts = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    common = ".".join(level[0] for level in parts) if len(paths) == len(origins) else ""
    if common:
        return common
    counts = Counter(path[0] if len(path) == 1 else ".".join(path[:2]) for path in paths)
    names = [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return ", ".join(names[:2]) + ("…" if len(names) > 2 else "")


def _lines(sources: Iterable[str]) -> str:
    """`model.py:12-40` of the file that most operators come from."""
    by_file: dict[str, list[int]] = {}
    for source in sources:
        match = _PLACE.fullmatch(source[:MAX_SOURCE])
        if match is not None and len(match[2]) < 9:
            by_file.setdefault(match[1], []).append(int(match[2]))
    if not by_file:
        return ""
    file, lines = max(by_file.items(), key=lambda item: (len(item[1]), item[0]))
    low, high = min(lines), max(lines)
    return f"{file}:{low}" + (f"-{high}" if high > low else "")


def failures_of(
    cache: Cache, facts: Facts, runs: Sequence[Run], results: Sequence[ActionResult | None]
) -> tuple[Failure, ...]:
    """Every failed run, in the words of the summary, or, where it has none, in those of the result."""
    found: list[Failure] = []
    for index, (run, result) in enumerate(zip(runs, results, strict=True)):
        if run.outcome != "failed" or len(found) == MAX_FAILURES:
            continue
        words = facts.failed.get(run.key)
        kind, error, lines = "", run.error, []
        if result is not None and result.failure is not None:
            kind, error = result.failure.kind, result.failure.message
            lines = _nodes(cache, run.fragment, result.failure.nodes) or list(result.failure.ops)
        if words is not None:
            kind, error, lines = words.kind or kind, words.error or error, words.nodes or lines
        found.append(
            Failure(
                run=index,
                kind=kind,
                error=error or "no reason was kept",
                lines=tuple(lines[:MAX_LINES]),
                more=max(0, len(lines) - MAX_LINES),
            )
        )
    return tuple(found)


def _nodes(cache: Cache, fragment: Digest, nodes: Sequence[int]) -> list[str]:
    origins = origins_of(cache, fragment)
    found = []
    for node in nodes:
        if 0 <= node < len(origins):
            origin = origins[node]
            place = f" at {origin.source}" if origin.source else ""
            found.append(f"{origin.op}{place}" + (f" ({origin.module})" if origin.module else ""))
    return found


def read_log(cache: Cache, digest: Digest, head: int, tail: int) -> tuple[str, int]:
    """A log's text, its middle left out when it is longer than `head + tail` bytes, and how many bytes are left out.

    Raises:
        CacheError: it is not in the cache any more.
    """
    data = cache.blobs.get(digest)
    if len(data) <= head + tail:
        return data.decode("utf-8", "replace"), 0
    left_out = len(data) - head - tail
    start, end = data[:head].decode("utf-8", "replace"), data[-tail:].decode("utf-8", "replace")
    return f"{start}\n… {left_out} bytes left out …\n{end}", left_out
