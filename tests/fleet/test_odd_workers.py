"""Workers whose clock is wrong, whose broker is impatient, or whose version is another."""

from __future__ import annotations

import contextlib
import time

import psutil
import pytest
from fleets import wait_for

# Read by every Python that has its folder on the path; does nothing where the variables are not passed on.
PATCHES = """
import os, time
shift = float(os.environ.get("TEST_CLOCK_SHIFT") or 0)
if shift:
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + shift
    time.time_ns = lambda: nanoseconds() + int(shift * 1e9)
if visibility := os.environ.get("TEST_VISIBILITY"):
    import spyre_workers.queues
    spyre_workers.queues.VISIBILITY_SECONDS = int(visibility)
"""


@pytest.fixture
def patched(tmp_path):
    """Environment of a worker in which something is not as it should be."""
    folder = tmp_path / "patches"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(PATCHES)

    def make(fleet, **variables):
        path = f"{folder}:{fleet.host('desk').environment['PYTHONPATH']}"
        return {"environment": {"PYTHONPATH": path, **{name: str(value) for name, value in variables.items()}}}

    return make


@pytest.mark.slow
def test_clocks_that_are_hours_apart_change_nothing(new_fleet, seeds, patched):
    fleet = new_fleet()
    fleet.worker("early", **patched(fleet, TEST_CLOCK_SHIFT=-7200))
    fleet.worker("late", **patched(fleet, TEST_CLOCK_SHIFT=7200))
    build = fleet.submit("desk", fleet.plant(seeds[3], "skew"), "--no-replay")
    _, event = wait_for(lambda: fleet.heard("started"), "a run begins")[0]
    assert abs(event.at - time.time()) > 7000
    fleet.workers[event.worker].kill()
    killed = time.monotonic()
    code, data = build.result()
    assert (code, data["status"], data["actions"]["compiled"]) == (0, "ok", 3)
    again = fleet.heard("started", action=event.action)
    assert len(again) == 2
    assert all(count == 1 for key, count in fleet.starts().items() if key != event.action)
    assert again[1][0] - killed < 60  # behind what the other one has in hand
    fleet.verify()


@pytest.mark.slow
def test_compilation_that_outlasts_the_visibility_time_out_is_not_run_twice(new_fleet, seeds, patched):
    fleet = new_fleet()
    for name in ("w0", "w1"):
        fleet.worker(name, **patched(fleet, TEST_VISIBILITY=3))
    build = fleet.submit("desk", fleet.plant(seeds[1], "long"), "--no-replay")
    _, event = wait_for(lambda: fleet.heard("started"), "a run begins")[0]
    worker = fleet.workers[event.worker]
    family = wait_for(lambda: [p for p in worker.tree() if not p.children()][1:], "a child")
    for process in family:
        process.suspend()
    time.sleep(15)  # five times the time-out
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    code, data = build.result()
    assert (code, data["status"]) == (0, "ok")
    assert len(fleet.heard("started")) == 1
    other = fleet.workers["w1" if event.worker == "w0" else "w0"]
    assert ": busy in" in other.log() + worker.log()  # it did come again
    fleet.verify()


@pytest.mark.slow
def test_work_of_another_version_waits_for_a_worker_of_that_version(new_fleet, seeds, patched):
    from msgspec.structs import replace

    from spyre_workers.toolchain import toolchain

    fleet = new_fleet()
    fleet.worker("w0")
    other = replace(toolchain(), torch="9.9.9")
    build = fleet.submit("desk", fleet.plant(seeds[1], "version", toolchain=other), "--no-replay")
    wait_for(lambda: "no worker has the toolchain" in build.log(), "the build says what it waits for", 90)
    assert not fleet.heard("started")
    code, data = fleet.submit("desk", fleet.plant(seeds[1], "mine"), "--no-replay").result()
    assert (code, data["actions"]["compiled"]) == (0, 1)
    code, data = fleet.on_fleet("desk", "cancel", running(fleet)).result()
    assert code == 0
    assert build.wait() == 1
    assert len(fleet.heard("started")) == 1


def running(fleet):
    from spyre_build import builds

    with fleet.open() as cache:
        return next(record.id for record in builds.recent(cache) if record.status == "running")
