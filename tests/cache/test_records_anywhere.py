"""Results, releases, pins, statements and builds in every store that keeps them, not only in a directory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pytest

from spyre_cache import BlobNotFoundError, Cache, Digest, InvalidRecordError, ReferenceError_
from spyre_cache.actions import ActionCache
from spyre_cache.builds import Builds
from spyre_cache.objects.action import ActionResult, Failure
from spyre_cache.refs import Pins, Refs, Statements
from spyre_cache.stores.object import open_object
from spyre_cache.stores.redis import open_redis
from tests.cache.worlds import action, key_of, result

if TYPE_CHECKING:
    from spyre_cache.stores.base import BlobStore
    from spyre_cache.stores.documents import DocumentStore


class Place(NamedTuple):
    """A store, with what is made of it; like a Cache, as far as `tests.cache.worlds` looks."""

    blobs: BlobStore
    documents: DocumentStore

    @property
    def actions(self) -> ActionCache:
        return ActionCache(self.documents, self.blobs)


def at(kind, request, tmp_path):
    """A place, opened; and a function that opens it again."""
    if kind == "disk":
        with Cache.open(tmp_path / "cache") as cache:
            return lambda: Place(cache.blobs, cache.documents)
    if kind == "redis":
        url = request.getfixturevalue("redis_url")
        return lambda: Place(*open_redis(url))
    url = f"file://{tmp_path}/shared" if kind == "file" else request.getfixturevalue("s3_url")
    return lambda: Place(*open_object(url))


@pytest.fixture(params=["disk", "file", "s3", "redis"])
def again(request, tmp_path):
    return at(request.param, request, tmp_path)


@pytest.fixture(params=["disk", "file", "s3"])
def lasting(request, tmp_path):
    """Of the stores that keep everything."""
    return at(request.param, request, tmp_path)


def at_once(count, work):
    """What `work(number)` gives in so many threads that begin together."""
    barrier = threading.Barrier(count)

    def begin(number):
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


# --- results ---


def test_lookup_of_many_gives_what_lookups_of_each_give(again):
    place = again()
    stored = {}
    for number in range(12):
        stored[key_of(number)] = place.actions.put(result(place, number))
    failure = ActionResult(
        action=key_of(20), status="failed", failure=Failure(kind="unsupported", message="no such operator")
    )
    stored[key_of(20)] = place.actions.put(failure)
    place.blobs.delete(stored.pop(key_of(3)).outputs[0].digest)
    place.documents.create("actions", key_of(21), b"{damaged")
    asked = [key_of(number) for number in (*range(30), 5, 5)]
    assert again().actions.get_many(iter(asked)) == stored
    assert {key: found for key in asked if (found := again().actions.get(key)) is not None} == stored
    assert again().actions.get_many([]) == {}
    # What was damaged is out of the way.
    assert place.documents.get("actions", key_of(21)) is None


def test_lookup_of_what_is_no_key_is_refused(again):
    with pytest.raises(InvalidRecordError, match="64 lowercase hex digits"):
        again().actions.get_many([key_of(1), "../x"])


def test_of_results_put_at_the_same_time_one_counts_for_everybody(again):
    results = [result(again(), 1, b"content %d" % number) for number in range(6)]
    (winner,) = {each.outputs for each in at_once(6, lambda number: again().actions.put(results[number]))}
    assert again().actions.get(key_of(1)).outputs == winner


def test_results_that_lost_an_output_are_replaced_once(again):
    place = again()
    place.blobs.delete(place.actions.put(result(place, 1, b"first")).outputs[0].digest)
    results = [result(place, 1, b"content %d" % number) for number in range(4)]
    outputs = {each.outputs for each in at_once(4, lambda number: again().actions.put(results[number]))}
    assert len(outputs) == 1
    assert {place.actions.get(key_of(1)).outputs} == outputs


def test_document_of_an_action_is_found_by_key(again):
    act = action(again(), 1)
    again().actions.describe(act)
    assert again().actions.document(act.key()) == act


# --- names ---


def test_tags_at_the_same_time_have_numbers_of_their_own(lasting):
    manifest = lasting().blobs.put(b"a manifest")

    def tag(number):
        place = lasting()
        Refs(place.documents, place.blobs).tag(f"m{number % 2}", str(number), manifest)

    at_once(4, tag)
    refs = Refs(lasting().documents, lasting().blobs)
    orders = [entry.order for entry in refs.releases()]
    assert len(orders) == len(set(orders)) == 4
    refs.tag("m0", "last", manifest)
    assert refs.releases()[0].label == "m0:last"
    assert refs.resolve("m0") == manifest


def test_version_is_tagged_by_one_of_those_who_want_it(lasting):
    manifests = [lasting().blobs.put(b"manifest %d" % number) for number in range(4)]

    def tag(number):
        place = lasting()
        try:
            Refs(place.documents, place.blobs).tag("m", "1", manifests[number])
        except ReferenceError_:
            return None
        return manifests[number]

    (winner,) = filter(None, at_once(4, tag))
    assert Refs(lasting().documents, lasting().blobs).resolve("m:1") == winner


def test_names_come_and_go(lasting):
    place = lasting()
    manifest, envelope = place.blobs.put(b"a manifest"), place.blobs.put(b"an envelope")
    refs, pins = Refs(place.documents, place.blobs), Pins(place.documents, place.blobs)
    statements = Statements(place.documents, place.blobs)
    refs.tag("m", "1", manifest)
    assert pins.add(manifest)
    assert not pins.add(manifest)
    statements.attach(manifest, "https://example.org/type", envelope)
    assert refs.manifests() == pins.list() == [manifest]
    assert [entry.blob for entry in statements.list(manifest)] == [envelope]
    with pytest.raises(BlobNotFoundError):
        pins.add(Digest.of(b"never put"))
    assert (refs.untag("m", "1"), refs.untag("m", "1")) == (True, False)
    assert (pins.remove(manifest), pins.remove(manifest)) == (True, False)
    statements.detach_all(manifest)
    assert (refs.releases(), pins.list(), statements.list(manifest)) == ([], [], [])


def test_latest_build_is_listed_first_and_the_oldest_go(lasting, monkeypatch):
    builds = Builds(lasting().documents)
    for number in range(5):
        builds.put(f"20261130-10000{number}-abcdef", b"{}")
    assert builds.list() == [f"20261130-10000{number}-abcdef" for number in reversed(range(5))]
    monkeypatch.setattr("spyre_cache.builds.MAX_BUILDS", 3)
    builds.put("20261130-100009-abcdef", b'{"new":1}')
    assert builds.list() == [f"20261130-10000{number}-abcdef" for number in (9, 4, 3)]
    assert builds.get("20261130-100009-abcdef") == b'{"new":1}'
    assert builds.get("20261130-100000-abcdef") is None
