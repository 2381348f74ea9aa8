"""Helpers that several folders of tests use lie beside this file; servers that they share start here, when first used."""

import itertools
import os
import sys
from pathlib import Path

import pytest

# importlib mode puts no folder of tests on the path.
sys.path.insert(0, str(Path(__file__).parent))

from services import Redis, Seaweed

_databases = itertools.count(1)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """One Redis for all tests of this process that do not stop it; those that do make their own (`new_redis`)."""
    with Redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server):
    """An empty database of the shared Redis."""
    return redis_server.url_of(next(_databases))


@pytest.fixture
def new_redis(tmp_path):
    """Starts a Redis of the test's own: `new_redis(password="…", maxmemory="4mb")`."""
    servers = []

    def start(**config):
        servers.append(Redis(tmp_path / f"redis-{len(servers)}", **config))
        return servers[-1].start()

    yield start
    for server in servers:
        server.kill()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """One S3 server for all tests of this process that do not stop it."""
    with Seaweed(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_environment(s3_server, monkeypatch):
    """Credentials and endpoint of the shared S3 server in the environment, as `s3://` URLs need them."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server.environment


@pytest.fixture
def s3_url(s3_server, s3_environment):
    """An empty prefix in the bucket of the shared S3 server; credentials are in the environment."""
    return s3_server.url(f"t-{os.urandom(6).hex()}")
