"""From a build's name to files."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spyre_build.errors import UsageError
from spyre_build.misses import build_of
from spyre_build.report.model import make_report
from spyre_build.report.page import render
from spyre_build.report.trace import trace_json

if TYPE_CHECKING:
    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims


def write_report(
    cache: Cache, what: str, output: str, trace: str | None = None, claims: Claims | None = None
) -> dict[str, Any]:
    """Writes the page of a build, and its trace when a file is named for it; a file of that name is replaced.

    Args:
        cache: where the build is kept.
        what: a build's id or its beginning, `last`, or a model that a build made.
        output: file of the page.
        trace: file of the trace.
        claims: tell whether a build that says it runs is driven by another machine.

    Returns:
        What `--json` prints.

    Raises:
        BuildNotFoundError: no such build.
        UsageError: a file cannot be written under such a name.
    """
    page, events = _place(output), None if trace is None else _place(trace)
    if events is not None and events == page:
        raise UsageError(f"the page and the trace are two files, but both are to be {output}")
    report = make_report(cache, build_of(cache, what), claims)
    html = render(report, cache).encode("utf-8", "replace")
    _write(page, html)
    if events is not None:
        _write(events, trace_json(report).encode("ascii"))
    return {
        "build": report.id,
        "status": report.status,
        "report": str(page),
        "trace": None if events is None else str(events),
        "bytes": len(html),
    }


def _place(name: str) -> Path:
    if not name or "\0" in name:
        raise UsageError("a report is written to a file, but its name is empty or holds a zero byte")
    try:
        path = Path(name).expanduser().resolve()
        if path.is_dir():
            raise UsageError(f"a report is one file, but {name} is a directory", hint=f"-o {path / 'report.html'}")
        if not path.parent.is_dir():
            raise UsageError(f"there is no directory {path.parent} to write {path.name} in", hint="make it first")
    except (OSError, RuntimeError) as error:
        raise UsageError(f"a report cannot be written to {name[:200]}: {error}") from None
    return path


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all; what is no regular file (a pipe, /dev/stdout) is written to as it is."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    temporary = path.with_name(f".spyre-build-{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
