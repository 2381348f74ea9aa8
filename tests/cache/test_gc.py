"""Garbage collection: keeps what is reachable, removes the rest, and does both while builds run."""

from __future__ import annotations

import os
import threading
import time

import pytest

from spyre_cache import BlobNotFoundError, Cache, Digest, ReferenceError_
from spyre_cache.root import GC_LOCK
from tests.cache.worlds import action, assert_complete, model


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


def make(path, *numbers: int) -> list[Digest]:
    """Models put by a process that is done."""
    with Cache.open(path) as cache:
        return [model(cache, number) for number in numbers]


def collect(path, **options):
    with Cache.open(path) as cache:
        found = cache.collect(**{"grace": 0, **options})
        assert cache.verify() == []
        return found


def test_unreachable_goes_and_reachable_stays(path):
    one, two, three = make(path, 1, 2, 3)
    with Cache.open(path) as cache:
        cache.refs.tag("m", "1", one)
        cache.pins.add(two)
    found = collect(path)
    assert (found.manifests, found.actions) == (1, 1)
    assert found.blobs == 8  # fragment, action, output, log, own weight, manifest, golden tensor, statement
    with Cache.open(path) as cache:
        assert_complete(cache, one)
        assert_complete(cache, two)
        assert cache.blobs.missing([three]) == {three}
        with pytest.raises(ReferenceError_):
            cache.refs.resolve(str(three))
        assert cache.actions.document(action(cache, 1).key()) is not None


def test_everything_goes_when_nothing_is_named(path):
    make(path, 1, 2)
    collect(path)
    with Cache.open(path, read_only=True) as cache:
        stats = cache.stats()
        assert (stats.blobs, stats.actions, stats.manifests) == (0, 0, 0)
    left = [p for p in path.rglob("*") if p.is_file() and p.parent.name != "locks"]
    assert [p.name for p in left] == ["FORMAT"]


def test_dry_run_counts_and_removes_nothing(path):
    make(path, 1)
    before = sorted(path.rglob("blobs/*/*"))
    found = collect(path, dry_run=True)
    assert (found.blobs, found.manifests, found.actions) == (9, 1, 1)
    assert sorted(path.rglob("blobs/*/*")) == before
    assert collect(path).blobs == 9


def test_young_objects_stay_for_the_grace(path):
    make(path, 1)
    assert collect(path, grace=60).blobs == 0
    for file in path.rglob("*"):
        if file.is_file():
            os.utime(file, (time.time() - 120,) * 2)
    assert collect(path, grace=60).blobs == 9


def test_what_a_living_process_put_or_found_stays(path):
    (one,) = make(path, 1)
    with Cache.open(path) as builder:
        fresh = builder.blobs.put(b"just put")
        assert builder.blobs.missing([one]) == set()
        collect(path)
        assert builder.blobs.get(fresh) == b"just put"
        assert_complete(builder, one)
    collect(path)
    with Cache.open(path) as cache:
        assert cache.blobs.missing([one, fresh]) == {one, fresh}


def test_action_hit_keeps_its_outputs(path):
    make(path, 1)
    with Cache.open(path) as builder:
        fragment = Digest.of(b"fragment 1")
        key = action(builder, 1).key()
        result = builder.actions.get(key)
        builder.root.lease()
        os.utime(path / "actions" / key[:2] / key, (1, 1))
        collect(path, grace=0)
        assert builder.blobs.missing([output.digest for output in result.outputs]) == set()
        assert builder.blobs.get(fragment)


def test_named_lease_holds_for_as_long_as_any_holder(path):
    (one,) = make(path, 1)
    with Cache.open(path) as first, Cache.open(path) as second:
        lease, again = first.lease("build-7"), second.lease("build-7")
        lease.hold([one.hash])
        lease.close()
        collect(path)
        assert first.manifest(one)
        again.close()
    collect(path)
    with Cache.open(path) as cache, pytest.raises(BlobNotFoundError):
        cache.manifest(one)


def test_lease_of_a_killed_process_counts_no_more(path):
    (one,) = make(path, 1)
    pid = os.fork()
    if pid == 0:
        with Cache.open(path) as cache:
            cache.blobs.missing([one])
            os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert len(list((path / "leases").iterdir())) == 1
    collect(path)
    assert list((path / "leases").iterdir()) == []
    with Cache.open(path) as cache:
        assert cache.blobs.missing([one]) == {one}


def test_forked_child_holds_on_its_own_after_its_parent_closed(path):
    (one,) = make(path, 1)
    ready, go = os.pipe(), os.pipe()
    cache = Cache.open(path)
    cache.blobs.put(b"parent's")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            cache.blobs.missing([one])
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            assert_complete(cache, one)
            code = 0
        finally:
            os._exit(code)
    os.read(ready[0], 1)
    cache.close()
    collect(path)
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for fd in (*ready, *go):
        os.close(fd)


def test_recent_build_document_keeps_what_it_mentions(path):
    with Cache.open(path) as cache:
        log = cache.blobs.put(b"log of a failed fragment")
        printed = cache.blobs.put(b"mentioned in print")
        cache.builds.put("b", b'{"log":{"hash":"%s","size":%d},"x":["%s"]}' % (
            log.hash.encode(), log.size, str(printed).encode()))  # fmt: skip
    with Cache.open(path) as cache:
        old = time.time() - 100
        for file in (path / "blobs").rglob("*"):
            os.utime(file, (old, old))
        cache.collect(grace=50)
        assert cache.blobs.missing([log, printed]) == set()


def test_interrupted_collection_is_undone_by_whoever_looks(path):
    (one,) = make(path, 1)
    (path / "trash").mkdir()
    for file in list((path / "blobs").rglob("*")):
        if file.is_file():
            file.rename(path / "trash" / file.name)
    with Cache.open(path, read_only=True) as reader:
        assert_complete(reader, one)
    with Cache.open(path) as cache:
        assert cache.blobs.missing([one]) == set()
        assert_complete(cache, one)
        assert cache.verify() == []


def test_blob_looked_for_during_a_collection_waits_for_its_verdict(path):
    """A look that meets a tombstone does not answer before the collection has decided."""
    with Cache.open(path) as cache, Cache.open(path) as other:
        digest = cache.blobs.put(b"wanted")
        (file,) = (path / "blobs" / digest.hash[:2]).iterdir()
        answers = []
        with cache.root.lock(GC_LOCK):
            (path / "trash").mkdir()
            file.rename(path / "trash" / file.name)
            thread = threading.Thread(target=lambda: answers.append(other.blobs.missing([digest])))
            thread.start()
            time.sleep(0.2)
            assert answers == []
            assert other.blobs.get(digest) == b"wanted"
        thread.join()
        assert answers == [set()]


@pytest.mark.slow
def test_builds_and_collections_side_by_side_lose_nothing(path):
    """Threads build, look up and tag the same few models while others collect without any grace."""
    stop = time.monotonic() + 6
    errors: list[BaseException] = []
    done = [0, 0]

    def build(worker: int) -> None:
        number = worker
        while time.monotonic() < stop:
            with Cache.open(path) as cache:
                number = (number * 7 + 3) % 5
                manifest = model(cache, number, shared=number % 2)
                assert_complete(cache, manifest)
                cache.refs.tag(f"w{worker}", "1", manifest, force=True)
            with Cache.open(path) as cache:
                assert_complete(cache, cache.refs.resolve(f"w{worker}"))
                done[0] += 1

    def sweep() -> None:
        while time.monotonic() < stop:
            with Cache.open(path) as cache:
                done[1] += cache.collect(grace=0).blobs

    def guarded(work, *args) -> None:
        try:
            work(*args)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(build, n)) for n in range(3)]
    threads += [threading.Thread(target=guarded, args=(sweep,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert done[0] > 3
    assert done[1] > 0
    with Cache.open(path) as cache:
        assert cache.verify() == []
