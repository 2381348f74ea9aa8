"""Claims on disk and in Redis, held to one suite, and what is each one's own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from claims_conformance import K1, ClaimsConformance, claim

from spyre_cache.cache import Cache
from spyre_cache.claims_disk import DiskClaims
from spyre_cache.claims_redis import RedisClaims
from spyre_cache.errors import CacheUnavailableError
from spyre_cache.root import Root


class TestDiskClaims(ClaimsConformance):
    @pytest.fixture
    def pair(self, tmp_path):
        return DiskClaims(Root(tmp_path / "c")), DiskClaims(Root(tmp_path / "c"))

    @pytest.fixture
    def damage(self, tmp_path):
        return lambda key, data: (tmp_path / "c" / "claims" / key[:2] / key).write_bytes(data)


class TestRedisClaims(ClaimsConformance):
    @pytest.fixture
    def url(self, redis_url):
        return f"{redis_url}?prefix=t{uuid.uuid4().hex}"

    @pytest.fixture
    def pair(self, url):
        one, two = RedisClaims(url), RedisClaims(url)
        yield one, two
        one.close()
        two.close()

    @pytest.fixture
    def damage(self, url, pair):
        return lambda key, data: pair[0]._client.set(pair[0]._claim_key(key), data)

    @pytest.mark.parametrize("put", [("LPUSH",), ("SADD",), ("HSET", "f"), ("XADD", "*", "f")])
    def test_keys_of_a_wrong_kind_count_as_damaged_and_go(self, pair, put):
        one, two = pair
        client, (word, *more) = one._client, put
        names = [one._claim_key(K1), one._token_key("t1"), f"{one._address.prefix}:epoch"]
        for name in names:
            client.execute_command(word, name, *more, "x")
        assert one.read([K1])[K1].claim is None
        assert one.swap(K1, None, claim())
        assert two.read([K1])[K1].claim == claim()
        assert one.renew(["t1"], 5) == set()
        assert two.alive(["t1"]) == {"t1"}
        assert one.epoch() == two.epoch()


@pytest.mark.parametrize("detached", [False, True])
def test_token_of_a_killed_process_dies_at_once_unless_detached(tmp_path, detached):
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from spyre_cache.claims_disk import DiskClaims
        from spyre_cache.root import Root
        DiskClaims(Root(Path(sys.argv[1]))).begin("t1", 60, detached=sys.argv[2] == "True")
        print("go", flush=True)
        sys.stdin.read()
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "c"), str(detached)],
        stdout=subprocess.PIPE, stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == b"go\n"
    claims = DiskClaims(Root(tmp_path / "c"))
    assert claims.alive(["t1"]) == {"t1"}
    process.kill()
    process.communicate()
    assert claims.alive(["t1"]) == ({"t1"} if detached else set())


def test_claims_and_tokens_are_no_strays_in_a_cache(tmp_path):
    with Cache.open(tmp_path / "c") as cache:
        claims = DiskClaims(cache.root)
        claims.begin("t1")
        claims.swap(K1, None, claim())
        assert cache.verify() == []
        claims.end("t1")


def test_files_of_dead_tokens_do_not_pile_up(tmp_path):
    claims = DiskClaims(Root(tmp_path / "c"))
    for number in range(5):
        claims.begin(f"t{number}", 0.01)
        time.sleep(0.02)
    assert len(list((tmp_path / "c" / "tokens").iterdir())) == 1


def test_redis_that_restarts_empty_has_another_epoch(new_redis):
    own_redis = new_redis()
    claims = RedisClaims(own_redis.url)
    before = claims.epoch()
    own_redis.restart(keep=True)
    assert claims.epoch() == before
    own_redis.restart(keep=False)
    assert claims.epoch() != before
    own_redis.stop()
    with pytest.raises(CacheUnavailableError, match="cannot be reached"):
        claims.read([K1])
    claims.close()
