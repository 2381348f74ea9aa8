"""Everything that can go wrong with a fleet, done to one, in an order that a seed decides."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import obstore
import psutil
import redis as redis_client
from obstore.exceptions import BaseError
from obstore.store import S3Store
from services import ACCESS_KEY, BUCKET, REGION, SECRET_KEY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fleets import Fleet, Process
    from fronts import FaultyHttp
    from services import Redis, Seaweed

FAULTS = {
    "slow": 2.0,
    "500": (500, "<Error><Code>InternalError</Code></Error>"),
    "throttling": (429, "<Error><Code>TooManyRequests</Code></Error>"),
    "away": -1.0,
}


def damaged(data: bytes, rng: random.Random) -> bytes | None:
    """Other bytes in place of these: a bit flipped, cut short, or none at all."""
    kind = rng.choice(["flip", "truncate", "delete"])
    if kind == "delete" or not data:
        return None
    at = rng.randrange(len(data))
    return data[:at] if kind == "truncate" else data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


class Monkey:
    """Does one bad thing after another, each undone before the next, until it is told to stop.

    Attributes:
        done: how often it did what.
        failed: what kept it from doing something, which would be a mistake of the test.
        submitters: commands it may freeze and kill.
        precious: hashes of blobs that have one sound copy only, and are left alone in the object store.
    """

    def __init__(
        self, fleet: Fleet, broker: Redis, hot: Redis, s3: Seaweed, prefix: str, front: FaultyHttp, seed: int
    ) -> None:
        self.fleet, self.broker, self.hot, self.front, self.prefix = fleet, broker, hot, front, prefix
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []
        self.submitters: dict[int, Process] = {}
        self.precious: set[str] = set()
        self.fault: Any = None
        self._hit: dict[str, str] = {}  # hash of a blob: the one place where it was damaged
        self._crashed: set[str] = set()
        self._rng = random.Random(seed)
        self._store = S3Store(
            BUCKET, endpoint=s3.endpoint, region=REGION, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY,
            client_options={"allow_http": True, "timeout": "20s"},
        )  # fmt: skip
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monkey", daemon=True)
        front.fault = lambda _method, _path: self.fault

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    @property
    def deeds(self) -> dict[str, Callable[[], str]]:
        return {
            "worker killed": self.kill_worker,
            "worker killed again": self.kill_worker,
            "compilation killed": self.kill_compilation,
            "submitter killed": self.kill_submitter,
            "worker frozen": self.freeze_worker,
            "submitter frozen": self.freeze_submitter,
            "broker lost everything": self.lose_broker,
            "broker frozen": self.freeze_broker,
            "broker full": self.fill_broker,
            "broker evicting": self.evict_broker,
            "hot tier lost everything": self.lose_hot,
            "hot tier damaged": self.damage_hot,
            "object store misbehaving": self.trouble_store,
            "object damaged": self.damage_object,
            "file damaged": self.damage_file,
        }

    def _run(self) -> None:
        bag: list[str] = []
        while not self._over.wait(self._rng.uniform(0.5, 3.0)):
            if not bag:  # all of them before any comes again
                bag = sorted(self.deeds)
                self._rng.shuffle(bag)
            name = bag.pop()
            self.tend()
            try:
                did = self.deeds[name]()
            except Exception as error:
                self.failed.append(f"{name}: {type(error).__name__}: {error}")
                continue
            if did:
                self.done[did] += 1

    # --- processes ---

    def tend(self) -> None:
        """As whatever supervises workers does: one that has ended is started again."""
        for name, worker in list(self.fleet.workers.items()):
            if (code := worker.poll()) is not None:
                self.done[f"worker ended by itself with {code} and was started again"] += 1
                self.fleet.worker(name, ready=False)

    def _victim(self) -> tuple[str, Process]:
        name = self._rng.choice(sorted(self.fleet.workers))
        return name, self.fleet.workers[name]

    def kill_worker(self) -> str:
        name, worker = self._victim()
        worker.kill()
        self.fleet.worker(name, ready=False)
        return "worker killed"

    def kill_compilation(self) -> str:
        for process in (self.fleet.workers[name] for name in sorted(self.fleet.workers)):
            with contextlib.suppress(psutil.NoSuchProcess):  # which psutil also says of a number used again
                running = [child for child in process.tree() if not child.children()]
                recent = {event.action for _, event in self.fleet.heard("started")[-2:]}
                if len(running) > 1 and not recent & self._crashed:
                    self._crashed |= recent  # a second time would be on the way to quarantine
                    running[-1].kill()
                    return "compilation killed"
        return ""

    def _submitter(self) -> Process | None:
        running = [process for _, process in sorted(self.submitters.items()) if process.poll() is None]
        return self._rng.choice(running) if running else None

    def kill_submitter(self) -> str:
        process = self._submitter()
        if process is None:
            return ""
        process.kill()
        return "submitter killed"

    def _freeze(self, process: Process, seconds: float) -> None:
        family = process.family()
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.suspend()
        self._over.wait(seconds)
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()

    def freeze_worker(self) -> str:
        self._freeze(self._victim()[1], self._rng.uniform(3, 14))
        return "worker frozen"

    def freeze_submitter(self) -> str:
        process = self._submitter()
        if process is None:
            return ""
        self._freeze(process, self._rng.uniform(3, 12))
        return "submitter frozen"

    # --- Redis ---

    def lose_broker(self) -> str:
        self.broker.kill()
        self._over.wait(self._rng.uniform(0, 4))
        self.broker.start()
        return "broker lost everything"

    def freeze_broker(self) -> str:
        self.broker.pause()
        self._over.wait(self._rng.uniform(1, 8))
        self.broker.resume()
        return "broker frozen"

    def _squeeze(self, policy: str, seconds: float) -> None:
        self.broker.set(maxmemory_policy=policy, maxmemory="1mb")  # less than it takes when empty
        self._over.wait(seconds)
        self.broker.set(maxmemory="0", maxmemory_policy="noeviction")

    def fill_broker(self) -> str:
        self._squeeze("noeviction", self._rng.uniform(2, 6))
        return "broker full"

    def evict_broker(self) -> str:
        self._squeeze("allkeys-lru", self._rng.uniform(1, 3))
        return "broker evicting"

    def lose_hot(self) -> str:
        self.hot.restart(keep=False)
        return "hot tier lost everything"

    def damage_hot(self) -> str:
        with redis_client.Redis.from_url(self.hot.url, socket_timeout=5) as client:
            keys = sorted(client.scan_iter(count=1000))
            for key in self._rng.sample(keys, min(3, len(keys))):
                with contextlib.suppress(redis_client.ResponseError):  # it may be another kind of value
                    client.set(key, damaged(client.get(key) or b"", self._rng) or b"", keepttl=True)
        return "hot tier damaged" if keys else ""

    # --- blobs ---

    def trouble_store(self) -> str:
        name = self._rng.choice(sorted(FAULTS))
        self.fault = FAULTS[name]
        self._over.wait(self._rng.uniform(2, 8))
        self.fault = None
        return f"object store {name}"

    def damage_object(self) -> str:
        paths = sorted(meta["path"] for page in obstore.list(self._store, f"{self.prefix}/") for meta in page)
        free = [path for path in paths if "/blobs/" in path and self._may(path.rpartition("/")[2], "s3")]
        if not free:
            return ""
        path = self._rng.choice(free)
        self._hit[path.rpartition("/")[2]] = "s3"
        with contextlib.suppress(BaseError, FileNotFoundError):
            data = damaged(bytes(obstore.get(self._store, path).bytes()), self._rng)
            if data is None:
                obstore.delete(self._store, path)
            else:
                obstore.put(self._store, path, data)
        return "object damaged"

    def _may(self, name: str, place: str) -> bool:
        blob = name.partition(".")[0]
        return self._hit.get(blob, place) == place and (place != "s3" or blob not in self.precious)

    def damage_file(self) -> str:
        files: list[Path] = []
        for host in self.fleet.hosts.values():
            for kind in ("blobs", "actions", "documents"):
                files += [path for path in (host.directory / kind).rglob("*") if path.is_file()]
        free = sorted(path for path in files if self._may(path.name, "disk"))
        if not free:
            return ""
        path = self._rng.choice(free)
        self._hit[path.name.partition(".")[0]] = "disk"
        with contextlib.suppress(FileNotFoundError):
            data = damaged(path.read_bytes(), self._rng)
            if data is None:
                path.unlink()
            else:  # another file, so that what is mapped of the old one stays as it was
                other = path.with_name(f"{path.name}.{time.monotonic_ns()}")
                other.write_bytes(data)
                other.rename(path)
        return "file damaged"
