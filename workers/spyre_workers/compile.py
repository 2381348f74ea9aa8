"""The one function that both executors call: an action in, a result out, whatever happens in between."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from spyre_cache.codec import decode, encode
from spyre_cache.errors import BlobNotFoundError, CacheError, InvalidRecordError
from spyre_cache.objects.action import Action, ActionResult, Failure, FailureKind, OutputFile, Statistics
from spyre_workers import child
from spyre_workers.client import CompileServer
from spyre_workers.errors import WorkerError, WorkerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spyre_cache.cache import Cache
    from spyre_cache.stores.base import BlobStore
    from spyre_workers.client import Run
    from spyre_workers.server import Exit

LOG_LIMIT = 1 << 20
_OUTPUT_LIMIT = 1 << 30
_OUTCOME_LIMIT = 1 << 20


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one compilation may use.

    Attributes:
        seconds: wall-clock time.
        memory_bytes: resident memory of the compiling process and its compilers together, of which a warmed process
            has about half a gigabyte before it starts.
    """

    seconds: float = 900.0
    memory_bytes: int = 8 << 30


_shared: CompileServer | None = None
_shared_lock = threading.Lock()


def shared_server() -> CompileServer:
    """This process's own server, for callers that bring none."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = CompileServer()
            atexit.register(_shared.close)
        return _shared


def _once(act: Callable[[], ActionResult]) -> ActionResult:
    return act()


def compile_action(
    action: Action,
    blobs: BlobStore,
    *,
    limits: Limits | None = None,
    server: CompileServer | None = None,
    builder: str = "",
    handle: Run | None = None,
    into: BlobStore | None = None,
    keep: Callable[[Callable[[], ActionResult]], ActionResult] = _once,
) -> ActionResult:
    """Compiles one action in a fresh, limited process, and stores what comes of it.

    Outputs and the log are blobs before this returns. Describing the action and writing the action cache is the
    caller's: without a description a failure cannot be replayed.

    Args:
        action: what to compile; its fragment must be in `blobs`.
        blobs: where the fragment is read, and outputs are put.
        limits: time and memory.
        server: a warmed server; by default one that all calls in this process share.
        builder: who compiles, for the result.
        handle: ends this compilation when another thread says so.
        into: where outputs and log are put instead, such as the local part of `blobs`: sharing them is the caller's.
        keep: calls what stores the results, perhaps several times: what was compiled is there until it is stored.

    Returns:
        Status `ok` with outputs and requirements, or `failed` with a typed failure. Never raises for what happens to
        the compilation itself.

    Raises:
        CacheError: results cannot be stored.
        Cancelled: the server, or the handle, was told to stop.
    """
    limits, server, started = limits or Limits(), server or shared_server(), time.monotonic()
    try:
        fragment = blobs.get(action.fragment)
    except BlobNotFoundError as error:
        failure = Failure(kind="infrastructure", message=f"the fragment is not in the cache: {error}")
        return ActionResult(action=action.key(), status="failed", failure=failure, builder=builder)
    with _private_directory() as directory:
        (directory / child.ACTION).write_bytes(encode(action))
        (directory / child.FRAGMENT).write_bytes(fragment)
        try:
            exit_ = server.run(directory, seconds=limits.seconds, memory_bytes=limits.memory_bytes, handle=handle)
            outcome = _outcome(directory, exit_, limits)
        except WorkerUnavailableError as error:
            exit_, outcome = None, _failed("infrastructure", str(error))
        seconds = time.monotonic() - started
        return keep(lambda: _stored(action, into or blobs, directory, outcome, exit_, seconds, builder))


def replay(
    cache: Cache, key: str, *, limits: Limits | None = None, server: CompileServer | None = None
) -> tuple[ActionResult, str]:
    """Compiles a described action again, whatever came of it before; the action cache is left as it is.

    Args:
        cache: where the action's document and its fragment are.
        key: the action key.
        limits: time and memory.
        server: as for `compile_action`.

    Returns:
        The new result, and its log.

    Raises:
        WorkerError: this cache has no such action.
        CacheError: the cache cannot be used.
    """
    action = cache.actions.document(key)
    if action is None:
        raise WorkerError(f"an action is compiled again from its document, and this cache has none for {key[:64]!r}")
    result = compile_action(action, cache.blobs, limits=limits, server=server)
    text = cache.blobs.get(result.log).decode("utf-8", "replace") if result.log is not None else ""
    return result, text


def audit(
    action: Action,
    result: ActionResult,
    blobs: BlobStore,
    *,
    limits: Limits | None = None,
    server: CompileServer | None = None,
) -> str | None:
    """Compiles an action again and compares.

    Returns:
        None when both agree to the byte, else a sentence that says what differs.

    Raises:
        CacheError: the cache cannot be used.
    """
    again = compile_action(action, blobs, limits=limits, server=server)
    if again.agrees(result):
        return None
    if again.status != result.status:
        why = again.failure.message if again.failure is not None else "it now succeeds"
        return f"action {action.key()[:12]} was {result.status} and is {again.status} when compiled again: {why}"
    before = {output.name: output.digest for output in result.outputs}
    after = {output.name: output.digest for output in again.outputs}
    differing = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return f"action {action.key()[:12]} gives other bytes when compiled again: {', '.join(differing)}"


@contextlib.contextmanager
def _private_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="spyre-compile-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _failed(kind: FailureKind, message: str) -> child.Outcome:
    return child.Outcome(failure=Failure(kind=kind, message=message))


def _outcome(directory: Path, exit_: Exit, limits: Limits) -> child.Outcome:
    if exit_.reason == "timeout":
        return _failed("timeout", f"compiling took longer than the limit of {limits.seconds:g} s")
    if exit_.reason == "memory":
        mib = limits.memory_bytes >> 20
        return _failed("out-of-memory", f"compiling used more than the limit of {mib} MiB of memory")
    if exit_.reason:
        return _failed("infrastructure", f"the compile process could not be started: {exit_.reason}")
    if exit_.status < 0:
        return _failed("crash", f"the compile process died of {signal.Signals(-exit_.status).name}")
    path = directory / child.OUTCOME
    try:
        if path.stat().st_size <= _OUTCOME_LIMIT:
            return decode(path.read_bytes(), child.Outcome)
    except (OSError, InvalidRecordError):
        pass
    if shutil.disk_usage(directory).free < 1 << 20:
        return _failed("infrastructure", f"no room is left on the device of {tempfile.gettempdir()}")
    return _failed("crash", f"the compile process ended with code {exit_.status} and left no outcome")


def _stored(
    action: Action,
    blobs: BlobStore,
    directory: Path,
    outcome: child.Outcome,
    exit_: Exit | None,
    seconds: float,
    builder: str,
) -> ActionResult:
    with blobs.batch():
        head = f"action {action.key()}\nfragment {action.fragment}\ntarget {action.target.name}\n"
        reason = f"{outcome.failure.kind}: {outcome.failure.message}\n" if outcome.failure is not None else ""
        log = blobs.put((head + reason + child.read_log(directory, LOG_LIMIT)).encode("utf-8", "replace"))
        outputs = []
        for name in outcome.outputs if outcome.failure is None else ():
            path = directory / Path(name).name
            if path.stat().st_size > _OUTPUT_LIMIT:
                raise CacheError(f"an artifact has at most {_OUTPUT_LIMIT} bytes, but {name} is larger")
            outputs.append(OutputFile(name=name, digest=blobs.put(path.read_bytes(), raw=True)))
    measured = outcome.statistics
    return ActionResult(
        action=action.key(),
        status="ok" if outcome.failure is None else "failed",
        outputs=tuple(outputs),
        requires=outcome.requires if outcome.failure is None else None,
        failure=outcome.failure,
        log=log,
        statistics=Statistics(
            seconds=seconds,
            codegen_seconds=measured.codegen_seconds,
            cxx_seconds=measured.cxx_seconds,
            link_seconds=measured.link_seconds,
            peak_rss_bytes=exit_.peak_rss_bytes if exit_ is not None else 0,
        ),
        builder=builder,
    )
