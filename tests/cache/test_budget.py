"""Making room in a cache directory: the least recently used goes, and nothing is lost by it."""

from __future__ import annotations

import os
import time

import pytest

from spyre_cache import Cache, CacheUnavailableError
from spyre_cache.budget import shrink
from spyre_cache.stores.disk_documents import DiskDocuments
from spyre_cache.stores.object import open_object
from tests.cache.store_conformance import noise
from tests.cache.worlds import assert_complete, model

KINDS = ("actions", "documents", "manifests", "refs", "statements", "pins")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def durable(tmp_path):
    blobs, documents = open_object(f"file://{tmp_path}/shared")
    yield blobs, documents
    blobs.close()


def make(path, *numbers: int):
    with Cache.open(path) as cache:
        return [model(cache, number) for number in numbers]


def age(path, seconds: float) -> None:
    for file in path.rglob("*"):
        if file.is_file():
            os.utime(file, (time.time() - seconds,) * 2)


def copy(path, durable) -> None:
    """What write-through would have brought there."""
    blobs, documents = durable
    with Cache.open(path) as cache:
        local = DiskDocuments(cache.root)
        for digest in cache.blobs.iter():
            blobs.put(cache.blobs.get(digest))
        for kind in KINDS:
            for key, document in local.get_many(kind, local.keys(kind)).items():
                documents.create(kind, key, document.data)


def bytes_in(path) -> int:
    return sum(file.stat().st_blocks * 512 for file in (path / "blobs").rglob("*") if file.is_file())


def test_lone_directory_loses_the_oldest_that_nobody_needs(path):
    one, two, _ = make(path, 1, 2, 3)
    with Cache.open(path) as cache:
        cache.refs.tag("m", "1", one)
        cache.pins.add(two)
    age(path, 7200)
    with Cache.open(path) as cache:
        full = bytes_in(path)
        found = shrink(cache, full - 30_000)
        assert 30_000 <= found.blob_bytes < 70_000
        assert found.kept_bytes == bytes_in(path) <= full - 30_000
        nothing = shrink(cache, 0)
        assert nothing.kept_bytes == bytes_in(path) > 0
        assert_complete(cache, one)
        assert_complete(cache, two)
    with Cache.open(path) as cache:
        assert cache.verify() == []
        assert len(cache.refs.manifests()) == 2


def test_lone_directory_keeps_what_is_young(path):
    make(path, 1)
    with Cache.open(path) as cache:
        assert shrink(cache, 0).blobs == 0


def test_copy_of_a_durable_tier_may_lose_anything_but_what_is_here_alone(path, durable):
    one, two = make(path, 1, 2)
    with Cache.open(path) as cache:
        cache.refs.tag("m", "1", one)
        cache.pins.add(two)
    copy(path, durable)
    (three,) = make(path, 3)
    with Cache.open(path) as cache:
        before = bytes_in(path)
        dry = shrink(cache, 0, durable=durable, dry_run=True)
        assert bytes_in(path) == before
        found = shrink(cache, 0, durable=durable)
        assert (found.blobs, found.blob_bytes, found.names) == (dry.blobs, dry.blob_bytes, dry.names)
        assert found.kept_bytes == bytes_in(path)
        assert_complete(cache, three)
        assert cache.refs.releases() == []
    with Cache.open(path) as cache:
        assert cache.verify() == []


def test_budget_takes_the_least_recently_used_first(path, durable):
    blobs, _ = durable
    with Cache.open(path) as cache:
        digests = [cache.blobs.put(noise(40_000, n), raw=True) for n in range(6)]
    for n, digest in enumerate(digests):
        blobs.put(noise(40_000, n))
        when = time.time() - 1000 * (10 - n)
        os.utime(cache.path / "blobs" / digest.hash[:2] / digest.hash, (when, when))
    with Cache.open(path) as cache:
        cache.blobs.get(digests[0])
        os.utime(path / "blobs" / digests[0].hash[:2] / digests[0].hash)  # where times of reading are not kept
        assert shrink(cache, 4 * 41_000, durable=durable).blobs == 2
        assert cache.blobs.missing(digests) == {digests[1], digests[2]}


def test_what_a_living_process_holds_stays(path, durable):
    with Cache.open(path) as cache:
        held, other = (cache.blobs.put(noise(9000, n)) for n in range(2))
    for n in range(2):
        durable[0].put(noise(9000, n))
    with Cache.open(path) as cache:
        cache.blobs.missing([held])
        assert shrink(cache, 0, durable=durable).blobs == 1
        assert cache.blobs.missing([held, other]) == {other}


def test_durable_tier_that_is_away_loses_nothing(path, durable, monkeypatch):
    make(path, 1)
    copy(path, durable)

    def away(_):
        raise CacheUnavailableError("away")

    monkeypatch.setattr(durable[0], "missing", away)
    before = bytes_in(path)
    with Cache.open(path) as cache, pytest.raises(CacheUnavailableError):
        shrink(cache, 0, durable=durable)
    assert bytes_in(path) == before
