"""`cache gc` from the shell: tiers by number and URL, budgets, and words that are none."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from spyre_build.cli.main import app
from spyre_build.collecting import parse_bytes
from spyre_build.errors import UsageError
from spyre_cache import Cache
from tests.cache.store_conformance import noise


@pytest.fixture
def url(tmp_path):
    return f"{tmp_path}/cache,file://{tmp_path}/shared"


def fill(url, count=4):
    with Cache.open(url) as cache:
        return [cache.blobs.put(noise(50_000, n), raw=True) for n in range(count)]


def gc(url, *options, code=0):
    result = CliRunner().invoke(app, ["cache", "gc", "--cache", url, *options, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_directory_and_shared_tier_are_collected_apart(url, tmp_path):
    digests = fill(url)
    assert gc(url, "--grace", "0")["blobs"] == 4
    with Cache.open(url) as cache:
        assert cache.blobs.missing(digests) == set()
    found = gc(url, "--grace", "0", "--tier", "1", "--dry-run")
    assert (found["tier"], found["blobs"], found["dry_run"]) == (f"file://{tmp_path}/shared", 4, True)
    found = gc(url, "--grace", "0", "--tier", f"file://{tmp_path}/shared")
    assert (found["blobs"], found["kept_blobs"], found["kept_bytes"]) == (4, 0, 0)
    with Cache.open(url) as cache:
        assert cache.blobs.missing(digests) == set(digests)


def test_budget_of_the_directory_counts_on_the_shared_tier(url):
    digests = fill(url)
    found = gc(url, "--max-bytes", "120kB")
    assert (found["blobs"], found["evicted"], found["kept_blobs"]) == (0, 2, 2)
    assert found["kept_bytes"] <= 120_000
    with Cache.open(url) as cache:
        assert len(cache.local.blobs.missing(digests)) == 2
        assert cache.blobs.missing(digests) == set()
        assert [cache.blobs.get(digest) for digest in digests] == [noise(50_000, n) for n in range(4)]


def test_tier_that_is_none_is_a_usage_error_that_lists_them(url, tmp_path):
    fill(url)
    for word in ("2", "s3://bucket/x", "nonsense", "-1"):
        found = gc(url, f"--tier={word}", code=2)
        assert f"1 file://{tmp_path}/shared" in found["error"]
    assert "secret" not in gc(url, "--tier", "redis://:secret@host", code=2)["error"]


def test_redis_tier_needs_no_collecting(tmp_path, redis_url):
    found = gc(f"{tmp_path}/cache,{redis_url}", "--tier", "1", code=2)
    assert "forgets by itself" in found["error"]


def test_collection_under_way_elsewhere_is_infrastructure(url, tmp_path):
    fill(url)
    (tmp_path / "shared" / "gc").mkdir()
    (tmp_path / "shared" / "gc" / "running").write_bytes(b"another")
    assert "another garbage collection" in gc(url, "--tier", "1", code=5)["error"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("1500", 1500),
        ("10GB", 10**10),
        ("1.5 GiB", 3 << 29),
        ("2k", 2000),
        ("3MiB", 3 << 20),
        ("1TB", 10**12),
        ("7B", 7),
    ],
)
def test_sizes_are_read(text, number):
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "1XB", "1iB", "1.2345GB", "9" * 13, "1 2"])
def test_what_is_no_size_is_a_usage_error(text):
    with pytest.raises(UsageError, match="a number of bytes"):
        parse_bytes(text)
