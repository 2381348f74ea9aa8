"""The action cache: written last, first writer wins, valid only while complete."""

from __future__ import annotations

import os
import time

import pytest

from spyre_cache import BlobNotFoundError, Cache, InvalidRecordError
from spyre_cache.objects.action import ActionResult, Failure, OutputFile
from tests.cache.worlds import action, flip, key_of, result


@pytest.fixture
def cache(tmp_path):
    with Cache.open(tmp_path / "cache") as cache:
        yield cache


def failed(number, kind="unsupported", message="no"):
    return ActionResult(action=key_of(number), status="failed", failure=Failure(kind=kind, message=message))


def test_result_put_is_the_result_got(cache):
    stored = result(cache, 1)
    assert cache.actions.put(stored) == stored
    assert cache.actions.get(key_of(1)) == stored
    assert cache.actions.get(key_of(2)) is None
    assert list(cache.actions.iter()) == [stored]


def test_result_before_its_outputs_is_refused(cache):
    early = ActionResult(
        action=key_of(1), status="ok", outputs=(OutputFile(name="a.so", digest=cache.blobs.put(b"x")),)
    )
    cache.blobs.delete(early.outputs[0].digest)
    with pytest.raises(BlobNotFoundError, match="stored after its outputs"):
        cache.actions.put(early)
    assert cache.actions.get(key_of(1)) is None


def test_result_that_lost_an_output_is_a_miss_and_may_be_replaced(cache):
    first = result(cache, 1, b"first")
    cache.actions.put(first)
    cache.blobs.delete(first.outputs[0].digest)
    assert cache.actions.get(key_of(1)) is None
    second = result(cache, 1, b"second")
    assert cache.actions.put(second) == second
    assert cache.actions.get(key_of(1)) == second
    assert cache.actions.events() == []


def test_second_result_that_agrees_is_no_event(cache):
    first = result(cache, 1, builder="a")
    cache.actions.put(first)
    assert cache.actions.put(result(cache, 1, builder="b")) == first
    assert cache.actions.events() == []


def test_second_result_that_differs_is_an_event_and_the_first_counts(cache):
    first, second = result(cache, 1, b"first"), result(cache, 1, b"second")
    cache.actions.put(first)
    assert cache.actions.put(second) == first
    assert cache.actions.put(second) == first
    assert cache.actions.get(key_of(1)) == first
    (event,) = cache.actions.events()
    assert (event.kept, event.other) == (first, second)


@pytest.mark.parametrize("kind", ["crash", "timeout", "out-of-memory", "infrastructure"])
def test_failure_that_may_not_repeat_is_refused(cache, kind):
    with pytest.raises(InvalidRecordError, match="only failures that every run repeats"):
        cache.actions.put(failed(1, kind))
    assert cache.actions.get(key_of(1)) is None


def test_unsupported_failure_is_kept_for_an_hour_however_often_it_is_hit(cache):
    cache.actions.put(failed(1))
    assert cache.actions.get(key_of(1)) == failed(1)
    path = cache.path / "actions" / key_of(1)[:2] / key_of(1)
    os.utime(path, (time.time() - 3500,) * 2)
    assert cache.actions.get(key_of(1)) == failed(1)
    assert cache.actions.age(key_of(1)) > 3400
    os.utime(path, (time.time() - 3700,) * 2)
    assert cache.actions.get(key_of(1)) is None
    success = result(cache, 1)
    assert cache.actions.put(success) == success
    assert cache.actions.get(key_of(1)) == success


@pytest.mark.parametrize(
    "changes",
    [
        {"outputs": ()},
        {"failure": Failure(kind="unsupported", message="both")},
        {"name": "../escape"},
        {"name": "a/b"},
        {"name": ""},
        {"action": "zz"},
        {"action": "../../x"},
    ],
)
def test_result_that_contradicts_itself_is_refused(cache, changes):
    import msgspec

    good = result(cache, 1)
    if "name" in changes:
        changes = {"outputs": (OutputFile(name=changes["name"], digest=good.outputs[0].digest),)}
    with pytest.raises(InvalidRecordError):
        cache.actions.put(msgspec.structs.replace(good, **changes))


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "foreign", "deep", "other_key"])
def test_damaged_entry_is_a_miss_set_aside_and_replaced(cache, damage):
    stored = cache.actions.put(result(cache, 1))
    path = cache.path / "actions" / key_of(1)[:2] / key_of(1)
    data = path.read_bytes()
    path.write_bytes(
        {
            "flip": flip(data, len(data) // 2),
            "truncate": data[:-20],
            "empty": b"",
            "foreign": b"\x80\x04gARBAGE",
            "deep": b"[" * 100_000,
            "other_key": data,
        }[damage]
    )
    if damage == "other_key":
        key = "ff" * 32
        moved = cache.path / "actions" / "ff" / key
        moved.parent.mkdir()
        path.rename(moved)
        assert cache.actions.get(key) is None
    if (
        damage != "flip"
    ):  # a flipped bit of base64 may still be a result of the same key; `verify` of signatures comes later
        assert cache.actions.get(key_of(1)) is None
        assert cache.actions.put(stored) == stored
    assert cache.stats().quarantined <= 1
    assert cache.actions.put(stored).action == key_of(1)


def test_document_is_found_by_key(cache):
    assert cache.actions.document(key_of(1)) is None
    cache.actions.describe(action(cache, 1))
    assert cache.actions.document(action(cache, 1).key()) == action(cache, 1)
    assert list(cache.actions.described()) == [action(cache, 1).key()]


def test_put_in_a_batch_makes_the_outputs_durable_first(cache):
    with cache.blobs.batch():
        stored = result(cache, 1)
        cache.actions.put(stored)
        with Cache.open(cache.path, read_only=True) as other:
            assert other.actions.get(key_of(1)) == stored
