"""URLs that are none: one sentence, exit code 2, a fitting hint, and no password, on the screen or in a file."""

import re
from pathlib import Path

import pytest
from models import open_cache
from typer.testing import CliRunner

from spyre_build.builds import BuildRecord, keep
from spyre_build.cli.failure import describe
from spyre_build.cli.main import app
from spyre_cache.errors import CacheUnavailableError


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    "broker",
    ["redis://:se/cret@h/0", "u:p@ss secret@h", "redis://u:top#secret@h", "redis://u:pw?secret@h", "redis:/u:secret@h/0",
     "redis://[::1/0", "redis://h/0\x1b", "http://u:secret@h"],
)  # fmt: skip
def test_broker_that_is_none_gets_a_sentence_without_its_password(broker):
    done = call("status", "--broker", broker)
    assert done.exit_code == 2
    assert "--broker is the URL of a Redis" in done.output
    assert "cret" not in done.output
    assert "unexpected" not in done.output


@pytest.mark.parametrize(
    "cache", ["{dir},rediss//u:topsecret@h", "redis:/u:topsecret@h/0", "rediss//u:topsecret@h", "{dir},u:topsecret@h",
              "{dir},redis://u:top,secret@h", "{dir},s3://spyre/b,s3://spyre/b/", "{dir},file://{dir}/inner"],
)  # fmt: skip
def test_cache_that_is_none_gets_a_sentence_without_its_password(tmp_path, monkeypatch, cache):
    monkeypatch.chdir(tmp_path)
    done = call("status", "--cache", cache.replace("{dir}", str(tmp_path / "cache")))
    assert done.exit_code == 2
    assert "cret" not in done.output
    assert "unexpected" not in done.output
    assert not list(tmp_path.glob("redis*"))


def test_hint_fits_what_cannot_be_reached(tmp_path):
    with open_cache(tmp_path / "c") as cache:
        keep(cache, BuildRecord(id="b1", started=1.0))
    done = call("status", "--cache", tmp_path / "c", "--broker", "redis://127.0.0.1:1/0")
    assert done.exit_code == 5
    assert "hint: --broker or SPYRE_BUILD_BROKER names it" in done.output
    assert "--cache" in describe(CacheUnavailableError("full")).hint


def test_password_in_a_defect_reaches_neither_screen_nor_file():
    failure = describe(RuntimeError("cannot split redis://u:p@ss secret@h/0"))
    assert "cret" not in failure.error
    text = Path(re.search(r"details are in (\S+)", failure.hint)[1]).read_text(encoding="utf-8")
    assert "secret" not in text
    assert "redis://…@h/0" in text
