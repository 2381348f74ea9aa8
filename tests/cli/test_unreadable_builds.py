"""One record that says what cannot be must not hide the others, nor pass for a defect of ours."""

import json

import pytest
from models import open_cache
from msgspec.structs import replace
from typer.testing import CliRunner

from spyre_build import builds
from spyre_build.builds import BuildAction, BuildRecord, Span, keep
from spyre_build.report.model import make_report
from spyre_build.report.page import render
from spyre_cache.codec import encode
from spyre_cache.digest import Digest
from spyre_cache.errors import InvalidRecordError

GOOD = BuildRecord(id="good", started=1_700_000_000.0, status="ok", spec="m.py:f")
ACTION = BuildAction(fragment=Digest(hash="ab" * 32, size=3), target="cpu/x86-64-v3", key="cd" * 32)
BAD = {
    "started": {"started": 1e300},
    "negative": {"started": -1.0},
    "span": {"spans": (Span(name="compile", began=-1e308, ended=1e308),)},
    "action": {"actions": (replace(ACTION, began=1e18),)},
    "spec": {"spec": "x" * (builds.MAX_TEXT + 1)},
    "worker": {"actions": (replace(ACTION, worker="x" * (builds.MAX_TEXT + 1)),)},
    "id": {"id": "../../other"},
}


def call(*words):
    done = CliRunner().invoke(app(), [str(word) for word in words])
    assert "unexpected" not in done.output
    return done


def app():
    from spyre_build.cli.main import app as shell

    return shell


@pytest.mark.parametrize("what", BAD)
def test_impossible_record_is_left_out_of_lists_and_named_when_asked_for(tmp_path, what):
    path = tmp_path / "cache"
    with open_cache(path) as cache:
        keep(cache, GOOD)
        cache.builds.put("bad", encode(replace(GOOD, **{"id": "bad"} | BAD[what])))
        assert [record.id for record in builds.recent(cache)] == ["good"]
        with pytest.raises(InvalidRecordError, match="build bad is kept but unreadable"):
            builds.find(cache, "bad")
    listed = call("status", "--cache", path)
    assert listed.exit_code == 0
    assert "good" in listed.output
    assert "note: 1 build cannot be read: bad" in listed.output
    assert json.loads(call("status", "--json", "--cache", path).stdout)["unreadable"] == ["bad"]
    for words in (["status", "bad"], ["report", "bad", "-o", tmp_path / "r.html"], ["explain", "bad"], ["logs", "bad"]):
        asked = call(*words, "--cache", path)
        assert asked.exit_code == 1
        assert "build bad is kept but unreadable" in asked.output


def test_report_of_lengths_beyond_all_measure_is_a_page(tmp_path):
    spans = (Span(name="compile", began=-1e308, ended=1e308), Span(name="verify", began=1e308, ended=1e308))
    action = replace(ACTION, outcome="compiled", queued=1.0, began=1e308, ended=1e308, worker="w")
    summary = {"seconds": {"total": 1e308, "compile": 1e308}, "peak_rss_bytes": {"compile": 1 << 62}}
    with open_cache(tmp_path / "cache") as cache:
        record = replace(GOOD, spans=spans, actions=(action,), summary=summary)
        assert "</html>" in render(make_report(cache, record), cache)
        assert "</html>" in render(make_report(cache, replace(record, spans=())), cache)
