"""What goes away in the middle of a build, and comes back: the build waits, says so, and loses nothing."""

from __future__ import annotations

import os
import time

import pytest
from fleets import wait_for
from fronts import FaultyHttp
from services import s3_environment

SLOW_DOWN = (503, "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
FAULTS = {
    "throttling": SLOW_DOWN,
    "answering 500": (500, "<Error><Code>InternalError</Code></Error>"),
    "dropping": -1.0,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [name if name == "throttling" else pytest.param(name, marks=pytest.mark.soak) for name in FAULTS]
)
def test_object_store_that_goes_away_is_waited_for(new_fleet, seeds, s3_server, fault):
    down = False
    with FaultyHttp(s3_server.port, lambda _method, _path: FAULTS[fault] if down else None) as front:
        tiers = f"s3://spyre/t-{os.urandom(6).hex()}"
        fleet = new_fleet(tiers=tiers, environment=s3_environment(front.endpoint))
        spec = fleet.plant(seeds[3], "s3")
        fleet.worker("w0")
        build = fleet.submit("desk", spec, "--no-replay")
        wait_for(lambda: fleet.heard("started"), "a run begins")
        down = True
        time.sleep(12)
        down = False
        code, data = build.result()
        assert (code, data["status"]) == (0, "ok"), data
        assert data["actions"]["compiled"] == 3
        fleet.verify()


@pytest.mark.slow
@pytest.mark.parametrize("keep", [pytest.param(True, marks=pytest.mark.soak), False], ids=["with all it had", "empty"])
def test_broker_that_goes_away_and_comes_back_is_waited_for(new_fleet, new_redis, seeds, keep):
    redis = new_redis()
    fleet = new_fleet(broker=redis.url)
    spec = fleet.plant(seeds[3], "broker")
    fleet.worker("w0")
    build = fleet.submit("desk", spec, "--no-replay")
    wait_for(lambda: fleet.heard("started"), "a run begins")
    if keep:
        redis.command("SAVE")
    redis.kill()
    time.sleep(5)
    if not keep:
        (redis.directory / "dump.rdb").unlink(missing_ok=True)
    redis.start()
    code, data = build.result()
    assert (code, data["status"]) == (0, "ok"), data
    assert data["actions"]["total"] == data["actions"]["compiled"] + data["actions"]["waited"] == 3
    assert "waiting for it" in build.log()
    fleet.verify()


@pytest.mark.slow
def test_build_that_was_left_is_brought_to_its_end_by_a_worker(new_fleet, seeds):
    fleet = new_fleet()
    code, left = fleet.submit("desk", fleet.plant(seeds[1], "left"), "--detach").result()
    assert (code, left["status"]) == (0, "running")
    fleet.worker("w0")

    def ended():
        from spyre_build import builds

        with fleet.open() as cache:
            record = builds.find(cache, left["build"])
        return record if record.status != "running" else None

    record = wait_for(ended, "a steward ends the build")
    assert record.status == "ok"
    assert record.manifest
    code, data = fleet.on_fleet("desk", "watch", left["build"]).result()
    assert (code, data["status"], data["manifest"]) == (0, "ok", record.manifest)
    fleet.verify()
