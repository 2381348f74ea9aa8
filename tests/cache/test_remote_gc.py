"""Garbage collection of a bucket and of a shared directory: keeps what is in use, removes the rest, while builds run."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from spyre_cache import CacheUnavailableError, Digest, remote_gc
from spyre_cache.actions import ActionCache
from spyre_cache.builds import Builds
from spyre_cache.codec import decode, encode
from spyre_cache.objects.action import ActionResult, OutputFile
from spyre_cache.objects.manifest import Manifest
from spyre_cache.objects.plan import PlanRecord
from spyre_cache.refs import Known, Pins, Refs, Statements
from spyre_cache.remote_gc import collect_objects
from spyre_cache.remote_marks import LEASE_SECONDS
from spyre_cache.stores import object_holds
from spyre_cache.stores.object import ObjectStore, blob_path
from spyre_cache.stores.object_documents import ObjectDocuments
from spyre_cache.stores.object_opening import open_objects
from tests.cache.store_conformance import MIB, noise
from tests.cache.worlds import action, key_of, model

DAY = 24 * 3600.0


class Shared(SimpleNamespace):
    """The face of a cache over nothing but a durable tier."""

    def __init__(self, url, refresh=object_holds.REFRESH_SECONDS):
        objects = open_objects(url)
        blobs, documents = ObjectStore(objects, refresh=refresh), ObjectDocuments(objects, refresh=refresh)
        both = (documents, blobs)
        super().__init__(
            objects=objects, blobs=blobs, documents=documents, actions=ActionCache(*both), refs=Refs(*both),
            pins=Pins(*both), statements=Statements(*both), builds=Builds(documents),
        )  # fmt: skip

    def put_manifest(self, manifest):
        digest = self.blobs.put(manifest.encoded())
        self.refs.register(digest)
        return digest

    def manifest(self, digest):
        return decode(self.blobs.get(digest), Manifest)

    def collect(self, **options):
        return collect_objects(self.blobs, self.documents, **options)

    def later(self, seconds):
        """The store's clock, so much later from now on: everything is that old."""
        now = self.objects.now
        self.objects.now = lambda: now() + seconds
        return self


@pytest.fixture(params=["s3", "file"])
def url(request, tmp_path):
    if request.param == "file":
        return f"file://{tmp_path}/shared"
    return request.getfixturevalue("s3_url")


@pytest.fixture
def opened(url):
    caches = []

    def another(**options):
        caches.append(Shared(url, **options))
        return caches[-1]

    yield another
    for cache in caches:
        cache.objects.close()


@pytest.fixture
def cache(opened):
    return opened()


def assert_complete(cache, manifest: Digest) -> None:
    record = cache.manifest(manifest)
    for fragment in record.fragments:
        cache.blobs.get(fragment)
    for artifact in record.artifacts:
        assert cache.actions.get(artifact.action) is not None
    for weight in record.weights:
        cache.blobs.get(weight.digest)
    (statement,) = cache.statements.list(manifest)
    cache.blobs.get(statement.blob)


def left_of(cache) -> set[str]:
    ours = {"FORMAT", "clock"}
    return {meta.path for meta in cache.objects.list("")} - ours


# --- what stays and what goes ---


def test_unreachable_goes_and_reachable_stays(cache):
    one, two, three = (model(cache, number) for number in (1, 2, 3))
    cache.refs.tag("m", "1", one)
    cache.pins.add(two)
    found = cache.later(2 * DAY).collect()
    assert (found.manifests, found.actions) == (1, 1)
    assert found.blobs == 8  # fragment, action, output, log, own weight, manifest, golden tensor, statement
    assert_complete(cache, one)
    assert_complete(cache, two)
    assert cache.blobs.missing([three]) == {three}
    assert cache.refs.manifests() == sorted([one, two])
    assert cache.actions.document(action(cache, 1).key()) is not None
    again = cache.later(2 * DAY).collect()
    assert (again.blobs, again.actions, again.manifests) == (0, 0, 0)
    assert again.kept_blobs == found.kept_blobs


def test_everything_goes_when_nothing_is_named(cache):
    for number in (1, 2):
        model(cache, number)
    cache.builds.put("b1", b"{}")
    cache.documents.create("leases", "b1", b"{}")
    cache.later(2 * DAY).collect()
    assert {path.partition("/")[0] for path in left_of(cache)} <= {"builds", "locks"}


def test_dry_run_counts_and_removes_nothing(cache):
    model(cache, 1)
    cache.later(2 * DAY)
    before = left_of(cache)
    found = cache.collect(dry_run=True)
    assert (found.blobs, found.manifests, found.actions, found.dry_run) == (9, 1, 1, True)
    assert left_of(cache) == before
    real = cache.collect()
    assert (real.blobs, real.blob_bytes, real.kept_blobs) == (9, found.blob_bytes, found.kept_blobs)


def test_young_objects_stay_for_the_grace(cache):
    model(cache, 1)
    assert cache.collect().blobs == 0
    cache.later(3600)
    assert cache.collect(grace=7200).blobs == 0
    assert cache.collect(grace=3000).blobs == 9


def test_result_that_was_used_stays(cache):
    model(cache, 1)
    key = action(cache, 1).key()
    cache.later(2 * DAY)
    assert cache.documents.ages("actions")[key] > DAY
    path = f"actions/-/{key}"
    cache.objects.put(path, cache.objects.get(path).data)  # as a touch of two days later does
    cache.objects.now = lambda: time.time() + 3600
    found = cache.collect(grace=1800, dry_run=True)
    assert found.actions == 1
    cache.objects.now = time.time
    assert cache.collect(grace=1800).actions == 0


# --- who is at work ---


def plan(cache, number) -> tuple[Digest, str]:
    act = action(cache, number)
    cache.actions.describe(act)
    record = PlanRecord(
        name="m", programs=(), fragments=(act.fragment,), weights=(), weight_mode="none", targets=(act.target,),
        toolchain=act.toolchain, partition="", torch="2.13.0",
    )  # fmt: skip
    return cache.blobs.put(encode(record)), act.key()


def test_living_lease_keeps_what_its_build_and_plan_mention(cache, monkeypatch):
    digest, key = plan(cache, 1)
    output = cache.blobs.put(noise(5000), raw=True)
    cache.actions.put(ActionResult(action=key, status="ok", outputs=(OutputFile(name="model.so", digest=output),)))
    weight = cache.blobs.put(noise(6000), raw=True)
    cache.builds.put("b1", encode_build(digest, key))
    cache.documents.create("leases", "b1", f'"{weight}"'.encode())
    cache.later(2 * DAY)
    ages = cache.documents.ages
    young = lambda kind, prefix="": dict.fromkeys(ages(kind, prefix), 5.0) if kind == "leases" else ages(kind, prefix)  # noqa: E731
    monkeypatch.setattr(cache.documents, "ages", young)
    found = cache.collect()
    assert (found.blobs, found.actions) == (0, 0)
    assert cache.blobs.missing([digest, output, weight]) == set()
    assert cache.actions.document(key) is not None
    monkeypatch.setattr(cache.documents, "ages", ages)
    for meta in cache.objects.list(object_holds.HOLDS):
        cache.objects.delete([meta.path])
    cache.objects.now = lambda: time.time() + LEASE_SECONDS + 5
    assert cache.collect(grace=LEASE_SECONDS).blobs == 5


def encode_build(plan: Digest, key: str) -> bytes:
    words = (key.encode(), plan.hash.encode(), plan.size)
    return b'{"schema":"build/1","actions":[{"key":"%s"}],"plan":{"hash":"%s","size":%d}}' % words


def test_young_build_keeps_its_plan_and_what_that_mentions(cache):
    digest, key = plan(cache, 1)
    cache.later(2 * DAY)
    cache.builds.put("b1", encode_build(digest, key))
    ages = cache.documents.ages
    cache.documents.ages = lambda kind, prefix="": {
        k: a - 2 * DAY * (kind == "builds") for k, a in ages(kind, prefix).items()
    }
    assert cache.collect().blobs == 0
    assert cache.actions.document(key) is not None


def test_what_somebody_found_stays_for_a_day(cache, opened):
    digest = cache.blobs.put(b"old and nameless")
    finder = opened(refresh=0.0)
    assert finder.blobs.missing([digest]) == set()
    assert cache.later(3600).collect(grace=0).blobs == 0
    assert cache.later(2 * DAY).collect(grace=0).blobs == 1
    assert left_of(cache) - {"locks/leases"} == set() or all(path.startswith("locks/") for path in left_of(cache))


def test_blob_put_or_found_during_the_sweep_stays(cache, opened, monkeypatch):
    replaced, found, doomed = (cache.blobs.put(noise(5000, n)) for n in range(3))
    other = opened(refresh=0.0)
    read = object_holds.read_holds

    def meanwhile(objects, known=None):
        if known is not None and objects.get(object_holds.SWEEP) is not None:
            cache.objects.delete([blob_path(replaced)])
            time.sleep(1.1)  # a bucket counts whole seconds
            other.blobs.put(noise(5000, 0))
            other.objects.put(f"{object_holds.HOLDS}/x", f"{blob_path(found)}\n".encode())
        return read(objects, known)

    monkeypatch.setattr("spyre_cache.remote_gc.read_holds", meanwhile)
    result = cache.collect(grace=0)
    assert (result.blobs, result.rescued) == (1, 2)
    assert cache.blobs.missing([replaced, found, doomed]) == {doomed}


def test_name_that_comes_into_use_after_the_first_marking_is_put_back(cache, opened, monkeypatch):
    one, two = model(cache, 1), model(cache, 2)
    other = opened()
    drop = remote_gc._Collection._drop

    def meanwhile(self, names, grace):
        dropped = drop(self, names, grace)
        other.documents.create("pins", one.hash, encode(Known(manifest=one)))  # without a look at what is there
        return dropped

    monkeypatch.setattr(remote_gc._Collection, "_drop", meanwhile)
    cache.later(2 * DAY)
    found = cache.collect()
    assert (found.manifests, found.actions) == (1, 1)
    cache.objects.now = time.time
    assert_complete(cache, one)
    assert cache.blobs.missing([two]) == {two}


def test_chunks_stay_with_the_last_blob_that_consists_of_them(cache):
    one = noise(6 * MIB)
    two = one[: 4 * MIB] + noise(2 * MIB, 1)
    kept, gone = cache.blobs.put(one), cache.blobs.put(two)
    before = {meta.path for meta in cache.objects.list("chunks")}
    cache.documents.create("leases", "b", f'"{kept}"'.encode())
    cache.objects.now = time.time
    found = cache.collect(grace=0)
    assert found.blobs > 1
    assert cache.blobs.get(kept) == one
    assert cache.blobs.missing([gone]) == {gone}
    after = {meta.path for meta in cache.objects.list("chunks")}
    assert after < before
    cache.documents.remove("leases", "b")
    cache.collect(grace=0)
    assert list(cache.objects.list("chunks")) == []


def test_large_blob_found_during_the_sweep_keeps_its_chunks(cache, monkeypatch):
    digest = cache.blobs.put(noise(6 * MIB), raw=True)
    read = object_holds.read_holds

    def meanwhile(objects, known=None):
        if known is not None and objects.get(object_holds.SWEEP) is not None:
            objects.put(f"{object_holds.HOLDS}/x", f"{blob_path(digest)}\n".encode())
        return read(objects, known)

    monkeypatch.setattr("spyre_cache.remote_gc.read_holds", meanwhile)
    assert cache.collect(grace=0).blobs == 0
    assert cache.blobs.get(digest) == noise(6 * MIB)


def test_half_written_files_of_the_dead_go_after_a_day(tmp_path):
    cache = Shared(f"file://{tmp_path}/d")
    digest = cache.blobs.put(b"x")
    for name, age in (("#1", 2 * DAY), ("#2", 10.0), ("#x", 2 * DAY)):
        file = (tmp_path / "d" / blob_path(digest)).with_name("half" + name)
        file.write_bytes(b"half")
        os.utime(file, (time.time() - age,) * 2)
    cache.collect()
    assert sorted(p.name for p in (tmp_path / "d").rglob("half*")) == ["half#2", "half#x"]


# --- faults ---


def test_name_that_is_found_stays(cache, opened):
    one = model(cache, 1)
    finder = opened(refresh=0.0)
    finder.refs.register(one)
    found = cache.later(3600).collect(grace=0)
    assert (found.manifests, found.actions, found.blobs) == (0, 0, 0)
    assert_complete(cache, one)


def test_two_collections_do_not_meet_and_a_dead_one_is_succeeded(cache):
    cache.blobs.put(b"x")
    cache.objects.create("gc/running", b"another")
    with pytest.raises(CacheUnavailableError, match="another garbage collection is under way"):
        cache.collect(grace=0)
    assert cache.later(1000).collect(grace=0).blobs == 1


def test_store_that_fails_while_marking_loses_nothing(cache, monkeypatch):
    one = model(cache, 1)
    cache.refs.tag("m", "1", one)
    cache.later(2 * DAY)
    get = cache.objects.get
    left = [0]

    def failing(path, *rest):
        left[0] -= 1
        if left[0] == 0:
            raise CacheUnavailableError("away")
        return get(path, *rest)

    for count in range(2, 30, 4):
        left[0] = count
        monkeypatch.setattr(cache.objects, "get", failing)
        with suppress(CacheUnavailableError):
            cache.collect()
        monkeypatch.setattr(cache.objects, "get", get)
        assert_complete(cache, one)


def test_damaged_documents_and_records_stop_nothing(cache):
    one = model(cache, 1)
    cache.refs.tag("m", "1", one)
    for kind, key in (("refs", "m/2"), ("pins", "ab" * 32), ("builds", "b"), ("leases", "l"), ("manifests", "cd" * 32)):
        cache.documents.create(kind, key, b"{ damaged")
    cache.objects.put("pins/-/" + "ef" * 32, b"no document at all")
    cache.objects.put("leases/nonsense/with/parts", b"")
    cache.later(2 * DAY).collect()
    assert_complete(cache, one)


# --- budget ---


def results(cache, count: int) -> list[str]:
    for number in range(count):
        output = OutputFile(name="model.so", digest=cache.blobs.put(noise(50_000, number), raw=True))
        cache.actions.put(ActionResult(action=key_of(number), status="ok", outputs=(output,)))
    return [key_of(number) for number in range(count)]


def test_budget_drops_the_least_recently_used_and_never_a_root(cache, monkeypatch):
    keys = results(cache, 8)
    released = model(cache, 100)
    cache.refs.tag("m", "1", released)
    ages = cache.documents.ages
    order = {key: 3600.0 * (20 - n) for n, key in enumerate(keys)}
    monkeypatch.setattr(
        cache.documents, "ages", lambda kind, prefix="": {k: order.get(k, a) for k, a in ages(kind, prefix).items()}
    )
    cache.later(4 * 3600)
    before = cache.collect(dry_run=True)
    assert before.evicted == 0
    room = before.kept_bytes - 120_000
    dry = cache.collect(max_bytes=room, dry_run=True)
    found = cache.collect(max_bytes=room)
    assert (found.evicted, found.blobs) == (dry.evicted, dry.blobs) == (3, 3)
    assert found.kept_bytes <= room
    assert [cache.actions.peek(key) is not None for key in keys] == [False] * 3 + [True] * 5
    rest = cache.collect(max_bytes=0)
    assert rest.evicted == 5
    assert rest.kept_bytes > 0
    cache.objects.now = time.time
    assert_complete(cache, released)


def test_budget_keeps_what_is_younger_than_three_hours(cache):
    keys = results(cache, 2)
    cache.later(2.9 * 3600)
    assert cache.collect(max_bytes=0).evicted == 0
    assert all(cache.actions.get(key) for key in keys)


# --- while builds run ---


@pytest.mark.parametrize("seconds", [8, pytest.param(180, marks=pytest.mark.soak)])
def test_builds_that_run_meanwhile_lose_nothing(cache, opened, seconds):
    """Grace of three seconds, so that seconds do what hours do: what is found older than one is held."""
    stop = time.monotonic() + seconds
    errors: list[BaseException] = []
    done: dict[int, Digest] = {}

    def build(seed: int) -> None:
        mine = opened(refresh=1.0)
        number = 0
        try:
            while time.monotonic() < stop:
                number += 1
                index = seed * 1000 + number % 3  # the same models again and again, partly shared
                digest = model(mine, index, shared=number % 2)
                mine.refs.tag(f"m{seed}", str(number), digest)
                if number % 2:
                    assert_complete(mine, digest)
                    mine.refs.untag(f"m{seed}", str(number))
                else:
                    done[index] = digest
        except BaseException as error:
            errors.append(error)

    builders = [threading.Thread(target=build, args=(seed,)) for seed in range(2)]
    for builder in builders:
        builder.start()
    runs = 0
    while time.monotonic() < stop:
        cache.collect(grace=3)
        runs += 1
    for builder in builders:
        builder.join()
    cache.collect(grace=3)
    assert errors == []
    assert runs > 2
    assert done
    for digest in done.values():
        assert_complete(cache, digest)
