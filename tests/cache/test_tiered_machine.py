"""A state machine over two hosts that share a Redis and a directory, each of which goes away, forgets and rots."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from spyre_cache import BlobNotFoundError, Cache, CacheError, CacheUnavailableError, Digest
from spyre_cache.objects.action import ActionResult, OutputFile
from spyre_cache.stores.breaker import Breaker
from spyre_cache.stores.redis_client import connect
from tests.cache.crash import Unsynced
from tests.cache.store_conformance import noise
from tests.cache.worlds import key_of

CONTENTS = [b"", b"a", b"words " * 5000, noise(5000), noise(200_000, 1), noise(3 << 20, 2)]
DIGESTS = [Digest.of(data) for data in CONTENTS]
HOSTS = st.integers(0, 1)
BLOBS = st.sampled_from(range(len(CONTENTS)))
READERS = st.sampled_from(["get", "map", "open", "path"])
_runs = itertools.count()
_SHM = Path("/dev/shm")


class Switch(Breaker):
    """Open when the test says so, and only then."""

    def __init__(self) -> None:
        super().__init__()
        self.on = True

    def allows(self, now: float) -> bool:
        return self.on

    def state(self, now: float):
        return "closed" if self.on else "open"


class TieredMachine(RuleBasedStateMachine):
    """`safe` are blobs that the durable tier has acknowledged and that nobody has harmed there since: nothing may lose
    them. `here` are those that a host put or got, and that nobody has harmed on its disk.
    """

    redis_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(dir=_SHM if _SHM.is_dir() else None))
        self.prefix = f"m{next(_runs)}"
        self.switches: dict[str, list[Switch]] = {"redis": [], "object": []}
        self.up = {"redis": True, "object": True}
        self.client = connect(self.redis_url)
        self.hosts = [self.opened(number) for number in range(2)]
        self.safe: set[Digest] = set()
        self.rotten: set[Digest] = set()
        self.here: list[set[Digest]] = [set(), set()]
        self.unsent: list[set[Digest]] = [set(), set()]
        self.accepted: dict[str, list[ActionResult]] = {}

    def opened(self, number: int) -> Cache:
        url = f"{self.base}/host-{number},{self.redis_url}?prefix={self.prefix},file://{self.base}/shared"
        cache = Cache.open(url, fs=Unsynced(), wait_for_tiers=False)
        for tier in cache.tiers:
            switch = Switch()
            switch.on = self.up[tier.kind]
            tier._breaker = switch
            self.switches[tier.kind].append(switch)
        return cache

    def teardown(self) -> None:
        for cache in self.hosts:
            with suppress(CacheError):
                cache.close()
        self.client.close()
        shutil.rmtree(self.base)

    # --- what goes wrong ---

    @rule(kind=st.sampled_from(["redis", "object"]), on=st.booleans())
    def go(self, kind, on):
        self.up[kind] = on
        for switch in self.switches[kind]:
            switch.on = on

    @rule()
    def forget(self):
        self.client.flushdb()

    @rule(blob=BLOBS)
    def rot_in_redis(self, blob):
        key = f"{self.prefix}:b:{DIGESTS[blob].hash}:{DIGESTS[blob].size}"
        if self.client.exists(key):
            self.client.setrange(key, 1, b"rotten")

    @rule(host=HOSTS, blob=BLOBS, gone=st.booleans())
    def rot_on_disk(self, host, blob, gone):
        digest = DIGESTS[blob]
        self.hosts[host].disk.flush()
        for path in (self.base / f"host-{host}" / "blobs" / digest.hash[:2]).glob(digest.hash + "*"):
            _harm(path, gone=gone)
            self.here[host].discard(digest)

    @rule(blob=BLOBS, gone=st.booleans())
    def rot_in_the_shared_directory(self, blob, gone):
        digest = DIGESTS[blob]
        for path in (self.base / "shared" / "blobs" / digest.hash[:2]).glob(digest.hash + "*"):
            _harm(path, gone=gone)
            self.safe.discard(digest)
            if not gone:
                self.rotten.add(digest)

    @rule(host=HOSTS)
    def restart(self, host):
        self._sending(host, self.hosts[host].close)
        self.unsent[host] = set()
        self.hosts[host] = self.opened(host)

    @rule(host=HOSTS)
    def collect(self, host):
        """What this session did not put or find may go."""
        self.restart(host)
        self.hosts[host].collect(grace=0)
        self.here[host] = set()

    # --- blobs ---

    @rule(host=HOSTS, blob=BLOBS, raw=st.booleans())
    def put(self, host, blob, raw):
        self._putting(host, [blob], raw=raw)

    @rule(host=HOSTS, blobs=st.lists(BLOBS, min_size=2, unique=True))
    def put_many(self, host, blobs):
        self._putting(host, blobs, raw=False)

    def _putting(self, host, blobs, *, raw):
        digests = {DIGESTS[blob] for blob in blobs}
        alone = len(digests | self.unsent[host]) == 1 and max(d.size for d in digests) <= 2 << 20
        store = self.hosts[host].blobs
        self.here[host] |= digests
        self.unsent[host] |= digests

        def put():
            with store.batch():
                for blob in blobs:
                    assert store.put(CONTENTS[blob], raw=raw) == DIGESTS[blob]

        if alone and self.up["object"]:
            self.rotten -= digests  # a single small one heals what lies there; presence is not soundness for more
        self._sending(host, put)

    @rule(host=HOSTS)
    def flush(self, host):
        self._sending(host, self.hosts[host].blobs.flush)

    def _sending(self, host, send):
        """What was put while the durable tier was away gets there; what rotted meanwhile is named."""
        try:
            send()
        except CacheUnavailableError:
            assert not self.up["object"]
            assert self.unsent[host]
            return
        except BlobNotFoundError:
            assert self.unsent[host] - self.here[host]
            assert self.up["object"]
            self.unsent[host] &= self.here[host]
        self.safe |= (self.unsent[host] & self.here[host]) - self.rotten
        self.unsent[host] = set()

    @rule(host=HOSTS, blob=BLOBS, reader=READERS)
    def read(self, host, blob, reader):
        digest, blobs = DIGESTS[blob], self.hosts[host].blobs
        try:
            if reader == "open":
                with blobs.open(digest) as file:
                    found = file.read()
            elif reader == "path":
                found = blobs.path(digest).read_bytes()
            else:
                found = bytes(getattr(blobs, reader)(digest))
        except CacheUnavailableError:
            assert not self.up["object"]
            assert digest not in self.here[host]
        except BlobNotFoundError:
            assert digest not in self.here[host]
            assert digest not in self.safe or not self.up["object"]
        else:
            assert found == CONTENTS[blob]
            self.here[host].add(digest)

    @rule(host=HOSTS)
    def look(self, host):
        try:
            missing = self.hosts[host].blobs.missing(DIGESTS)
        except CacheUnavailableError:
            assert not self.up["object"]
            return
        assert not missing & self.here[host]
        if self.up["object"]:
            assert not missing & self.safe

    @precondition(lambda self: self.up["object"])
    @rule(host=HOSTS)
    def share(self, host):
        gone = set(DIGESTS)

        def share():
            gone.intersection_update(self.hosts[host].blobs.share(DIGESTS))

        waiting = self.unsent[host] != set()
        self._sending(host, share)
        if not waiting:
            assert not gone & self.safe
            self.safe |= set(DIGESTS) - gone - self.rotten

    @precondition(lambda self: self.up["object"])
    @rule(host=HOSTS, blob=BLOBS)
    def delete(self, host, blob):
        digest = DIGESTS[blob]
        self.hosts[host].blobs.delete(digest)
        self.here[host].discard(digest)
        for known in (self.safe, self.rotten, self.unsent[host]):
            known.discard(digest)

    # --- results ---

    @rule(host=HOSTS, number=st.integers(0, 1), blob=BLOBS)
    def put_result(self, host, number, blob):
        cache, key = self.hosts[host], key_of(number)
        self.put(host, blob, raw=False)
        output = OutputFile(name="model.so", digest=DIGESTS[blob])
        result = ActionResult(action=key, status="ok", outputs=(output,))
        try:
            counts = cache.actions.put(result)
        except CacheUnavailableError:
            assert not self.up["object"]
            return
        except BlobNotFoundError:
            return  # it was only where it is lost by now
        assert self.up["object"]
        self.accepted.setdefault(key, []).append(counts)

    @rule(host=HOSTS, number=st.integers(0, 1))
    def get_result(self, host, number):
        key = key_of(number)
        try:
            result = self.hosts[host].actions.get(key)
        except CacheUnavailableError:
            assert not self.up["object"]
            return
        accepted = self.accepted.get(key, [])
        if result is not None:
            assert result in accepted
        elif accepted and self.up["object"]:
            assert accepted[-1].outputs[0].digest not in self.safe

    @rule(host=HOSTS, build=st.sampled_from(["a", "b"]), text=st.binary(min_size=1, max_size=5))
    def note_build(self, host, build, text):
        self.hosts[host].builds.put(build, text)
        assert self.hosts[host].builds.get(build) == text

    @precondition(lambda self: self.up["object"])
    @rule(host=HOSTS, blob=BLOBS, number=st.integers(1, 2))
    def tag(self, host, blob, number):
        self._putting(host, [blob], raw=False)
        self.hosts[host].refs.tag("model", str(number), DIGESTS[blob], force=True)
        for other in self.hosts:
            assert other.refs.resolve(f"model:{number}") == DIGESTS[blob]

    @invariant()
    def disks_are_sound(self):
        for number, cache in enumerate(self.hosts):
            for digest in self.here[number]:
                assert cache.disk.present(digest)


def _harm(path: Path, *, gone: bool) -> None:
    path.chmod(0o644)
    if gone:
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 1] = b"\x07\x08"
    path.write_bytes(data)


@pytest.fixture
def machine(redis_url):
    return type("Machine", (TieredMachine,), {"redis_url": redis_url})


def test_any_sequence_of_operations_loses_and_corrupts_nothing(machine):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.soak
def test_any_sequence_of_operations_loses_and_corrupts_nothing_at_length(machine):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=1500, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
