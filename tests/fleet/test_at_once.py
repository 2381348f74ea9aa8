"""Many submitters of one model at once: every fragment is compiled once, and all get the same manifest."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fleets import write_model

from spyre_cache.cache import Cache


class Killer:
    """Kills a worker that compiles, every few seconds, and starts another in its place."""

    def __init__(self, fleet, seed, kills, pause=3.0):
        self.fleet, self.kills, self.done = fleet, kills, 0
        self._rng = random.Random(seed)
        self._pause = pause
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        seen = 0
        while self.done < self.kills and not self._over.wait(0.1):
            started = self.fleet.heard("started")
            if len(started) <= seen:
                continue
            seen = len(started)
            self._over.wait(self._rng.uniform(0.0, 1.0))
            event = started[-1][1]
            self.fleet.workers[event.worker].kill()
            self.done += 1
            self.fleet.worker(event.worker, ready=False)
            self._over.wait(self._rng.uniform(0.5, 1.5) * self._pause)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(30)


def herd(fleet, spec, full, torch_free, abreast=4):
    """What every build came to: one that was left with nobody to compile, and all others once there are workers."""
    code, left = fleet.submit("desk-0", spec, "--detach").result()
    assert (code, left["status"]) == (0, "running"), left
    for number in range(2):
        fleet.worker(f"w{number}", ready=False)
    running = [fleet.submit(f"desk-{number % 4}", spec) for number in range(full)]

    def rebuilt(number):
        return fleet.submit(f"desk-{number % 4}", f"plan:{left['build']}", "--no-replay").result(600)

    with ThreadPoolExecutor(abreast) as threads:
        done = list(threads.map(rebuilt, range(torch_free)))
    done += [process.result(600) for process in running]
    done.append(fleet.on_fleet("desk-1", "watch", left["build"]).result())
    return done


def check(fleet, done, fragments):
    assert [code for code, _ in done] == [0] * len(done), [data for code, data in done if code]
    assert len({data["manifest"] for _, data in done}) == 1
    counts = [data["actions"] for _, data in done]
    assert {count["total"] for count in counts} == {fragments}
    assert all(count["hit"] + count["compiled"] + count["waited"] == fragments for count in counts)
    assert sum(count["compiled"] for count in counts) == fragments
    with Cache.open(fleet.host("desk-0").cache) as cache:
        assert not cache.actions.events()
    fleet.verify()


@pytest.mark.slow
def test_submitters_at_once_compile_each_fragment_once_and_agree(new_fleet, tmp_path):
    fleet = new_fleet()
    done = herd(fleet, write_model(tmp_path / "model.py", 3), full=2, torch_free=8)
    check(fleet, done, 3)
    assert set(fleet.starts().values()) == {1}


@pytest.mark.slow
def test_submitters_at_once_while_workers_are_killed_agree_too(new_fleet, tmp_path):
    fleet = new_fleet()
    with Killer(fleet, seed=5, kills=2) as killer:
        done = herd(fleet, write_model(tmp_path / "model.py", 2, 0.75), full=1, torch_free=4)
    check(fleet, done, 2)
    assert killer.done
    assert sum(fleet.starts().values()) <= 2 + killer.done


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [0, 20])
def test_eight_submitters_and_fifty_of_the_plan_agree(new_fleet, tmp_path, s3_url, s3_environment, redis_url, kills):
    """The whole form: every tier there is, machines of their own, and a worker killed every few seconds."""
    from evidence import keep

    seed = int(os.environ.get("SPYRE_BUILD_SOAK_SEED", "2026"))
    fleet = new_fleet(tiers=f"{redis_url},{s3_url}", environment=s3_environment)
    fragments, began = 6, time.monotonic()
    spec = write_model(tmp_path / "model.py", fragments, 0.5 if kills else 0.25)
    with Killer(fleet, seed, kills) as killer:
        done = herd(fleet, spec, full=8, torch_free=50)
    check(fleet, done, fragments)
    starts = fleet.starts()
    hedges = 0  # nothing takes long enough here
    assert all(count <= 1 + killer.done + hedges for count in starts.values())
    assert sum(starts.values()) <= fragments + killer.done + hedges
    figures = {
        "submitters": len(done), "fragments": fragments, "worker kills": killer.done, "compile starts": sum(starts.values()),
        "compiled, summed": fragments, "manifest digests": 1, "seconds": round(time.monotonic() - began),
    }  # fmt: skip
    keep("at-once-with-kills" if kills else "at-once", seed, figures)
