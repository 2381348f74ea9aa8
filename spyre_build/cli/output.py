"""How a command's result reaches stdout: lines for people, or exactly one JSON object."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

KIB = 1024
# What a terminal obeys instead of showing: control characters, line and paragraph ends, what turns the direction of
# text or has no width, halves of surrogate pairs. Names and errors come out of caches that others write to.
_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a command gives back; commands print nothing themselves.

    Attributes:
        data: the object of `--json`.
        lines: the same for people.
        code: exit code.
    """

    data: Mapping[str, Any]
    lines: Sequence[str] = ()
    code: int = 0


@contextlib.contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """Yields the real stdout and sends whatever else is written there to stderr.

    A user's factory may print, and so may a library in C: with `--json` none of that may reach the reader.
    """
    real = sys.stdout
    if real is None:  # closed by whoever started this
        with Path(os.devnull).open("w") as nowhere:
            yield nowhere
        return
    try:
        descriptor = real.fileno()
    except (OSError, ValueError):
        descriptor = -1
    if descriptor != 1:
        with contextlib.redirect_stdout(sys.stderr):
            yield real
        return
    real.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    out = os.fdopen(saved, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    try:
        yield out
    finally:
        with contextlib.suppress(OSError):
            out.close()
        with contextlib.suppress(OSError):
            real.flush()
        os.dup2(saved, 1)
        os.close(saved)


def write_json(out: TextIO, data: Mapping[str, Any]) -> None:
    """One object, one line. NaN is not JSON, so what holds one is a mistake of ours and raises."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False)
    # JSON itself lets some characters stand that a terminal obeys; they are only ever within strings.
    out.write(_OBEYED.sub(lambda found: json.dumps(found[0])[1:-1], text) + "\n")
    out.flush()


def write_lines(out: TextIO | None, lines: Sequence[str]) -> None:
    """Lines for people, with their tabs; what their terminal cannot show is shown as a question mark."""
    if out is None:
        return
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="replace")
    out.writelines(visible(line, keep="\t") + "\n" for line in lines)
    out.flush()


def visible(text: str, keep: str = "") -> str:
    """The text with every character that a terminal would obey written as an escape: all that people read goes
    through here on its way out, and so stays on its line.

    Args:
        text: any.
        keep: characters to let through.
    """
    return _OBEYED.sub(lambda c: c[0] if c[0] in keep else c[0].encode("unicode_escape").decode("ascii"), text)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Aligned columns without lines or colours, so that `grep` and `awk` work on them; numbers to the right."""
    body = [[visible(str(cell)) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *body]) for i in range(len(header))]
    right = [bool(body) and all(_is_number(row[i]) for row in body) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = (cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True))
        return "  ".join(cells).rstrip()

    return [line(header), *(line(row) for row in body)]


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell in {"", "-"}


def size(count: int) -> str:
    """Bytes for people: 1.5 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < KIB or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= KIB
    raise AssertionError


def number(value: int) -> str:
    """`9800`, `10 000`."""
    return str(value) if abs(value) < 10_000 else f"{value:,}".replace(",", "\N{NO-BREAK SPACE}")


def count(value: int, noun: str, plural: str = "") -> str:
    """`1 fragment`, `2 fragments`."""
    return f"{number(value)} {noun if value == 1 else plural or noun + 's'}"


def one_line(text: str, limit: int = 2000) -> str:
    """The text with every run of white space made one space, and no control characters."""
    line = " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
