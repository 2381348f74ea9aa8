"""Two machines that share a Redis and an object store and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

import networks
import pytest
from fleets import Fleet, write_model
from services import s3_environment


@pytest.fixture
def machines(tmp_path, new_redis, s3_server):
    """A fleet with machines `one` and `two` in network namespaces of their own, where that is allowed."""
    redis = new_redis()
    prefix = f"t-{os.urandom(6).hex()}"
    apart = networks.possible()
    with ExitStack() as stack:
        fleet = Fleet(tmp_path / "fleet", redis.url_of(0), "", s3_environment(s3_server.endpoint))
        stack.callback(fleet.close)
        for name in ("one", "two"):
            address, before = "127.0.0.1", ()
            if apart:
                network = stack.enter_context(networks.Network(name[:1]))
                for port in (redis.port, s3_server.port):
                    network.open(port)
                address, before = network.address, network.prefix
            host = fleet.host(
                name,
                directory=fleet.folder / name / "cache",
                tiers=f"redis://{address}:{redis.port}/1,s3://spyre/{prefix}",
                environment={
                    **s3_environment(f"http://{address}:{s3_server.port}"),
                    "SPYRE_BUILD_BROKER": f"redis://{address}:{redis.port}/0",
                },
                prefix=before,
            )
            if name == "two":  # it has never compiled anything
                host.environment["SPYRE_BUILD_TOOLCHAIN_DIR"] = str(host.folder / "toolchain")
        yield fleet, redis


def reaches(host, address, port):
    code = f"import socket; socket.create_connection(({address!r}, {port}), 2)"
    return (
        subprocess.run([*host.prefix, sys.executable, "-SEc", code], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.slow
def test_what_one_machine_compiled_the_other_only_fetches(machines, tmp_path):
    fleet, redis = machines
    one, two = fleet.hosts["one"], fleet.hosts["two"]
    if one.prefix:
        assert not reaches(one, "127.0.0.1", redis.port)  # loopback is its own: nothing else of ours is there
        assert not reaches(one, two.environment["AWS_ENDPOINT_URL"].split("/")[2].split(":")[0], redis.port)
    spec = write_model(tmp_path / "model.py", 3, 1.5)
    fleet.workers["w"] = fleet.run(one, "worker", "--name", "w", "--concurrency", 1, "--cache", one.cache)
    fleet.wait_for_worker("w")
    words = ("submit", spec, "--target", "cpu/x86-64-v2", "--tag")
    code, warm = fleet.run(one, *words, "shared:1", "--cache", one.cache).result()
    assert (code, warm["actions"]["compiled"]) == (0, 3), warm
    fleet.workers["w"].kill()
    assert len(fleet.heard("started")) == 3

    code, cold = fleet.run(two, *words, "shared:1", "--cache", two.cache).result()
    assert code == 0, cold
    assert (cold["actions"]["hit"], cold["actions"]["compiled"], cold["actions"]["waited"]) == (3, 0, 0)
    assert cold["manifest"] == warm["manifest"]
    two.forget()
    for words in (("run", "shared:1"), ("verify", "shared:1")):
        code, data = fleet.run(two, *words, "--cache", two.cache).result()
        assert code == 0, data
    assert not (two.folder / "toolchain").exists() or not list((two.folder / "toolchain").rglob("*.gch"))
    assert len(fleet.heard("started")) == 3
    fleet.verify()
