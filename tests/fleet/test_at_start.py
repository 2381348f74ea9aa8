"""What a command says when broker or cache cannot be reached: exit 5, one line, which URL, no secrets, soon."""

from __future__ import annotations

import time

import pytest
from fleets import write_model
from fronts import FaultyHttp
from services import ACCESS_KEY, SECRET_KEY, free_ports, s3_environment

SOON = 20.0  # of which a loaded machine takes some to import things
SECRET = "hunter2-do-not-print"


def refused(fleet, host, *words, soon=SOON, **more):
    """The error of a command that cannot reach something."""
    process = fleet.on_fleet(host, *words, **more)
    code, data = process.result(60)
    took = time.monotonic() - process.began
    assert code == 5, data
    assert took < soon, took
    for text in (data["error"], process.log()):
        assert "Traceback" not in text
        assert SECRET not in text
        assert SECRET_KEY not in text
    assert "\n" not in data["error"]
    return data["error"]


COMMANDS = [("worker", "--name", "w"), ("submit", "plan:last", "--no-replay")]


@pytest.fixture(params=COMMANDS, ids=["worker", "submit"])
def command(request):
    return request.param


def planted(fleet, seeds, host):
    """A plan in a machine's directory alone."""
    from fleets import plant

    from spyre_cache.cache import Cache

    path, build = seeds[1]
    with Cache.open(host.directory) as cache, Cache.open(path, read_only=True) as known:
        plant(known, build, cache, "start")


def test_unreachable_broker_is_named(new_fleet, seeds, command):
    (port,) = free_ports(1)
    fleet = new_fleet(broker=f"redis://:{SECRET}@127.0.0.1:{port}/0", tiers="")
    planted(fleet, seeds, fleet.host())
    error = refused(fleet, "desk", *command)
    assert f"redis://127.0.0.1:{port}/0 cannot be reached" in error
    assert "tries" in error


@pytest.mark.slow
def test_broker_that_does_not_answer_is_named(new_fleet, new_redis, seeds, command):
    redis = new_redis()
    fleet = new_fleet(broker=redis.url, tiers="")
    planted(fleet, seeds, fleet.host())
    redis.pause()
    try:
        assert redis.url in refused(fleet, "desk", *command, soon=25.0)
    finally:
        redis.resume()


def test_wrong_password_of_the_broker_is_told(new_fleet, new_redis, seeds, command):
    redis = new_redis(password="the-right-one")
    fleet = new_fleet(broker=f"redis://:{SECRET}@127.0.0.1:{redis.port}/0", tiers="")
    planted(fleet, seeds, fleet.host())
    error = refused(fleet, "desk", *command)
    assert f"redis://127.0.0.1:{redis.port}/0" in error
    assert "password" in error.lower()


def test_unreachable_object_store_is_named(new_fleet, command):
    (port,) = free_ports(1)
    fleet = new_fleet(tiers="s3://spyre/x", environment=s3_environment(f"http://127.0.0.1:{port}"))
    error = refused(fleet, "desk", *command)
    assert "s3://spyre/x" in error


def test_wrong_credentials_of_the_object_store_are_told(new_fleet, s3_server, command):
    environment = {**s3_environment(s3_server.endpoint), "AWS_SECRET_ACCESS_KEY": SECRET}
    error = refused(new_fleet(tiers="s3://spyre/x", environment=environment), "desk", *command)
    assert "s3://spyre/x" in error
    assert ACCESS_KEY not in error


def test_missing_bucket_is_told(new_fleet, s3_server, command):
    # The S3 server of the tests makes a bucket that is missing; others answer so.
    said = "<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
    with FaultyHttp(s3_server.port, lambda _method, _path: (404, said)) as front:
        fleet = new_fleet(tiers="s3://no-such-bucket/x", environment=s3_environment(front.endpoint))
        error = refused(fleet, "desk", *command)
    assert "s3://no-such-bucket/x" in error
    assert "bucket" in error.replace("no-such-bucket", "")


def test_unreachable_cache_tier_in_redis_is_named(new_fleet, command):
    (port,) = free_ports(1)
    fleet = new_fleet(tiers=f"redis://:{SECRET}@127.0.0.1:{port}/1")
    assert f"redis://127.0.0.1:{port}/1" in refused(fleet, "desk", *command)


@pytest.mark.slow
def test_submit_of_a_model_says_so_too_before_it_captures(new_fleet, tmp_path):
    (port,) = free_ports(1)
    fleet = new_fleet(broker=f"redis://:{SECRET}@127.0.0.1:{port}/0")
    process = fleet.submit("desk", write_model(tmp_path / "model.py", 1))
    code, data = process.result(120)
    assert code == 5
    assert f"redis://127.0.0.1:{port}/0" in data["error"]
    assert "capture" not in process.log()
