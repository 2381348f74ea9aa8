"""After a power cut at any moment of a real sequence of operations, nothing wrong or half is ever seen."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from spyre_cache import BlobNotFoundError, Cache, CacheError, CorruptBlobError, Digest, ReferenceError_
from tests.cache.crash import POLICIES, Recording, Unsynced, replay
from tests.cache.store_conformance import noise
from tests.cache.worlds import assert_complete, key_of, model, result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spyre_cache.objects.action import ActionResult


@dataclass
class History:
    """What was promised, and from which operation until which."""

    recording: Recording
    blobs: dict[Digest, bytes] = field(default_factory=dict)
    results: list[ActionResult] = field(default_factory=list)
    promises: list[tuple[int, int | None, Callable[[Cache], None]]] = field(default_factory=list)

    def promise(self, check: Callable[[Cache], None]) -> int:
        self.promises.append((len(self.recording.ops), None, check))
        return len(self.promises) - 1

    def end(self, number: int) -> None:
        start, _, check = self.promises[number]
        self.promises[number] = (start, len(self.recording.ops), check)

    def put(self, cache: Cache, data: bytes, *, raw: bool = False) -> Digest:
        self.blobs[Digest.of(data)] = data
        return cache.blobs.put(data, raw=raw)

    def has(self, *digests: Digest) -> int:
        def check(cache: Cache) -> None:
            for digest in digests:
                assert cache.blobs.get(digest) == self.blobs[digest]

        return self.promise(check)


def live(base: Path) -> History:
    """A life of a cache, recorded."""
    recording = Recording(base)
    history = History(recording)
    cache = Cache.open(base / "cache", fs=recording)
    history.has(history.put(cache, b"small"), history.put(cache, noise(9000)), history.put(cache, b"text " * 3000))
    with cache.blobs.batch():
        batch = [history.put(cache, noise(2000, n), raw=True) for n in range(6)]
    history.has(*batch)
    stored = cache.actions.put(result(cache, 1))
    other = result(cache, 1, b"different")
    history.results += [stored, other]

    def has_result(cache: Cache) -> None:
        assert cache.actions.get(key_of(1)) == stored

    history.promise(has_result)
    cache.actions.put(other)
    _models(cache, history)
    doomed = history.has(history.put(cache, b"to be deleted " * 500))
    history.end(doomed)
    cache.blobs.delete(Digest.of(b"to be deleted " * 500))
    cache.builds.put("b", b'{"n":1}')
    cache.builds.put("b", b'{"n":2}')
    history.promise(lambda cache: _equal(cache.builds.get("b"), b'{"n":2}'))
    cache.close()
    for _, end, _check in history.promises:
        assert end is None or end <= len(recording.ops)
    return history


def _models(cache: Cache, history: History) -> None:
    one, two, three = model(cache, 1), model(cache, 2, shared=1), model(cache, 3, shared=1)
    for manifest in (one, two):
        history.promise(lambda cache, manifest=manifest: assert_complete(cache, manifest))
    cache.refs.tag("m", "1", one)
    first = history.promise(lambda cache: _equal(cache.refs.resolve("m:1"), one))
    history.end(first)
    cache.refs.tag("m", "1", two, force=True)
    history.promise(lambda cache: _equal(cache.refs.resolve("m:1"), two))
    cache.pins.add(one)
    history.promise(lambda cache: _equal(cache.pins.list(), [one]))
    held = [number for number, promise in enumerate(history.promises) if promise[2].__name__ in {"check", "has_result"}]
    for number in held:
        history.end(number)
    cache.close()  # what this process put is held until here
    collected = cache.collect(grace=0)
    assert collected.manifests == 1, "the third model is nobody's"
    assert cache.blobs.missing([three]) == {three}


def _equal(found: object, expected: object) -> None:
    assert found == expected


def examine(tree: Path, history: History, point: int) -> None:
    """Raises AssertionError when a tree shows anything wrong, half, or less than was promised."""
    with Cache.open(tree / "cache", fs=Unsynced()) as cache:
        faults = [finding for finding in cache.verify() if finding.is_error]
        assert faults == []
        for digest, data in history.blobs.items():
            try:
                assert cache.blobs.get(digest) == data
            except CorruptBlobError as error:
                raise AssertionError("a half object was seen") from error
            except BlobNotFoundError:
                pass
        got = cache.actions.get(key_of(1))
        assert got is None or got in history.results
        with contextlib.suppress(ReferenceError_):
            assert_complete(cache, cache.refs.resolve("m:1"))
        for start, end, check in history.promises:
            if start <= point and (end is None or point < end):
                try:
                    check(cache)
                except (BlobNotFoundError, ReferenceError_) as error:
                    raise AssertionError("what was promised is gone") from error
        # And it can be worked with.
        digest = cache.blobs.put(b"after the crash")
        assert cache.blobs.get(digest) == b"after the crash"


def examine_all(history: History, scratch: Path, points, seeds, *, ignored="") -> int:
    """Number of replays that show a fault, on a disk that ignores something; on an honest one none may."""
    faults = 0
    for point in points:
        for policy in POLICIES:
            for seed in seeds if policy == "some" else (0,):
                tree = scratch / "tree"
                tree.mkdir()
                replay(history.recording.ops[:point], policy, seed + 1000 * point, tree, ignored=ignored)
                try:
                    examine(tree, history, point)
                except (AssertionError, CacheError) as error:
                    if not ignored:
                        raise AssertionError(f"after operation {point}, {policy}, seed {seed}: {error}") from error
                    faults += 1
                shutil.rmtree(tree)
    return faults


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> History:
    return live(tmp_path_factory.mktemp("recorded"))


def test_recording_is_of_the_real_thing(history):
    kinds = {op.kind for op in history.recording.ops}
    assert kinds == {"mkdir", "create", "write", "fsync", "link", "rename", "unlink", "fsync_dir"}
    assert len(history.recording.ops) > 300


def test_whole_recording_replayed_is_the_directory_itself(history, tmp_path):
    replay(history.recording.ops, "kept", 0, tmp_path)
    real = history.recording.base
    # tmp/ and leases/ differ by nothing here: both were closed.
    for path in sorted(p for p in real.rglob("*") if p.is_file()):
        assert (tmp_path / path.relative_to(real)).read_bytes() == path.read_bytes(), path
    assert len(list(real.rglob("*"))) == len(list(tmp_path.rglob("*")))


@pytest.mark.slow
def test_crash_after_any_operation_shows_nothing_wrong(history, tmp_path):
    # Every ninth point and one seed each; `make soak` takes all points and more seeds.
    points = range(0, len(history.recording.ops) + 1, 9)
    examine_all(history, tmp_path, points, seeds=(1,))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_crash_after_any_operation_shows_nothing_wrong_at_length(history, tmp_path):
    from evidence import keep

    points, seeds = range(len(history.recording.ops) + 1), int(os.environ.get("SPYRE_BUILD_SOAK_ROUNDS", "4"))
    seen = examine_all(history, tmp_path, points, seeds=range(seeds))
    keep("crash-consistency", seeds, {"operations": len(points) - 1, "seeds": seeds, "faults": seen})


@pytest.mark.parametrize("ignored", ["fsync", "fsync_dir"])
def test_disk_that_forgets_to_sync_is_found_out(history, tmp_path, ignored):
    """The examination can fail: on a disk that lies it sees half objects and broken promises."""
    points = range(100, len(history.recording.ops), 120)
    assert examine_all(history, tmp_path, points, seeds=(1,), ignored=ignored) > 0
