"""The fleet, measured with a real Redis, a real S3 server and real workers."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

REPO = Path(__file__).parents[1]
sys.path.insert(0, str(REPO / "tests"))

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.pairs import Scratch

FRAGMENTS = 12
MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h):
        return h + self.down(torch.tanh(self.up(self.norm(h))))

class Model(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for width in widths)

    def forward(self, *inputs):
        return tuple(block(h) for block, h in zip(self.blocks, inputs))

def build():
    torch.manual_seed(0)
    widths = [8 * (n + 2) for n in range({count})]
    return Model(widths).eval(), tuple(torch.randn(2, width) for width in widths)
"""


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(REPO), *sys.path])), **more}


@contextmanager
def fleet(workers: int = 2, *, slots: int = 1) -> Iterator[tuple[str, str, Path]]:
    """Redis, S3 and pinned workers; gives broker, the shared tiers of the cache, and a scratch folder."""
    from services import Redis, Seaweed

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spyre-bench-fleet-")))
        redis = stack.enter_context(Redis(folder / "redis"))
        s3 = stack.enter_context(Seaweed(folder / "s3"))
        os.environ.update(s3.environment)
        tiers = f"{redis.url_of(1)},{s3.url('bench')}"
        for number in range(workers):
            words = [
                *_pinned(number), sys.executable, "-m", "spyre_build.cli.main", "worker", "--broker", redis.url,
                "--concurrency", str(slots), "--name", f"bench-{number}",
                "--cache", f"{folder / f'worker-{number}'},{tiers}",
            ]  # fmt: skip
            process = subprocess.Popen(words, env=_environment(), stderr=(folder / f"worker-{number}.log").open("wb"))
            stack.callback(_end, process)
        _wait_for_workers(redis.url, workers)
        yield redis.url, tiers, folder


def _pinned(number: int) -> list[str]:
    """The beginning of a command that runs on one core."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[number % len(cores)])]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    process.kill()
    process.wait()


def _wait_for_workers(broker: str, count: int) -> None:
    from spyre_cache.stores.redis_client import redis_address
    from spyre_workers.registry import Registry

    registry = Registry(redis_address(broker))
    end = time.monotonic() + 120
    while len(registry.workers()) < count:
        if time.monotonic() > end:
            raise RuntimeError("the workers did not come up")
        time.sleep(0.2)
    registry.close()


def _planned(folder: Path, tiers: str, count: int) -> tuple[str, str]:
    """A model planned and compiled once on this machine, into a cache of its own: gives that cache and the build."""
    path = folder / "model.py"
    path.write_text(MODEL.replace("{count}", str(count)))
    cache = f"{folder / 'submit'},{tiers}"
    done = subprocess.run(
        [sys.executable, "-m", "spyre_build.cli.main", "submit", f"{path}:build", "--cache", cache, "--json"],
        capture_output=True, text=True, env=_environment(), check=True,
    )  # fmt: skip
    return cache, json.loads(done.stdout)["build"]


def _salted(cache: Any, build: str, salt: str) -> Any:
    """The plan of a build with all its keys salted, so that everything is to be compiled; as a dict of actions."""
    from msgspec.structs import replace

    from spyre_build import builds
    from spyre_build.following import plan_of_build
    from spyre_build.plan import planned_of

    plan = replace(plan_of_build(cache, builds.find(cache, build)), salt=salt)
    actions = {item.key: item.action for item in planned_of(plan)}
    with cache.blobs.batch():
        for action in actions.values():
            cache.actions.describe(action)
    return actions


def _drive(cache: Any, broker: str | None, actions: Any, jobs: int | None = None) -> tuple[float, Any]:
    """Seconds from handing out to the last result, and the results."""
    from spyre_build.building import new_id
    from spyre_build.driving import Driver
    from spyre_build.journal import NoNotes
    from spyre_build.taking import Driving
    from spyre_build.workshop import workshop

    build = new_id()
    with workshop(cache, broker, jobs=jobs) as (claims, executor), Driving(claims, build) as driving:
        driver = Driver(cache, claims, executor, driving=driving, build=build, journal=NoNotes())
        start = time.perf_counter()
        driver.hand_out(actions)
        driver.run()
        return time.perf_counter() - start, driver.results


def workers(_: Scratch, rounds: int) -> dict[str, Any]:
    """Two workers against two independent pinned compilers side by side, and what a task costs beside its compilation.

    Both sides compile the same fragments with warm servers; rounds alternate.
    """
    from spyre_cache.cache import Cache

    with fleet(2) as (broker, tiers, folder):
        where, build = _planned(folder, tiers, FRAGMENTS)
        with Cache.open(where) as cache:
            _drive(cache, broker, _salted(cache, build, "warm"))
            ceilings, fleets, overheads = [], [], []
            for number in range(rounds):
                ceilings.append(_ceiling(where, build, f"ceiling-{number}"))
                seconds, results = _drive(cache, broker, _salted(cache, build, f"fleet-{number}"))
                fleets.append(seconds)
                by_worker: dict[str, list[float]] = {}
                for result in results.values():
                    by_worker.setdefault(result.builder, []).append(result.statistics.seconds)
                overheads += [1000 * (seconds - sum(took)) / len(took) for took in by_worker.values()]
    empty = _empty_task(rounds)
    ratios = [ceiling / mine for ceiling, mine in zip(ceilings, fleets, strict=True)]
    task = statistics.median(overheads)
    return {
        "fragments": FRAGMENTS,
        "ceiling_seconds": round(statistics.median(ceilings), 3),
        "fleet_seconds": round(statistics.median(fleets), 3),
        "of_the_ceiling": round(statistics.median(ratios), 3), "of_the_ceiling_at_least": 0.85,
        "task_beside_compiling_ms": round(task, 2),
        "empty_celery_task_ms": round(empty, 2),
        "overhead_ms": round(task - empty, 2), "overhead_ms_at_most": 15,
    }  # fmt: skip


def _ceiling(where: str, build: str, salt: str) -> float:
    """Seconds that two pinned processes need which share nothing, each with half of the fragments and a warm server."""
    processes = [
        subprocess.Popen(
            [*_pinned(half), sys.executable, "-m", "bench.workers", where, build, salt, str(half)],
            cwd=REPO, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for half in (0, 1)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    start = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.wait() == 0
    return time.perf_counter() - start


def _compile_half(where: str, build: str, salt: str, half: int) -> None:
    from spyre_cache.cache import Cache
    from spyre_workers.client import CompileServer
    from spyre_workers.compile import compile_action

    with Cache.open(where) as cache, CompileServer() as server:
        actions = list(_salted(cache, build, salt).values())
        compile_action(actions[0], cache.blobs, server=server)
        print("ready", flush=True)
        sys.stdin.readline()
        for action in actions[half::2]:
            assert compile_action(action, cache.local.blobs, server=server).status == "ok"
        os._exit(0)  # ending the server is not compiling


def _empty_task(rounds: int, count: int = 200) -> float:
    """Milliseconds a task that does nothing takes in a Celery worker with our settings and one slot."""
    from services import Redis

    from spyre_workers.app import make_app

    took = []
    with tempfile.TemporaryDirectory() as folder, Redis(Path(folder) / "redis") as redis:
        app = make_app(redis.url)
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "bench.empty", "worker", "-P", "threads", "-c", "1", "-Q", "empty",
             "-l", "ERROR", "--without-mingle", "--without-gossip"],
            cwd=REPO, env=_environment(SPYRE_BUILD_BROKER=redis.url), stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            for index in range(rounds + 1):
                redis.command("SET", "empty", 0)
                start = time.perf_counter()
                for _ in range(count):
                    app.send_task("bench.empty", queue="empty", ignore_result=True)
                while int(redis.command("GET", "empty") or 0) < count:  # type: ignore[call-overload]
                    time.sleep(0.001)
                if index:  # the first one waits for the worker to come up
                    took.append(1000 * (time.perf_counter() - start) / count)
        finally:
            _end(process)
    return statistics.median(took)


def _known_results(cache: Any, count: int) -> dict[str, Any]:
    """So many actions that nobody ever compiled, each with a stored result: all of a task but its compilation."""
    from spyre_cache.digest import Digest
    from spyre_cache.objects.action import Action, ActionResult, OutputFile, Requires
    from spyre_cache.objects.target import TARGETS
    from spyre_workers.toolchain import toolchain

    output = OutputFile(name="fragment.so", digest=cache.blobs.put(os.urandom(4096), raw=True))
    requires = Requires(arch="x86_64", features=(), torch_abi="2.13.0", device="cpu")
    tools, target, seed = toolchain(), TARGETS["cpu/x86-64-v2"], os.urandom(8).hex()
    actions = {}
    for number in range(count):
        fragment = Digest.of(f"{seed} {number}".encode())
        action = Action(fragment=fragment, target=target, toolchain=tools)
        actions[action.key()] = action
        cache.actions.put(
            ActionResult(action=action.key(), status="ok", outputs=(output,), requires=requires, builder="bench")
        )
    return actions


def _rss() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) * 1024


def lookup(_: Scratch, rounds: int, count: int = 10_000) -> dict[str, Any]:
    """A plan of 10,000 fragments looked up from a machine that has nothing, through a Redis and a bucket."""
    from spyre_cache.cache import Cache

    looked, grown = [], []
    with fleet(0) as (_broker, tiers, folder):
        with Cache.open(f"{folder / 'warm'},{tiers}") as cache:
            keys = list(_known_results(cache, count))
        for number in range(rounds):
            with Cache.open(f"{folder / f'cold-{number}'},{tiers}") as cold:
                cold.actions.get_many(keys[:100])
                before, start = _rss(), time.perf_counter()
                assert len(cold.actions.get_many(keys)) == count
                looked.append(time.perf_counter() - start)
                grown.append((_rss() - before) / 2**20)
    return {
        "fragments": count,
        "lookup_seconds": round(statistics.median(looked), 3), "lookup_seconds_at_most": 2,
        "lookup_grows_by_mib": round(statistics.median(grown), 1),
    }  # fmt: skip


def scaling(_: Scratch, rounds: int, counts: Sequence[int] = (100, 1000, 10_000)) -> dict[str, Any]:
    """What a fragment costs beside compiling (claim, broker, worker, event, result), in plans of 100 to 10,000."""
    del rounds
    from spyre_cache.cache import Cache

    costs, memory = {}, {}
    with fleet(2, slots=2) as (broker, tiers, folder), Cache.open(f"{folder / 'submit'},{tiers}") as cache:
        _drive(cache, broker, _known_results(cache, 50))
        for count in counts:
            actions = _known_results(cache, count)
            before = _rss()
            seconds, results = _drive(cache, broker, actions)
            assert len(results) == count
            costs[count], memory[count] = 1000 * seconds / count, (_rss() - before) / 2**20
    return {
        **{f"ms_per_fragment_of_{count}": round(cost, 2) for count, cost in costs.items()},
        "largest_over_smallest": round(costs[counts[-1]] / costs[counts[0]], 2), "largest_over_smallest_at_most": 1.2,
        "grows_by_kib_per_fragment": round(1024 * memory[counts[-1]] / counts[-1], 1),
    }  # fmt: skip


if __name__ == "__main__":
    _compile_half(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
