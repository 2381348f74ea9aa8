"""The servers that other tests rely on: that they come, go, freeze and end as they say."""

import os
import subprocess
import sys
import time
from pathlib import Path

import obstore
import pytest
import redis
from fronts import FaultyHttp
from obstore.store import S3Store
from services import BUCKET, Redis


def test_redis_restarted_with_and_without_its_data(new_redis):
    server = new_redis()
    with redis.Redis.from_url(server.url) as client:
        client.set("a", "1")
        server.restart(keep=True)
        assert client.get("a") == b"1"
        server.restart(keep=False)
        assert client.get("a") is None


def test_redis_with_password_and_settings_refuses_strangers(new_redis):
    server = new_redis(password="secret", maxmemory="3mb")
    with redis.Redis(port=server.port, retry=None) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    server.set(maxmemory_policy="allkeys-lru")
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert client.config_get("maxmemory*") | {"maxmemory": "3145728", "maxmemory-policy": "allkeys-lru"} == (
            client.config_get("maxmemory*")
        )


def test_redis_paused_answers_only_once_resumed(new_redis):
    server = new_redis()
    with redis.Redis(port=server.port, socket_timeout=0.2, retry=None) as client:
        client.ping()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert client.ping()


def test_server_ends_with_a_parent_that_is_killed(tmp_path):
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from services import Redis; from pathlib import Path\n"
        "print(Redis(Path(sys.argv[2])).start().pid, flush=True); time.sleep(60)"
    )
    here = str(Path(__file__).parent)
    with subprocess.Popen([sys.executable, "-c", program, here, tmp_path / "r"], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    for _ in range(200):
        if not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes():
            break
        time.sleep(0.05)
    else:
        os.kill(pid, 9)
        pytest.fail("the server outlived its parent")


def test_s3_stores_objects_and_lets_one_creator_win(s3_server, s3_environment):
    store = S3Store(BUCKET, prefix="services", endpoint=s3_server.endpoint, client_options={"allow_http": True})
    obstore.put(store, "x", b"1", mode="create")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "x", b"2", mode="create")
    assert bytes(obstore.get(store, "x").bytes()) == b"1"


def test_faulty_http_passes_on_and_injects(s3_server, s3_environment):
    left = [2]

    def fault(method, path):
        left[0] -= 1
        return (503, "<Error><Code>SlowDown</Code></Error>") if left[0] >= 0 else None

    with FaultyHttp(s3_server.port, fault) as proxy:
        store = S3Store(BUCKET, prefix="services", endpoint=proxy.endpoint, client_options={"allow_http": True})
        obstore.put(store, "y", b"12345")
        assert obstore.head(store, "y")["size"] == 5
        assert bytes(obstore.get(store, "y").bytes()) == b"12345"
        assert proxy.seen >= 5


def test_redis_is_the_same_type_for_direct_use(tmp_path):
    with Redis(tmp_path / "direct") as server:
        assert server.command("PING")
