"""The warmed compile server: torch and the compiler imported once, one forked child for each fragment.

Runs as its own process (`python -m spyre_workers.server FD`), never inside a user's. It obeys one control socket: each
message names a private directory and limits, and carries a socket of its own on which the end is reported. When that
socket closes, its child is killed; when the control socket closes, everything is. So nothing outlives whoever asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from spyre_cache.objects.target import Target, Toolchain  # noqa: TC001  msgspec reads them at run time
from spyre_workers import child
from spyre_workers.backends.cxx import find_compiler
from spyre_workers.backends.isa import plan_for
from spyre_workers.backends.warm import warm_state

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.05
_MESSAGE_LIMIT = 1 << 16


class Setup(msgspec.Struct, frozen=True):
    """First message.

    Attributes:
        imports: modules or Python files that define operators.
        ahead: what will be compiled for, so that headers are compiled while torch is imported.
    """

    imports: tuple[str, ...] = ()
    ahead: tuple[tuple[Toolchain, Target], ...] = ()


class Ready(msgspec.Struct, frozen=True):
    """First answer: empty `error` when the server can compile."""

    error: str = ""


class Request(msgspec.Struct, frozen=True):
    """A compilation: `directory` holds the action and the fragment; limits are seconds and bytes.

    The directory is the asker's to remove, and the server's when the asker is gone.
    """

    directory: str
    seconds: float
    memory_bytes: int


class Exit(msgspec.Struct, frozen=True):
    """How a child ended.

    Attributes:
        status: exit code, or minus the signal.
        reason: `timeout` or `memory` when the server killed it, else empty.
        seconds: wall-clock time.
        peak_rss_bytes: most resident memory of the child and its compilers at once.
    """

    status: int
    reason: str
    seconds: float
    peak_rss_bytes: int


class _Job:
    def __init__(self, pid: int, request: Request, report: socket.socket) -> None:
        self.pid = pid
        self.request = request
        self.report = report
        self.pidfd = os.pidfd_open(pid)
        self.started = time.monotonic()
        self.reason = ""
        self.reaped = False
        self.abandoned = False
        self.peak = 0

    def kill(self, reason: str = "") -> None:
        self.reason = self.reason or reason
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if not self.reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def watch(self) -> None:
        if self.reason:
            return
        if time.monotonic() - self.started > self.request.seconds:
            self.kill("timeout")
            return
        self.peak = max(self.peak, tree_rss(self.pid))
        if self.peak > self.request.memory_bytes:
            self.kill("memory")


def tree_rss(pid: int) -> int:
    """Resident bytes of a process and all its descendants; 0 once they are gone."""
    total, waiting = 0, [pid]
    page = resource.getpagesize()
    while waiting:
        current = waiting.pop()
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(Path(f"/proc/{current}/statm").read_text().split()[1]) * page
            waiting += [int(word) for word in Path(f"/proc/{current}/task/{current}/children").read_text().split()]
    return total


class Server:
    """The loop: one thread, so that forking is safe."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._jobs: dict[int, _Job] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Until the control socket closes."""
        try:
            while True:
                ready = self._selector.select(_POLL_SECONDS if self._jobs else None)
                for key, _ in ready:
                    if key.data is None:
                        if not self._accept():
                            return
                    elif key.data in self._jobs:
                        job = self._jobs[key.data]
                        if key.fd == job.pidfd:
                            self._finish(job)
                        else:
                            job.abandoned = True  # whoever asked has gone
                            job.kill()
                            self._selector.unregister(job.report)
                for job in list(self._jobs.values()):
                    job.watch()
        finally:
            for job in list(self._jobs.values()):
                job.abandoned = True
                job.kill()
                self._finish(job)

    def _accept(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, _MESSAGE_LIMIT, 1)
        if not data or len(fds) != 1:
            return False
        report = socket.socket(fileno=fds[0])
        try:
            request = msgspec.json.decode(data, type=Request)
            pid = os.fork()
        except (msgspec.MsgspecError, OSError) as error:
            _send(report, Exit(70, f"fork: {error}", 0.0, 0))
            report.close()
            return True
        if pid == 0:
            self._child(request)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # as the child does: whoever comes first, the group exists before it can be killed
        job = _Job(pid, request, report)
        self._jobs[pid] = job
        self._selector.register(job.pidfd, selectors.EVENT_READ, pid)
        self._selector.register(report, selectors.EVENT_READ, pid)
        return True

    def _child(self, request: Request) -> None:
        """Never returns."""
        code = 70
        try:
            parent = os.getppid()
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            die_with_parent(parent)
            keep = {0, 1, 2}
            self._selector.close()
            self._control.close()
            for job in self._jobs.values():
                job.report.close()
                os.close(job.pidfd)
            directory = Path(request.directory)
            log = os.open(directory / "output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.closerange(max(keep) + 1, 4096)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _limit_address_space(request.memory_bytes)
            os.chdir(directory)
            # Whatever a library writes goes where it is removed.
            os.environ.update(TMPDIR=str(directory), TORCHINDUCTOR_CACHE_DIR=str(directory / "inductor"))
            tempfile.tempdir = str(directory)
            code = child.main(directory)
        except BaseException:  # noqa: BLE001  the last frame of a forked child: whatever comes, it must not return
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _finish(self, job: _Job) -> None:
        _, status, usage = os.wait4(job.pid, 0)
        job.reaped = True
        job.kill(job.reason)  # compilers it left running
        # They are this process's children now; only when they are gone may the directory be removed.
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-job.pid, 0)
        del self._jobs[job.pid]
        self._selector.unregister(job.pidfd)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(job.report)
        os.close(job.pidfd)
        if job.abandoned:
            shutil.rmtree(job.request.directory, ignore_errors=True)
        peak = max(job.peak, usage.ru_maxrss * 1024)
        code = os.waitstatus_to_exitcode(status)
        _send(job.report, Exit(code, job.reason, time.monotonic() - job.started, peak))
        job.report.close()


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when its parent dies; at once, if it is dead already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(71)


def _limit_address_space(extra: int) -> None:
    """A hard stop above the watchdog's: what is mapped now (torch maps gigabytes) plus the limit."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + extra
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _send(report: socket.socket, message: Any) -> None:
    with contextlib.suppress(OSError):
        report.send(msgspec.json.encode(message))


def _prepare(ahead: tuple[tuple[Toolchain, Target], ...]) -> int:
    """Builds shared state in a process of its own, before this one has threads or torch.

    Returns:
        Its process group, or 0 when there is nothing to build. What goes wrong there goes wrong again, and is told,
        when a fragment is compiled.
    """
    if not ahead:
        return 0
    parent = os.getpid()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        die_with_parent(parent)
        os.closerange(3, 4096)
        for toolchain, target in ahead:
            plan = plan_for(target)
            warm_state(toolchain, plan, find_compiler(plan.arch), [])
    except Exception:  # noqa: BLE001  as above
        traceback.print_exc()
    finally:
        os._exit(0)


def _import(name: str) -> None:
    """Imports a module by name, or a Python file by path: what defines a declared operator."""
    if not name.endswith(".py"):
        importlib.import_module(name)
        return
    spec = importlib.util.spec_from_file_location(f"_spyre_operators_{Path(name).stem}", name)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is no Python file")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def main() -> None:
    """Entry point: the control socket's number is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    setup = msgspec.json.decode(control.recv(_MESSAGE_LIMIT) or b"{}", type=Setup)
    ahead = _prepare(setup.ahead)
    try:
        child.warm_up()
        for name in setup.imports:
            _import(name)
    except Exception as error:  # noqa: BLE001  whatever a user's module raises is reported, not lost
        traceback.print_exc()
        _send(control, Ready(error=f"{type(error).__name__}: {error}"[:2000]))
        return
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()
    _send(control, Ready())
    try:
        Server(control).serve()
    finally:
        if ahead:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(ahead, signal.SIGKILL)


if __name__ == "__main__":
    main()
