"""Two network namespaces that reach nothing but chosen ports of this machine, each over a wire of its own."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import threading
from typing import Self


def possible() -> bool:
    """Whether this machine lets us make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"spyre-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return made


class Network:
    """A namespace with one wire to this machine.

    Attributes:
        address: this machine's end of it.
        prefix: words before a command that is to run inside.
    """

    def __init__(self, name: str) -> None:
        self.name = f"sp{os.getpid()}{name}"
        base = f"10.{random.randrange(200, 250)}.{random.randrange(256)}"
        self.address, self._inside = f"{base}.1", f"{base}.2"
        self.prefix = ("ip", "netns", "exec", self.name)
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        outer, inner = f"{self.name}o", f"{self.name}i"
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", self.name)
            _ip("address", "add", f"{self.address}/30", "dev", outer)
            _ip("link", "set", outer, "up")
            for words in (("address", "add", f"{self._inside}/30", "dev", inner), ("link", "set", inner, "up")):
                _ip("-n", self.name, *words)
            _ip("-n", self.name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)
        # The wire goes with the namespace.
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True, check=False)

    def open(self, port: int) -> None:
        """Makes a port of this machine's loopback reachable from inside, at `address` and the same port."""
        listener = socket.create_server((self.address, port))
        listener.settimeout(0.2)
        self._threads.append(threading.Thread(target=self._accept, args=(listener, port), daemon=True))
        self._threads[-1].start()

    def _accept(self, listener: socket.socket, port: int) -> None:
        with listener:
            while not self._over.is_set():
                try:
                    inside, _ = listener.accept()
                except TimeoutError:
                    continue
                inside.settimeout(None)
                threading.Thread(target=_pass_on, args=(inside, port), daemon=True).start()


def _pass_on(inside: socket.socket, port: int) -> None:
    with inside, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as outside:
        back = threading.Thread(target=_pump, args=(outside, inside), daemon=True)
        back.start()
        _pump(inside, outside)
        back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
