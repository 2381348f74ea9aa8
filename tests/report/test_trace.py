"""The trace against the rules of the trace-event format."""

import json
from collections import defaultdict

import pytest
from made_builds import START, fleet, hostile, huge

from spyre_build.builds import BuildRecord, Span
from spyre_build.report.model import make_report
from spyre_build.report.trace import trace_json
from spyre_cache.cache import Cache


@pytest.fixture
def cache(tmp_path):
    with Cache.open(tmp_path / "cache") as opened:
        yield opened


def check(text):
    """What the format demands: known phases with their fields, nesting on each thread, pairs of async and flow events."""
    whole = json.loads(text)
    events = whole["traceEvents"]
    tracks, asynchronous, flows = defaultdict(list), defaultdict(list), defaultdict(list)
    for event in events:
        assert {"ph", "name", "pid", "ts"} <= event.keys()
        assert isinstance(event["ts"], int)
        assert event["ph"] in "MXBbesfC"
        assert isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] in "be":
            asynchronous[event["cat"], event["id"]].append(event)
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
        if event["ph"] == "C":
            assert all(value >= 0 for value in event["args"].values())
    for slices in tracks.values():
        stack = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1], "slices of one thread nest"
            stack.append(end)
    for pair in asynchronous.values():
        assert [event["ph"] for event in sorted(pair, key=lambda e: e["ts"])] == ["b", "e"]
    for pair in flows.values():
        start, finish = sorted(pair, key=lambda e: "sf".index(e["ph"]))
        assert start["ts"] <= finish["ts"]
        assert finish["bp"] == "e"
        for event in pair:
            around = tracks[event["pid"], event["tid"]]
            assert any(a <= event["ts"] <= b for a, b in around), "a flow is bound to a slice"
    return events


def test_fleet_has_phases_runs_stages_queues_and_flows(cache):
    events = check(trace_json(make_report(cache, fleet(cache))))
    phases = [e["name"] for e in events if e["ph"] == "X" and e["cat"] == "phase"]
    assert phases == ["import", "capture", "partition", "lookup", "compile", "publish"]
    runs = [e for e in events if e["ph"] == "X" and e["cat"] == "run"]
    assert len(runs) == 6
    assert {e["name"] for e in events if e["ph"] == "X" and e["cat"] == "stage"} == {"codegen", "cxx", "link"}
    workers = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert workers == {
        "build 20270115-080000-c0ffee of granite:7",
        "worker rack1-a",
        "worker rack1-b",
        "worker rack2-c",
    }
    assert sum(e["ph"] == "s" for e in events) == 5  # the waited-for run was handed out by another build
    assert sum(e["ph"] == "b" for e in events) == 5


def test_stages_lie_within_their_run(cache):
    events = check(trace_json(make_report(cache, fleet(cache))))
    first = next(e for e in events if e["name"] == "norm, head")
    stages = [
        e
        for e in events
        if e.get("cat") == "stage" and e["pid"] == first["pid"] and e["ts"] < first["ts"] + first["dur"]
    ]
    assert [s["name"] for s in stages] == ["codegen", "cxx", "link"]
    assert sum(s["dur"] for s in stages) <= first["dur"]


def test_build_without_times_gives_names_only(cache):
    events = check(trace_json(make_report(cache, BuildRecord(id="b", started=START))))
    assert {e["ph"] for e in events} == {"M"}


def test_phases_that_overlap_are_on_two_threads(cache):
    record = BuildRecord(
        id="b",
        started=START,
        spans=(
            Span(name="compile", began=START, ended=START + 5),
            Span(name="record", began=START + 3, ended=START + 7),
            Span(name="verify", began=START + 7, ended=START + 8),
        ),
    )
    events = check(trace_json(make_report(cache, record)))
    assert {(e["name"], e["tid"]) for e in events if e["ph"] == "X"} == {("compile", 1), ("record", 2), ("verify", 1)}


def test_running_build_leaves_slices_open(cache):
    record = fleet(cache, status="running")
    from msgspec.structs import replace

    actions = (*record.actions[:-1], replace(record.actions[-1], outcome="planned", ended=0.0))
    spans = (*record.spans[:4], replace(record.spans[4], ended=0.0))
    events = check(trace_json(make_report(cache, replace(record, actions=actions, spans=spans))))
    assert [e["name"] for e in events if e["ph"] == "B"] == ["compile", "pool"]


@pytest.mark.parametrize("text", ["<script>", '"\\\n', "\ud800", "x" * 100_000])
def test_hostile_words_stay_in_strings(cache, text):
    written = trace_json(make_report(cache, hostile(text)))
    assert written.isascii()
    assert len(written) < 100_000
    check(written)


@pytest.mark.parametrize("started", [1e300, -1e300])
def test_times_beyond_any_calendar_stay_numbers(cache, started):
    from msgspec.structs import replace

    check(trace_json(make_report(cache, replace(hostile("x"), started=started))))


def test_ten_thousand_actions_are_all_there(cache):
    events = check(trace_json(make_report(cache, huge(10_000))))
    assert sum(e["ph"] == "X" and e["cat"] == "run" for e in events) == 9000


def test_same_build_gives_the_same_trace(cache):
    record = fleet(cache)
    assert trace_json(make_report(cache, record)) == trace_json(make_report(cache, record))
