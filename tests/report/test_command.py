"""`spyre-build report`: files, exit codes, errors in our words."""

import json
import subprocess
import sys

import pytest
from made_builds import fleet
from typer.testing import CliRunner

from spyre_build.cli.main import app
from spyre_cache.cache import Cache


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with Cache.open(tmp_path / "cache") as cache:
        fleet(cache)
    return tmp_path


def call(where, *words):
    return CliRunner().invoke(app, ["report", *map(str, words), "--cache", str(where / "cache")])


def test_page_and_trace_are_written_where_asked(where):
    done = call(where, "last", "-o", where / "r.html", "--trace", where / "t.json", "--json")
    data = json.loads(done.stdout)
    assert done.exit_code == 0
    assert data == {
        "build": "20270115-080000-c0ffee", "status": "partial", "report": str(where / "r.html"),
        "trace": str(where / "t.json"), "bytes": (where / "r.html").stat().st_size,
    }  # fmt: skip
    assert json.loads((where / "t.json").read_text())["traceEvents"]
    assert sorted(p.name for p in where.iterdir()) == ["cache", "r.html", "t.json"]


def test_file_is_replaced_and_default_is_here(where):
    (where / "report.html").write_text("old")
    assert call(where, "20270115").exit_code == 0
    assert (where / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nope",), "neither a build nor a model"),
        (("last", "-o", "nowhere/r.html"), "there is no directory"),
        (("last", "-o", "cache"), "is a directory"),
        (("last", "-o", ""), "empty"),
        (("last", "-o", "x" * 5000), "cannot be written"),
        (("last", "-o", "same", "--trace", "same"), "two files"),
    ],
)
def test_bad_words_exit_two_and_say_why(where, words, said):
    done = call(where, *words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_report_is_made_without_torch_or_celery(where):
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom spyre_build.cli.main import app\n"
        f"done = CliRunner().invoke(app, ['report', 'last', '--cache', {str(where / 'cache')!r}])\n"
        "assert done.exit_code == 0, done.stderr\nassert 'celery' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=where, env=_environment())


def _environment():
    import os

    return os.environ | {"PYTHONPATH": ":".join(sys.path)}
