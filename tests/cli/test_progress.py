"""What a build shows while it runs."""

import io
import os
import pty
import re

from spyre_build.events import NullEvents
from spyre_build.progress import PlainEvents, display

FRAGMENT = "blake3:" + "ab" * 32


def play(events):
    events.phase("import")
    events.phase("import")
    events.planned(3, 1)
    events.phase("compile")
    events.started(FRAGMENT, "cpu/x86-64-v3")
    events.finished(FRAGMENT, "cpu/x86-64-v3", "compiled", 2.5)
    events.finished(FRAGMENT, "cpu/x86-64-v3", "failed", 1.0)
    events.note("a [bracketed] remark")


def test_plain_lines_tell_each_thing_once():
    out = io.StringIO()
    play(PlainEvents(out))
    lines = [re.sub(r"^\[ *\d+\.\ds\] ", "", line) for line in out.getvalue().splitlines()]
    assert lines == [
        "import",
        "3 fragments for their targets: 1 in the cache, 2 to compile",
        "compile",
        "compiled blake3:abababababab for cpu/x86-64-v3 in 2.5 s (2/3)",
        "failed blake3:abababababab for cpu/x86-64-v3 in 1.0 s (3/3)",
        "note: a [bracketed] remark",
    ]


def test_plain_lines_closed_stream_does_not_end_the_build():
    out = io.StringIO()
    out.close()
    play(PlainEvents(out))


def test_display_not_a_terminal_is_plain_and_quiet_is_silent(capsys):
    with display() as events:
        assert isinstance(events, PlainEvents)
    with display(quiet=True) as events:
        assert isinstance(events, NullEvents)
        play(events)
    assert capsys.readouterr().err == ""


def test_display_on_a_terminal_shows_a_bar_and_keeps_failures_on_the_screen(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, display(terminal) as events:
        assert not isinstance(events, PlainEvents)
        play(events)
    shown = b""
    while not shown.endswith(b"\x1b[?25h") and len(shown) < 1 << 20:
        try:
            shown += os.read(master, 4096)
        except OSError:
            break
    os.close(master)
    text = shown.decode()
    assert "3/3" in text
    assert "failed blake3:abababababab" in text
    assert "a [bracketed] remark" in text
