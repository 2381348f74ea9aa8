"""What a report says: counts, times, chain, workers, reasons; and what it leaves out when it is not known."""

import pytest
from made_builds import START, action_of, fleet, fragment, hostile, huge, result_of
from msgspec.structs import replace

from spyre_build.builds import BuildAction, BuildRecord, Span
from spyre_build.report.model import Run, make_report
from spyre_build.report.timing import Phase, Times, critical_chain, in_lanes, phases_in_lanes, times_of, workers_of
from spyre_cache.cache import Cache
from spyre_cache.codec import encode
from spyre_cache.errors import CacheUnavailableError


@pytest.fixture
def cache(tmp_path):
    with Cache.open(tmp_path / "cache") as opened:
        yield opened


def run(worker="w", *, began=None, ended=None, queued=None, number=0, outcome="compiled"):
    found = fragment(number)
    return Run(
        fragment=found.digest(), target="t", key=f"{number:064x}", outcome=outcome, worker=worker,
        times=Times(queued=queued, began=began, ended=ended),
    )  # fmt: skip


def action(**changes):
    base = {"fragment": fragment(0).digest(), "target": "t", "key": "a" * 64, "outcome": "compiled", "worker": "w"}
    return BuildAction(**(base | changes))


def test_fleet_counts_outcomes_calls_and_time(cache):
    report = make_report(cache, fleet(cache))
    assert (report.hits, report.compiled, report.waited, report.failed, report.open) == (2, 4, 1, 1, 0)
    assert (report.total, report.calls, report.distinct) == (8, 9, 8)
    assert report.wall == 21.0
    assert report.saved == 15.0
    # layers.0 is called five times and took 7.5 s once.
    assert report.shared == pytest.approx(4 * 7.5)
    assert [(e.name, e.calls, e.unique) for e in report.entries] == [("prefill", 5, 3), ("decode", 4, 3)]
    assert report.sizes.weights == 64 * 64 * 4


def test_fleet_names_fragments_by_module_lines_and_entry(cache):
    runs = make_report(cache, fleet(cache)).runs
    assert (runs[3].label, runs[3].source, runs[3].users) == ("layers.0.attention", "model.py:40-43", ("decode",))
    assert runs[1].users == ()  # of both entries


def test_fleet_failure_names_the_users_lines(cache):
    (failure,) = make_report(cache, fleet(cache)).failures
    assert failure.kind == "unsupported"
    assert failure.lines == (
        "aten::add.Scalar at model.py:60 in forward (layers.0.experts.3.mlp)",
        "aten::relu at model.py:63 in forward (layers.0.experts.3.mlp)",
    )


def test_misses_are_told_with_what_differs_from_the_nearest(cache):
    reasons = make_report(cache, fleet(cache)).reasons
    by_run = {index: reason for reason in reasons for index in reason.runs}
    assert set(by_run) == {2, 3, 4, 5, 6, 7}
    assert by_run[2].texts == ("torch 2.12.1 → 2.13.0",)
    assert by_run[2].same
    assert by_run[3].kind == "changed"
    assert "add" in by_run[3].texts[0]


def test_misses_of_one_cause_are_one_reason(cache):
    fragments = [fragment(i) for i in range(5)]
    for found in fragments:
        cache.blobs.put(found.encoded())
        cache.actions.describe(action_of(found, cxx="g++ 11"))
        cache.actions.put(result_of(cache, action_of(found, cxx="g++ 11")))
        cache.actions.describe(action_of(found))
    actions = tuple(
        BuildAction(fragment=f.digest(), target="cpu/x86-64-v3", key=action_of(f).key(), outcome="compiled")
        for f in fragments
    )
    (reason,) = make_report(cache, BuildRecord(id="b", started=START, actions=actions)).reasons
    assert reason.texts == ("C++ compiler g++ 11 → g++ 12.2.0",)
    assert len(reason.runs) == 5


def test_nondeterminism_names_both_makers_and_the_file(cache):
    (event,) = make_report(cache, fleet(cache)).events
    assert (event.run, event.kept, event.other, event.differing) == (3, "rack1-b", "rack2-c", ("fragment.so",))


def test_same_build_twice_gives_the_same_report(cache):
    record = fleet(cache)
    assert encode(make_report(cache, record)) == encode(make_report(cache, record))


def test_record_without_times_leaves_them_out(cache):
    record = BuildRecord(
        id="b", started=START, status="ok", actions=(action(worker=""),),
        summary={"seconds": {"total": 9.0, "compile": 5.0, "import": 1.0}},
    )  # fmt: skip
    report = make_report(cache, record)
    assert [(p.name, p.seconds, p.began) for p in report.phases] == [("import", 1.0, None), ("compile", 5.0, None)]
    assert report.wall == 9.0
    assert (report.workers, report.chain) == ((), ())
    assert report.runs[0].times == Times()


def test_build_without_a_plan_has_a_report(cache):
    record = BuildRecord(id="b", started=START, status="failed", error="no such layer", spec="m.py:f")
    report = make_report(cache, record)
    assert (report.total, report.wall, report.phases, report.reasons) == (0, None, (), ())
    assert report.ended


def test_running_record_without_a_lease_has_died(cache):
    record = BuildRecord(
        id="b",
        started=START,
        spans=(Span(name="capture", began=START, ended=START + 2), Span(name="x", began=START + 2)),
    )
    report = make_report(cache, record)
    assert (report.status, report.ended, report.wall) == ("died", False, 2.0)
    assert report.phases[1].ended is None


def test_running_record_with_a_plan_is_left_for_others(cache):
    report = make_report(cache, fleet(cache, status="running"))
    assert (report.status, report.ended) == ("left", False)


def test_claims_out_of_reach_are_a_note(cache):
    class Away:
        def read(self, keys):
            raise CacheUnavailableError("redis://nowhere does not answer")

    report = make_report(cache, fleet(cache, status="running"), Away())
    assert report.status == "left"
    assert report.notes[0] == "whether the build is driven elsewhere is not known: redis://nowhere does not answer"


def test_running_record_with_a_lease_runs(cache):
    with cache.lease("b"):
        assert make_report(cache, BuildRecord(id="b", started=START)).status == "running"


def test_blobs_gone_leave_gaps_not_errors(cache):
    record = fleet(cache, manifest="blake3:" + "1" * 64)
    for action in record.actions:
        cache.actions.delete(action.key)
    for digest in [a.log for a in record.actions if a.log] + [record.plan]:
        cache.blobs.delete(digest)
    report = make_report(cache, record)
    assert report.compiled == 4
    assert report.calls == 0
    assert any("the plan is not in the cache" in note for note in report.notes)
    assert report.failures[0].error == "the C++ compiler refuses what was generated for this operator"


def test_later_success_is_not_mixed_into_a_failure(cache):
    found = fragment(1)
    later = cache.actions.put(result_of(cache, action_of(found)))
    record = BuildRecord(
        id="b", started=START,
        actions=(BuildAction(fragment=found.digest(), target="t", key=later.action, outcome="failed", error="timed out"),),
    )  # fmt: skip
    (only,) = make_report(cache, record).runs
    assert (only.seconds, only.artifact_bytes) == (0.0, None)


@pytest.mark.parametrize(
    "summary", [{"seconds": {"total": "soon"}}, {"failures": 3}, {"entries": [{"name": 1}]}, {"notes": [[]]}]
)
def test_summary_of_another_shape_is_left_out_with_a_note(cache, summary):
    report = make_report(cache, BuildRecord(id="b", started=START, summary=summary))
    assert any("summary" in note for note in report.notes)


def test_hostile_words_are_taken_as_they_are(cache):
    assert make_report(cache, hostile("<b>")).failures[0].lines == ("<b>",)


def test_keys_that_are_none_have_no_result(cache):
    record = fleet(cache)
    bad = replace(record.actions[2], key="../../etc/passwd")
    report = make_report(cache, replace(record, actions=(*record.actions[:2], bad, *record.actions[3:])))
    assert report.runs[2].seconds == 0.0
    assert report.runs[3].seconds > 0.0


def test_ten_thousand_actions_are_compared_in_bounded_number(cache):
    report = make_report(cache, huge(10_000))
    assert report.total == 10_000
    assert len(report.workers) == 16
    assert len(report.reasons) <= 60


# --- times ---


def test_times_within_the_submitters_clock_are_kept():
    found = times_of(action(queued=START + 1, began=START + 2, ended=START + 9), START, 5.0)
    assert (found.queued, found.began, found.ended, found.skewed) == (1, 2, 7, False)


def test_times_noted_a_little_late_are_put_in_order():
    found = times_of(action(queued=START + 1.5, began=START + 1, ended=START + 9), START, 5.0)
    assert (found.queued, found.began, found.ended, found.skewed) == (1, 1, 6, False)


@pytest.mark.parametrize("began", [-3600.0, 3600.0])
def test_times_of_a_skewed_clock_come_from_the_measured_length(began):
    found = times_of(action(queued=START + 1, began=START + began, ended=START + 9), START, 5.0)
    assert (found.began, found.ended, found.skewed) == (4, 9, True)


def test_times_of_a_skewed_clock_without_length_are_not_made_up():
    found = times_of(action(queued=START + 1, began=START + 3600, ended=START + 9), START, 0.0)
    assert (found.began, found.ended, found.skewed) == (None, 9, True)


def test_waited_for_run_may_have_begun_before_it_was_asked_for():
    found = times_of(action(outcome="waited", queued=START + 5, began=START + 1, ended=START + 9), START, 7.9)
    assert (found.began, found.skewed) == (1, False)


def test_hit_has_no_times():
    assert times_of(action(outcome="hit", queued=START, ended=START + 1), START, 5.0) == Times()


def test_runs_at_once_get_lanes_and_later_ones_reuse_them():
    runs = [run(began=0, ended=4, number=0), run(began=1, ended=2, number=1), run(began=2.5, ended=3, number=2)]
    assert [r.lane for r in in_lanes(runs)] == [0, 1, 1]
    (worker,) = workers_of(in_lanes(runs))
    assert (worker.lanes, worker.runs, worker.busy, worker.window) == (2, 3, 5.5, 4)
    assert worker.share == pytest.approx(5.5 / 8)


def test_critical_chain_follows_the_lane_back_to_the_dispatch():
    runs = in_lanes(
        [
            run("a", queued=2, began=2.5, ended=6, number=0),
            run("a", queued=2, began=6.5, ended=9, number=1),
            run("b", queued=2, began=2.1, ended=8, number=2),
        ]
    )
    phases = [Phase(name="capture", seconds=2, began=0, ended=2), Phase(name="compile", seconds=8, began=2, ended=10)]
    chain = critical_chain(phases, runs)
    assert [(s.kind, s.run, s.began, s.seconds) for s in chain] == [
        ("phase", -1, 0, 2),
        ("wait", -1, 2, 0.5),
        ("run", 0, 2.5, 3.5),
        ("wait", -1, 6, 0.5),
        ("run", 1, 6.5, 2.5),
        ("phase", -1, 9, 1),
    ]
    # Whatever the chain is, it covers the wall-clock once.
    assert sum(s.seconds for s in chain) == 10


def phase(name, began, ended):
    return Phase(name=name, seconds=ended - began, began=began, ended=ended)


def test_critical_chain_leaves_out_what_went_on_meanwhile():
    phases = [phase("capture", 1, 4), phase("compile", 5, 9), phase("record", 6, 8), phase("verify", 9, 10)]
    assert [(s.text, s.began, s.seconds) for s in critical_chain(phases, [])] == [
        ("before capture", 0, 1), ("capture", 1, 3), ("between capture and compile", 4, 1), ("compile", 5, 4),
        ("verify", 9, 1),
    ]  # fmt: skip


def test_critical_chain_goes_through_what_lasted_longest():
    phases = [phase("compile", 0, 5), phase("record", 0, 8), phase("verify", 8, 9)]
    assert [s.text for s in critical_chain(phases, [])] == ["record", "verify"]


def test_phases_at_once_get_lanes():
    found = phases_in_lanes([phase("record", 2, 3), phase("compile", 1, 5), phase("verify", 5, 6)])
    assert [(p.name, p.lane) for p in found] == [("compile", 0), ("record", 1), ("verify", 0)]


def test_critical_chain_ends_at_a_run_that_was_asked_for_late():
    runs = in_lanes([run(queued=1, began=1, ended=2, number=0), run(queued=5, began=5.5, ended=8, number=1)])
    chain = critical_chain([Phase(name="compile", seconds=9, began=0, ended=9)], runs)
    assert [s.run for s in chain if s.run >= 0] == [1]
    assert sum(s.seconds for s in chain) == 9


def test_critical_chain_of_phases_without_times_is_empty():
    assert critical_chain([Phase(name="compile", seconds=9)], [replace(run(), times=Times())]) == ()
