"""A state machine over a cache and a dictionary that says what must be true of it."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from spyre_cache import BlobNotFoundError, Cache, Digest, ReferenceError_
from tests.cache.crash import Unsynced
from tests.cache.store_conformance import noise
from tests.cache.worlds import assert_complete, model

CONTENTS = [b"", b"a", b"words " * 5000, noise(5000), noise(70_000, 1), noise(70_000, 1)[:-1], bytes(1 << 20)]


class CacheMachine(RuleBasedStateMachine):
    """`held` are blobs that this session put or found: they stay. `known` is everything ever stored.

    `damaged` may be found, for presence is not soundness, and be gone when read.
    """

    digests = Bundle("digests")

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        self.cache = Cache.open(self.base / "cache", fs=Unsynced())
        self.known: dict[Digest, bytes] = {}
        self.held: set[Digest] = set()
        self.damaged: set[Digest] = set()
        self.tags: dict[str, Digest] = {}
        self.pins: set[Digest] = set()

    def teardown(self) -> None:
        self.cache.close()
        shutil.rmtree(self.base)

    # --- blobs ---

    @rule(target=digests, data=st.sampled_from(CONTENTS), raw=st.booleans(), stream=st.booleans())
    def put(self, data, raw, stream):
        blobs = self.cache.blobs
        digest = blobs.put_stream([data[:100], data[100:]], raw=raw) if stream else blobs.put(data, raw=raw)
        assert digest == Digest.of(data)
        self.known[digest] = data
        self.held.add(digest)
        self.damaged.discard(digest)
        return digest

    @rule(digest=digests, reader=st.sampled_from(["get", "map", "open", "path"]))
    def read(self, digest, reader):
        blobs = self.cache.blobs
        try:
            if reader == "open":
                with blobs.open(digest) as file:
                    found = file.read()
            elif reader == "path":
                found = blobs.path(digest).read_bytes()
            else:
                found = bytes(getattr(blobs, reader)(digest))
        except BlobNotFoundError:
            assert digest not in self.held
        else:
            assert found == self.known[digest]

    @rule(digest=digests)
    def look(self, digest):
        if self.cache.blobs.missing([digest]):
            assert digest not in self.held
        elif digest not in self.damaged:
            self.held.add(digest)

    @rule(digest=digests)
    def delete(self, digest):
        self.cache.blobs.delete(digest)
        self.held.discard(digest)

    @rule(digest=digests, how=st.sampled_from(["truncate", "flip", "empty"]))
    def damage(self, digest, how):
        for path in (self.cache.path / "blobs" / digest.hash[:2]).glob(digest.hash + "*"):
            data = bytearray(path.read_bytes())
            if how == "flip" and data:
                data[len(data) // 2] ^= 4
            path.chmod(0o644)
            time.sleep(0.01 if len(data) >= 1 << 20 else 0)  # past the granularity of file times
            path.write_bytes({"truncate": data[:-1], "flip": data, "empty": b""}[how])
            self.held.discard(digest)
            self.damaged.add(digest)

    # --- manifests ---

    @rule(number=st.integers(0, 3), name=st.sampled_from(["x", "y"]))
    def tag(self, number, name):
        manifest = model(self.cache, number, shared=number % 2)
        self.cache.refs.tag(name, "1", manifest, force=True)
        self.tags[name] = manifest

    @rule(name=st.sampled_from(["x", "y"]))
    def untag(self, name):
        assert self.cache.refs.untag(name, "1") == (name in self.tags)
        self.tags.pop(name, None)

    @rule(number=st.integers(0, 3))
    def pin(self, number):
        manifest = model(self.cache, number, shared=number % 2)
        self.cache.pins.add(manifest)
        self.pins.add(manifest)

    @rule()
    def unpin_all(self):
        for manifest in self.pins:
            self.cache.pins.remove(manifest)
        self.pins = set()

    # --- time passes ---

    @rule()
    def collect(self):
        self.cache.collect(grace=0)

    @rule()
    def restart(self):
        self.cache.close()
        self.cache = Cache.open(self.base / "cache", fs=Unsynced())
        self.held = set()

    @rule(digest=consumes(digests))
    def forget(self, digest):
        """Keeps bundles small."""

    @invariant()
    def releases_and_pins_are_complete(self):
        for name, manifest in self.tags.items():
            assert self.cache.refs.resolve(f"{name}:1") == manifest
            assert_complete(self.cache, manifest)
        for manifest in self.pins:
            assert_complete(self.cache, manifest)
        for name in {"x", "y"} - self.tags.keys():
            with pytest.raises(ReferenceError_):
                self.cache.refs.resolve(f"{name}:1")


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        CacheMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_sequence_of_operations_agrees_with_the_model():
    run(examples=25, steps=25)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_any_sequence_of_operations_agrees_with_the_model_at_length():
    run(examples=500, steps=60)
