"""The other end of the compile server: starts it when first needed, and again when it died."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Self

import msgspec

from spyre_workers.backends.warm import DIRECTORY_VARIABLE
from spyre_workers.errors import WorkerUnavailableError
from spyre_workers.server import Exit, Ready, Request, Setup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spyre_cache.objects.target import Target, Toolchain

_MESSAGE_LIMIT = 1 << 16
_KEPT: Final = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", DIRECTORY_VARIABLE)


class Cancelled(Exception):  # noqa: N818  a state, not an error: whoever cancelled knows
    """The compilation was cancelled by this process."""


class Run:
    """A handle by which one compilation can be ended from another thread, before or while it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._cancelled = False

    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Ends the compilation; its processes are killed. Does nothing once it has ended."""
        with self._lock:
            self._cancelled = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def attached(self, sock: socket.socket) -> Iterator[None]:
        """Within, `cancel` shuts this socket, on which the compile server listens."""
        with self._lock:
            self._socket = sock
        if self._cancelled:
            self.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._socket = None


class CompileServer:
    """A warmed server process; safe among threads.

    Starting it costs what importing torch and the compiler costs (a few seconds), once.

    Attributes:
        ahead: toolchains and targets whose shared state a server that starts builds meanwhile.
    """

    def __init__(self, imports: tuple[str, ...] = ()) -> None:
        """Starts nothing yet.

        Args:
            imports: modules, or Python files, that define the custom operators to be compiled.
        """
        self.ahead: tuple[tuple[Toolchain, Target], ...] = ()
        self._imports = imports
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = 0
        self._errors: IO[bytes] | None = None
        self._running: set[socket.socket] = set()
        self._cancelled: set[socket.socket] = set()

    def run(self, directory: Path, *, seconds: float, memory_bytes: int, handle: Run | None = None) -> Exit:
        """Compiles what lies in a directory, and waits; `handle` can end it.

        Returns:
            How the child ended; status -9 without a reason when the server itself died.

        Raises:
            WorkerUnavailableError: the server cannot be started.
            Cancelled: `cancel` or `close` was called meanwhile, or the handle's `cancel`.
        """
        handle = handle or Run()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.closing(ours):
            with contextlib.closing(theirs), self._lock:
                if handle.cancelled():  # a server that was closed is not started again for it
                    raise Cancelled
                request = msgspec.json.encode(Request(str(directory), seconds, memory_bytes))
                for attempt in (0, 1):
                    control = self._started()
                    try:
                        socket.send_fds(control, [request], [theirs.fileno()])
                        break
                    except OSError:
                        self._drop()
                        if attempt:
                            raise WorkerUnavailableError("the compile server dies whenever it is asked") from None
                self._running.add(ours)
            try:
                with handle.attached(ours):
                    answer = ours.recv(_MESSAGE_LIMIT)
            except OSError:
                answer = b""
            finally:
                with self._lock:
                    self._running.discard(ours)
                    cancelled = ours in self._cancelled
                    self._cancelled.discard(ours)
        if cancelled or (handle.cancelled() and not answer):
            raise Cancelled
        if answer:
            return msgspec.json.decode(answer, type=Exit)
        return Exit(status=-9, reason="", seconds=0.0, peak_rss_bytes=0)

    def start(self) -> int:
        """Starts the server if it is not running; its process id.

        Raises:
            WorkerUnavailableError: it cannot be started.
        """
        with self._lock:
            self._started()
            assert self._process is not None
            return self._process.pid

    def cancel(self) -> None:
        """Ends every running compilation; their children are killed."""
        with self._lock:
            self._cancelled |= self._running
            for sock in self._running:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the server and everything it runs. It starts again when it is used again."""
        if not self._lock.acquire(timeout=0.5):
            # It is being started, which takes seconds; whoever waits for it is told that it died.
            process = self._process
            if process is not None:
                process.kill()
        else:
            self._lock.release()
        self.cancel()
        with self._lock:
            self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> socket.socket:
        if self._owner != os.getpid():  # after a fork the server is the parent's
            self._process = self._control = None
        if self._process is not None and self._process.poll() is not None:
            self._drop()
        if self._control is None:
            self._launch()
        assert self._control is not None
        return self._control

    def _launch(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the server
        with contextlib.closing(theirs):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spyre_workers.server", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=_environment(os.environ),
                cwd="/",
                start_new_session=True,
            )
        self._control, self._owner = ours, os.getpid()
        ready = Ready(error="it ended before it was ready")
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            ours.send(msgspec.json.encode(Setup(self._imports, self.ahead)))
            ready = msgspec.json.decode(ours.recv(_MESSAGE_LIMIT), type=Ready)
        if ready.error:
            self._errors.seek(0)
            tail = self._errors.read().decode("utf-8", "replace")[-2000:]
            self._drop()
            raise WorkerUnavailableError(f"the compile server cannot start: {ready.error}\n{tail}".strip())

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _environment(caller: Mapping[str, str]) -> dict[str, str]:
    """What the server and its children see: no secrets, no settings of torch that would change what is generated."""
    kept = {name: caller[name] for name in _KEPT if name in caller}
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry and Path(entry).is_dir())
    return {
        **kept,
        "PYTHONPATH": path,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
