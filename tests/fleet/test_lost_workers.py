"""Workers, and what they run, that die or freeze: the work goes on elsewhere, soon, and once."""

from __future__ import annotations

import statistics
import time

import pytest
from fleets import wait_for

ELSEWHERE_SECONDS = 15.0


def first_start(fleet, after=0):
    """The first run that began after so many others."""
    return wait_for(lambda: fleet.heard("started")[after:], "a run begins")[0]


def compiling(worker):
    """The process that compiles under a worker: the youngest of the innermost."""
    return wait_for(lambda: [p for p in worker.tree() if not p.children() and p.create_time() > 0][1:], "a child")[-1]


def kill_at_work(fleet, seed, salt):
    """Seconds from the SIGKILL of a worker that compiles until the same action begins elsewhere."""
    before = len(fleet.heard("started"))
    build = fleet.submit("desk", fleet.plant(seed, salt), "--no-replay")
    _, event = first_start(fleet, before)
    fleet.workers[event.worker].kill()
    killed = time.monotonic()
    wait_for(lambda: len(fleet.heard("started", action=event.action)) > 1, "the run is begun elsewhere", 60)
    at, second = fleet.heard("started", action=event.action)[1]
    assert second.worker != event.worker
    code, data = build.result()
    assert (code, data["status"]) == (0, "ok")
    assert len(fleet.heard("started", action=event.action)) == 2
    fleet.worker(event.worker)
    return at - killed


@pytest.mark.slow
def test_task_of_a_killed_worker_is_begun_elsewhere_within_fifteen_seconds(new_fleet, seeds):
    fleet = new_fleet()
    for name in ("w0", "w1"):
        fleet.worker(name)
    took = [kill_at_work(fleet, seeds[1], "kill")]
    assert max(took) <= ELSEWHERE_SECONDS, took
    fleet.verify()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_tasks_of_twenty_killed_workers_are_begun_elsewhere_soon(new_fleet, seeds):
    from evidence import keep

    fleet = new_fleet()
    for name in ("w0", "w1"):
        fleet.worker(name)
    took = [kill_at_work(fleet, seeds[1], f"kill-{number}") for number in range(20)]
    fleet.verify()
    figures = {
        "kills": len(took), "median seconds until begun elsewhere": round(statistics.median(took), 2),
        "max": round(max(took), 2), "bound": ELSEWHERE_SECONDS,
    }  # fmt: skip
    keep("killed-workers", 0, figures)
    assert max(took) <= ELSEWHERE_SECONDS


@pytest.mark.slow
def test_compilation_killed_every_time_is_quarantined_with_who_and_why(new_fleet, seeds):
    fleet = new_fleet(tiers="")
    worker = fleet.worker("w0")
    build = fleet.submit("desk", fleet.plant(seeds[1], "poison"), "--no-replay")
    for number in range(3):
        first_start(fleet, number)
        compiling(worker).kill()
    code, data = build.result()
    assert code == 1
    assert data["status"] == "failed"
    assert "quarantined after 3 runs" in data["failures"][0]["error"]
    assert "w0" in data["failures"][0]["error"]
    # Whoever wants it next is told at once.
    before = len(fleet.heard("started"))
    code, again = fleet.submit("desk", f"plan:{data['build']}", "--no-replay").result()
    assert code == 1
    assert "quarantined" in again["failures"][0]["error"]
    assert len(fleet.heard("started")) == before


@pytest.mark.soak
def test_frozen_worker_is_replaced_and_does_no_harm_when_it_thaws(new_fleet, seeds):
    fleet = new_fleet()
    for name in ("w0", "w1"):
        fleet.worker(name)
    build = fleet.submit("desk", fleet.plant(seeds[1], "ice"), "--no-replay")
    _, event = first_start(fleet)
    frozen = fleet.workers[event.worker]
    family = frozen.family()
    for process in family:
        process.suspend()
    code, data = build.result()
    assert (code, data["status"]) == (0, "ok")
    for process in family:
        process.resume()
    # The thawed one takes tasks again.
    other = next(name for name in fleet.workers if name != event.worker)
    fleet.workers[other].kill()
    code, data = fleet.submit("desk", fleet.plant(seeds[1], "thawed"), "--no-replay").result()
    assert (code, data["status"]) == (0, "ok")
    fleet.verify()
