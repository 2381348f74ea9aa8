"""Numbers, times and strangers' text as people read them."""

from __future__ import annotations

import time

from spyre_build.cli.output import count, number, size

__all__ = ["clean", "clean_block", "count", "moment", "number", "percent", "seconds", "size"]

MAX_TEXT = 300
_AGE = 1e10


def seconds(value: float) -> str:
    """`0 s`, `4 ms`, `0.35 s`, `12.3 s`, `2 min 05 s`, `1 h 02 min`; an age at most."""
    if not value >= 0.0005:
        return "0 s"
    value = min(value, _AGE)
    if value < 0.1:
        return f"{value * 1000:.0f} ms"
    if value < 9.995:
        return f"{value:.2f} s"
    if value < 119.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def percent(part: float) -> str:
    """A share of one, as `3 %`."""
    if 0 < part < 0.01:
        return "< 1 %"
    return f"{part * 100:.0f} %"


def moment(epoch: float) -> str:
    """A time as `2026-11-30 21:17:39 UTC`; one that no calendar has is said to be so."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(epoch))
    except (OverflowError, ValueError, OSError):
        return "at a time that no calendar has"


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """One line, bounded; what cannot be seen (control characters, marks that turn the direction) is spelled out."""
    shown = "".join(c if c.isprintable() else " " if c.isspace() else _spelled(c) for c in text[: limit + 1])
    return shown if len(text) <= limit else shown[: limit - 1] + "…"


def clean_block(text: str) -> str:
    """Lines as they are, but for what cannot be seen."""
    return "".join(c if c.isprintable() or c in "\n\t" else "" if c == "\r" else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}"
