"""Builds on a fleet to which everything happens that can: none is lost, none is wrong, none is stuck."""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from chaos import Monkey
from fleets import Fleet, wait_for
from fronts import FaultyHttp
from services import s3_environment

from spyre_build import builds
from spyre_build.following import plan_of_build
from spyre_build.plan import planned_of
from spyre_cache.cache import Cache
from spyre_cache.codec import encode
from spyre_cache.digest import Digest
from spyre_cache.errors import BlobNotFoundError, CacheUnavailableError

TRIES = 8
DEADLINE = 240.0  # of one try


class World:
    """A fleet of two workers and two desks over every kind of tier, and those who build on it."""

    def __init__(self, tmp_path, new_redis, s3_server, front, seeds, seed):
        self.broker, self.hot = new_redis(), new_redis(maxmemory="64mb", maxmemory_policy="allkeys-lru")
        self.prefix = f"t-{os.urandom(6).hex()}"
        tiers = f"{self.hot.url},{s3_server.url(self.prefix)}"
        self.fleet = Fleet(tmp_path / "fleet", self.broker.url, tiers, s3_environment(front.endpoint))
        self.monkey = Monkey(self.fleet, self.broker, self.hot, s3_server, self.prefix, front, seed)
        self.seeds = seeds
        with Cache.open(seeds[1][0], read_only=True) as cache:
            self.monkey.precious = {digest.hash for digest in cache.blobs.iter()}
        self.specs = {}
        self.codes = Counter()
        self.seconds = []
        self._lock = threading.Lock()

    def plant(self, salt, size):
        """The SPEC of a salt's plan; in everybody's reach before anything is built of it."""
        with self._lock:
            if salt not in self.specs:
                self.specs[salt] = self._patiently(lambda: self.fleet.plant(self.seeds[size], salt, "desk-0"))
                self.monkey.precious |= self._patiently(lambda: self._needed(self.specs[salt]))
            return self.specs[salt]

    def _needed(self, spec):
        """Hashes of what a build cannot go without: its plan, and the documents of its actions."""
        with self.fleet.open("desk-0") as cache:
            known = builds.find(cache, spec.removeprefix("plan:"))
            actions = [item.action for item in planned_of(plan_of_build(cache, known))]
            return {known.plan.hash, *(Digest.of(encode(action)).hash for action in actions)}

    @staticmethod
    def _patiently(act):
        for _ in range(30):
            try:
                return act()
            except CacheUnavailableError:
                time.sleep(2)
        raise AssertionError("the tiers were away for a minute")

    def build(self, number, salt, size, *, replay):
        """One build, begun again as a person would when told that something is away, or when it was killed."""
        began = time.monotonic()
        said = []
        for _ in range(TRIES):
            process = self.fleet.submit(
                f"desk-{number % 2}", self.plant(salt, size), *([] if replay else ["--no-replay"])
            )
            self.monkey.submitters[process.pid] = process
            code = process.wait(DEADLINE)
            del self.monkey.submitters[process.pid]
            assert "Traceback" not in process.log(), process.log()[-3000:]
            with self._lock:
                self.codes[code] += 1
            if code == 0:
                with self._lock:
                    self.seconds.append(time.monotonic() - began)
                return salt, process.result()[1]
            said.append((code, process.out.read_text()[-1500:]))
            assert code in {1, 3, 5, -9}, said[-1]
            time.sleep(2)
        raise AssertionError(f"build {number} of {salt} did not succeed in {TRIES} tries: {said}")


def storm(world, count, seed, abreast):
    """So many builds while the monkey is about; what each came to."""
    rng = random.Random(seed)
    jobs = []
    for number in range(count):
        again = number > 3 and rng.random() < 0.3
        salt = rng.choice(jobs)[1] if again else f"salt-{number}"
        size = next((job[2] for job in jobs if job[1] == salt), rng.choice([1, 1, 3]))
        jobs.append((number, salt, size, rng.random() < 0.1))
    for name in ("w0", "w1"):
        world.fleet.worker(name)
    with world.monkey, ThreadPoolExecutor(abreast) as threads:
        running = [threads.submit(world.build, *job[:3], replay=job[3]) for job in jobs]
        return [future.result() for future in running]


def settle(world):
    """Everybody back at work, and every build that was left brought to its end."""
    world.monkey.tend()

    def ended():
        with world.fleet.open("desk-0") as cache:
            return all(record.status != "running" for record in builds.recent(cache) if record.plan is not None)

    wait_for(ended, "every build comes to an end", 300)


def unsound(world, manifests):
    """Manifests of which something is missing or damaged, seen from a machine that has nothing yet."""
    world.fleet.host("newcomer").forget()
    found = set()
    with world.fleet.open("newcomer") as cache:
        for digest in manifests:
            try:
                manifest = cache.manifest(digest)
                for artifact in manifest.artifacts:
                    for output in artifact.outputs:
                        cache.blobs.get(output.digest)
                for wanted in (*manifest.fragments, *(w.digest for w in manifest.weights if w.digest is not None)):
                    cache.blobs.get(wanted)
            except BlobNotFoundError:
                found.add(digest)
    return found


def check(world, done):
    settle(world)
    of_salt = {}
    for salt, data in done:
        assert data["status"] == "ok", data
        assert of_salt.setdefault(salt, data["manifest"]) == data["manifest"], salt
    # What was damaged on purpose in the only place where others find it is made again by whoever submits.
    with world.fleet.open("desk-0") as cache:
        manifests = {cache.refs.resolve(text): salt for salt, text in of_salt.items()}
    torn = unsound(world, manifests)
    for digest in torn:
        code, data = world.fleet.submit("desk-1", world.specs[manifests[digest]]).result()
        assert (code, data["manifest"]) == (0, str(digest)), data
    assert not unsound(world, manifests)
    for name in ("desk-0", "newcomer"):
        code, data = world.fleet.run(
            name, "verify", next(iter(of_salt.values())), "--cache", world.fleet.host(name).cache
        ).result()
        assert code == 0, data
    for name, host in world.fleet.hosts.items():
        if host.directory.exists():
            with world.fleet.open(name) as cache:
                assert not cache.actions.events(), name
                for _ in range(3):
                    cache.verify(repair=True)
                assert not [finding for finding in cache.verify() if finding.is_error], name
    assert not world.monkey.failed
    return len(torn)


@pytest.fixture
def new_world(tmp_path, new_redis, s3_server, seeds, monkeypatch):
    with FaultyHttp(s3_server.port) as front:
        for name, value in s3_environment(front.endpoint).items():
            monkeypatch.setenv(name, value)
        worlds = []

        def make(seed):
            worlds.append(World(tmp_path, new_redis, s3_server, front, seeds, seed))
            return worlds[-1]

        yield make
        for world in worlds:
            world.fleet.close()


@pytest.mark.slow
def test_builds_amid_chaos_are_neither_lost_nor_wrong_nor_stuck(new_world):
    world = new_world(7)
    done = storm(world, 6, 7, abreast=3)
    check(world, done)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_hundred_builds_amid_chaos_are_neither_lost_nor_wrong_nor_stuck(new_world):
    from evidence import keep

    seed = int(os.environ.get("SPYRE_BUILD_SOAK_SEED", "2026"))
    count = int(os.environ.get("SPYRE_BUILD_SOAK_BUILDS", "100"))
    world, began = new_world(seed), time.monotonic()
    done = storm(world, count, seed, abreast=4)
    torn = check(world, done)
    figures = {
        "builds": len(done), "distinct plans": len(world.specs), "deeds": dict(world.monkey.done),
        "exit codes of tries": {str(code): number for code, number in sorted(world.codes.items())},
        "manifests torn on purpose and made again": torn,
        "seconds": round(time.monotonic() - began),
        "seconds of a build": {
            "median": round(statistics.median(world.seconds), 1), "max": round(max(world.seconds), 1),
        },
    }  # fmt: skip
    keep("chaos", seed, figures)
