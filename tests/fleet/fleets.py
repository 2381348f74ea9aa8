"""A fleet of real processes: machines (a home, a cache directory, an environment each), workers and submitters on them.

Machines share the broker and the cache tiers they are given, and nothing else. Every process is started by its Fleet
and ended by it, whatever a test does to it meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from msgspec.structs import replace

from spyre_build import builds
from spyre_build.building import new_id
from spyre_build.following import plan_of_build
from spyre_cache.cache import Cache
from spyre_cache.codec import encode
from spyre_cache.errors import CacheUnavailableError
from spyre_workers.redis_bus import RedisBus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from spyre_cache.objects.target import Toolchain

TARGET = "cpu/x86-64-v2"
PATIENCE = 240.0

_SHARED_TOOLCHAIN = os.environ.get("SPYRE_BUILD_TOOLCHAIN_DIR") or str(
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spyre-build-toolchain"
)

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.up = nn.Linear(width, out)

    def forward(self, h):
        return torch.tanh(self.up(h) * {scale}) + torch.relu(self.up(h)) - 0.5

def build():
    torch.manual_seed(3)
    widths = {widths}
    blocks = [Block(a, b) for a, b in zip([8, *widths], widths)]
    return nn.Sequential(*blocks).eval(), (torch.randn(2, 8),)
"""


def write_model(path: Path, fragments: int, scale: float = 1.0) -> str:
    """A model of so many distinct fragments, each compiled in a second or two; another scale gives other ones."""
    widths = [9 + number for number in range(fragments)]
    path.write_text(MODEL.replace("{scale}", repr(scale)).replace("{widths}", repr(widths)))
    return f"{path}:build"


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """What the condition gives once it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)
    return found


def plant(seed: Cache, build: str, cache: Cache, salt: str, toolchain: Toolchain | None = None) -> str:
    """Puts into a cache a build whose plan is that of another, with keys that nobody has compiled yet.

    A tenant's salt is part of every key and of nothing that is compiled, so this costs neither torch nor a capture.

    Returns:
        Its name, for `plan:NAME`.
    """
    plan = plan_of_build(seed, builds.find(seed, build))
    plan = replace(plan, salt=salt, toolchain=toolchain or plan.toolchain)
    with cache.blobs.batch():
        for digest in seed.blobs.iter():
            cache.blobs.put(seed.blobs.get(digest))
        blob = cache.blobs.put(encode(plan))
    record = builds.BuildRecord(id=new_id(), started=time.time(), name=plan.name, plan=blob, status="cancelled")
    builds.keep(cache, record)
    return record.id


# Reads process ids, and kills them all once whoever wrote them is gone, however it went; through pidfds, so that a number
# used again is not shot at.
_GUARD = """
import os, signal, sys
fds = []
for line in sys.stdin:
    try:
        fds.append(os.pidfd_open(int(line)))
    except OSError:
        pass
for fd in fds:
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        pass
"""


class Process:
    """One command. Its output goes to files, so that nobody has to read it for it to go on."""

    def __init__(
        self, words: Iterable[object], folder: Path, environment: Mapping[str, str], prefix: Iterable[str] = ()
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.out, self.errors = folder / "out", folder / "err"
        self.words = [*prefix, sys.executable, "-m", "spyre_build.cli.main", *map(str, words)]
        self.began = time.monotonic()
        with self.out.open("wb") as out, self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                self.words, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, cwd=folder, env=dict(environment),
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def log(self) -> str:
        return self.errors.read_text(errors="replace")

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code; a process that does not end is a failure of the test, told with its log."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.words[-4:]} did not end in {seconds:g} s:\n{self.log()[-3000:]}") from None

    def result(self, seconds: float = PATIENCE) -> tuple[int, dict[str, Any]]:
        """Exit code and what `--json` printed."""
        code = self.wait(seconds)
        lines = self.out.read_text().splitlines()
        assert lines, f"{self.words[-4:]} printed nothing, exit {code}:\n{self.log()[-3000:]}"
        return code, json.loads(lines[-1])

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """As the kernel would: no clean-up of its own."""
        self.signal(signal.SIGKILL)
        self._process.wait()

    def family(self) -> list[psutil.Process]:
        """Itself and its descendants, as long as it lives."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.poll() is None:
                return [psutil.Process(self.pid), *self.tree()]
        return []

    def tree(self) -> list[psutil.Process]:
        """Its living descendants, the outermost first; none once it has ended, for its number may be another's then."""
        if self.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def end(self) -> None:
        """Everything it runs; for the end of a test."""
        children = self.tree()
        self.signal(signal.SIGCONT)
        if self._process.poll() is None:
            self.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


class Host:
    """A machine: a home and a cache directory of its own.

    Attributes:
        cache: its cache URL: its own directory, then the tiers that all share.
        prefix: words before every command (`ip netns exec …`).
    """

    def __init__(
        self,
        folder: Path,
        tiers: str,
        environment: Mapping[str, str],
        *,
        directory: Path | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.prefix = folder, prefix
        self.directory = folder / "cache" if directory is None else directory
        self.cache = f"{self.directory},{tiers}" if tiers else str(self.directory)
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("SPYRE_", "AWS_", "XDG_"))
        }
        self.environment = {
            **inherited,
            "SPYRE_BUILD_TOOLCHAIN_DIR": _SHARED_TOOLCHAIN,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "HOME": str(folder),
            **environment,
        }

    def forget(self) -> None:
        """Another machine in its place: nothing on its disk."""
        shutil.rmtree(self.directory, ignore_errors=True)


class Fleet:
    """Machines, workers and submitters around one broker; hears every event."""

    def __init__(self, folder: Path, broker: str, tiers: str, environment: Mapping[str, str]) -> None:
        self.folder, self.broker, self.tiers, self.environment = folder, broker, tiers, environment
        self.hosts: dict[str, Host] = {}
        self.processes: list[Process] = []
        self.workers: dict[str, Process] = {}
        self.events: list[tuple[float, Any]] = []
        self._guard = subprocess.Popen([sys.executable, "-SEc", _GUARD], stdin=subprocess.PIPE, text=True)
        self._numbers: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ear = threading.Thread(target=self._listen, name="fleet-ear", daemon=True)
        with contextlib.suppress(CacheUnavailableError):  # else there is no broker, which is what the test is about
            self._bus = RedisBus(broker)
            self._ear.start()

    # --- who there is ---

    def host(self, name: str = "desk", **more: Any) -> Host:
        """The machine of that name, made when first asked for."""
        if name not in self.hosts:
            if not self.tiers:  # processes of one machine
                more.setdefault("directory", self.folder / "cache")
            environment = {**self.environment, **more.pop("environment", {})}
            self.hosts[name] = Host(self.folder / name, more.pop("tiers", self.tiers), environment, **more)
        return self.hosts[name]

    def run(self, host: Host | str, *words: object, environment: Mapping[str, str] | None = None) -> Process:
        """Starts `spyre-build WORDS --json` on a machine."""
        host = self.host(host) if isinstance(host, str) else host
        self._numbers[str(words[0])] += 1
        folder = host.folder / f"{words[0]}-{self._numbers[str(words[0])]}"
        process = Process([*words, "--json"], folder, {**host.environment, **(environment or {})}, host.prefix)
        self.processes.append(process)
        with self._lock:
            assert self._guard.stdin is not None
            self._guard.stdin.write(f"{process.pid}\n")
            self._guard.stdin.flush()
        return process

    def on_fleet(self, host: Host | str, *words: object, **more: Any) -> Process:
        """Starts a command that takes `--cache` and `--broker`."""
        host = self.host(host) if isinstance(host, str) else host
        return self.run(host, *words, "--cache", host.cache, "--broker", self.broker, **more)

    def plant(
        self, seed: tuple[Path, str], salt: str, host: str = "desk", *, toolchain: Toolchain | None = None
    ) -> str:
        """As `plant`, into this fleet's cache; gives the SPEC to submit."""
        path, build = seed
        with self.open(host) as cache, Cache.open(path, read_only=True) as known:
            return f"plan:{plant(known, build, cache, salt, toolchain)}"

    @contextlib.contextmanager
    def open(self, host: str = "desk") -> Iterator[Cache]:
        """The cache as a machine sees it, in this process."""
        found = self.host(host)
        mine = {name: value for name, value in found.environment.items() if name.startswith("AWS_")}
        before = {name: os.environ.get(name) for name in mine}
        os.environ.update(mine)
        try:
            with Cache.open(found.cache) as cache:
                yield cache
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def submit(self, host: Host | str, spec: str, *words: object) -> Process:
        return self.on_fleet(host, "submit", spec, *([] if spec.startswith("plan:") else ["--target", TARGET]), *words)

    def worker(self, name: str, host: Host | str | None = None, *, ready: bool = True, **more: Any) -> Process:
        """Starts a worker, on a machine of its own unless told otherwise; comes back when it takes tasks."""
        words = more.pop("words", ("--concurrency", 1))
        process = self.on_fleet(host or f"machine-{name}", "worker", "--name", name, *words, **more)
        self.workers[name] = process
        if ready:
            self.wait_for_worker(name)
        return process

    def wait_for_worker(self, name: str) -> None:
        from spyre_workers.registry import Registry

        process = self.workers[name]

        def announced() -> bool:
            assert process.poll() is None, f"worker {name} ended: {process.log()[-3000:]}"
            return any(w.name == name and w.pid == process.pid and w.queues for w in Registry(self.broker).workers())

        wait_for(announced, f"worker {name} announces itself")

    # --- what happens ---

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                heard = self._bus.read(0.2)
            except CacheUnavailableError:
                self._over.wait(0.2)
                continue
            now = time.monotonic()
            self.events.extend((now, event) for event in heard)

    def heard(self, kind: str, **fields: Any) -> list[tuple[float, Any]]:
        """Events of a kind, each with when it was heard; fields narrow it down."""
        return [
            (at, event)
            for at, event in list(self.events)
            if event.kind == kind and all(getattr(event, name) == value for name, value in fields.items())
        ]

    def starts(self) -> Counter[str]:
        """Compilations begun so far, by action key."""
        return Counter(event.action for _, event in self.heard("started"))

    # --- the end ---

    def verify(self) -> None:
        """Nothing is damaged in any machine's directory, nor in what they share."""
        hosts = {host.directory: name for name, host in self.hosts.items() if host.directory.exists()}
        for directory, name in hosts.items():
            with self.open(name) as cache:
                assert not cache.actions.events(), "two results of one action did not agree"
                assert not (found := cache.verify()), (directory, found)

    def close(self) -> None:
        self._over.set()
        for process in self.processes:
            process.end()
        self._guard.communicate()
        if self._ear.is_alive():
            self._ear.join(10)
        with contextlib.suppress(AttributeError):
            self._bus.close()
