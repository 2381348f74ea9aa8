"""What a terminal obeys, in what a shared cache holds: it is shown, and obeyed nowhere."""

import io
import json
import logging
import sys

import pytest
from models import open_cache
from typer.testing import CliRunner

from spyre_build.builds import BuildAction, BuildRecord, Span, keep
from spyre_build.cli import main
from spyre_build.cli.failure import Failure
from spyre_build.cli.main import app
from spyre_build.cli.opening import _say
from spyre_build.cli.output import table, visible, write_json, write_lines
from spyre_build.cli.worker import _OneLine
from spyre_build.progress import PlainEvents

EVIL = "\x1b[31mred\x1b]0;title\x07\nFAKE-BUILD ok\r\x9b2J\u202e\u2028"
OBEYED = set("\x1b\x07\r\x9b\u202e\u2028")


def plain(text, lines):
    return not OBEYED & set(text) and text.count("\n") == lines and not any(
        line.startswith("FAKE") for line in text.splitlines()
    )  # fmt: skip


def test_visible_escapes_what_is_obeyed_and_nothing_else():
    assert visible("a\x1b[1m\n\t\x9b") == r"a\x1b[1m\n\t\x9b"
    assert visible("tab\tkept", keep="\t") == "tab\tkept"
    for text in ("grün 10\N{NO-BREAK SPACE}000 日本 …", "🙂", ""):
        assert visible(text) == text


def test_table_cell_with_newlines_stays_one_line():
    assert table(("A", "B"), [(EVIL, 1), ("x", 2)])[1:][1].startswith("x  ")
    assert all(plain(line, 0) for line in table((EVIL,), [(EVIL,)])[1:])


def test_everything_for_people_is_on_its_line(capsys):
    out = io.StringIO()
    write_lines(out, [EVIL, "a\tb"])
    assert plain(out.getvalue(), 2)
    assert "a\tb\n" in out.getvalue()
    main._say(Failure(error=EVIL, hint=EVIL, code=1))
    _say(EVIL)
    assert plain(capsys.readouterr().err, 3)
    out = io.StringIO()
    events = PlainEvents(out)
    events.phase(EVIL)
    events.note(EVIL)
    events.finished(EVIL, EVIL, "failed", 1.0)
    assert plain(out.getvalue(), 3)


def test_json_stays_json_and_is_plain():
    out = io.StringIO()
    data = {"a": EVIL, EVIL: "\U000e0041\udc80 grün"}
    write_json(out, data)
    assert plain(out.getvalue(), 1)
    assert "grün" in out.getvalue()
    assert json.loads(out.getvalue()) == data


def test_log_of_a_worker_is_a_line_a_message():
    formatter = _OneLine("%(message)s")
    try:
        raise ValueError(EVIL)
    except ValueError:
        record = logging.LogRecord("x", logging.INFO, "", 0, "said %s", (EVIL,), sys.exc_info())
    text = formatter.format(record)
    assert text.startswith(r"said \x1b[31m")
    assert not OBEYED & set(text)


@pytest.mark.parametrize("words", [["status"], ["status", "b1"], ["explain", "b1"], ["watch", "b1"], ["logs", "b1"]])
def test_build_of_somebody_else_prints_plainly(tmp_path, words):
    with open_cache(tmp_path / "cache") as cache:
        log = cache.blobs.put(b"one\n\x1b[31mtwo\n\tthree\n")
        action = BuildAction(
            fragment=log, target=EVIL, key="a" * 64, outcome="failed", error=EVIL, worker=EVIL, log=log
        )
        record = BuildRecord(
            id="b1", started=1.0, status="failed", spec=EVIL, name=EVIL, error=EVIL, manifest=EVIL,
            actions=(action,), spans=(Span(name=EVIL, began=1.0, ended=2.0),), summary={"notes": [EVIL]},
        )  # fmt: skip
        keep(cache, record)
    done = CliRunner().invoke(app, [*words, "--cache", str(tmp_path / "cache")])
    assert not OBEYED & set(done.output)
    assert not any(line.startswith("FAKE") for line in done.output.splitlines())
    assert "unexpected" not in done.output
    if words[0] == "logs":
        assert "\n\tthree\n" in done.output
