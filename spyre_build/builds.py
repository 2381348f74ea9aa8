"""What a build leaves behind for `status`, `logs` and `explain`: one small document, rewritten as it goes."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from spyre_build.errors import BuildNotFoundError, UsageError
from spyre_cache.codec import Record, decode, encode
from spyre_cache.digest import Digest  # noqa: TC001  msgspec reads the annotations
from spyre_cache.errors import BlobNotFoundError, InvalidRecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims

MAX_BUILD_BYTES = 16 << 20
_RECENT = 50
MAX_TEXT = 1 << 17
"""Characters of any text in a record: what one word of a command line can hold."""
_AFTER_ALL = float(1 << 40)  # seconds since the epoch that no clock shows
_KEY = re.compile(r"[0-9a-f]{64}")

Status = Literal["running", "ok", "partial", "failed", "cancelled"]


class BuildAction(Record, frozen=True, kw_only=True):
    """One distinct (fragment, target) of a build.

    Attributes:
        fragment: the fragment's digest.
        target: the target's name.
        key: the action key, 64 hex digits; the cache gives the document (`cache.actions.document`).
        outcome: as counted in the build; `planned` until it is known.
        error: one line, when it failed.
        log: the compiler's log, when there is one.
        worker: who ran it, when it did not come from the cache.
        queued: when it was handed out, seconds since the epoch; 0 when it was not.
        began: when its run began, by the worker's clock; 0 when it is not known.
        ended: when its result was known here; 0 while it is not.
    """

    fragment: Digest
    target: str
    key: str
    outcome: Literal["planned", "hit", "compiled", "waited", "failed"] = "planned"
    error: str = ""
    log: Digest | None = None
    worker: str = ""
    queued: float = 0.0
    began: float = 0.0
    ended: float = 0.0


class Span(Record, frozen=True, kw_only=True):
    """A phase of a build, seconds since the epoch; `ended` is 0 while it lasts."""

    name: str
    began: float
    ended: float = 0.0


class BuildRecord(Record, frozen=True, kw_only=True):
    """A build as it stands. Not hashed into anything: it may hold times and the user's own words.

    Attributes:
        id: name of the build, unique in its cache.
        started: seconds since the epoch.
        spec: what the user asked to build, as typed.
        name: name of the model.
        status: `running` until the end; a build that was killed stays so (see `state`).
        manifest: `blake3:…`, or empty when none was made.
        actions: every distinct (fragment, target), in order of the plan.
        summary: what `submit --json` printed.
        error: why it failed as a whole, one line.
        origin: who submitted it, `user@host`; `last` is the newest of one's own.
        plan: blob of the PlanRecord, once there is one: with it anybody may bring the build to its end.
        spans: phases in order.
    """

    schema: Literal["build/1"] = "build/1"
    id: str
    started: float
    spec: str = ""
    name: str = ""
    status: Status = "running"
    manifest: str = ""
    actions: tuple[BuildAction, ...] = ()
    summary: dict[str, Any] = {}  # noqa: RUF012  msgspec copies an empty default
    error: str = ""
    origin: str = ""
    plan: Digest | None = None
    spans: tuple[Span, ...] = ()


def keep(cache: Cache, record: BuildRecord) -> None:
    """Writes the record over the one of the same id."""
    cache.builds.put(record.id, encode(record))


def read(cache: Cache, name: str) -> BuildRecord | None:
    """The build kept under exactly this name, or None. Others may have written it, so all of it is doubted.

    Raises:
        InvalidRecordError: it is no build's record, or says what cannot be: another's name, times of no clock, texts
            without end.
    """
    data = cache.builds.get(name)
    if data is None:
        return None
    record = decode(data, BuildRecord, limit=MAX_BUILD_BYTES)
    if record.id != name:
        raise InvalidRecordError(f"the record of build {name[:80]!r} is of another, {record.id[:80]!r}")
    times = [record.started, *(time for span in record.spans for time in (span.began, span.ended))]
    times += [time for action in record.actions for time in (action.queued, action.began, action.ended)]
    for time in times:
        if not 0 <= time < _AFTER_ALL:
            raise InvalidRecordError(f"a time is seconds since the epoch, below {_AFTER_ALL:.0f}, not {time!r}")
    longest = max(map(len, _texts(record)))
    if longest > MAX_TEXT:
        raise InvalidRecordError(f"a text of a build has at most {MAX_TEXT} characters, but {longest} came")
    return record


def _texts(record: BuildRecord) -> Iterator[str]:
    yield from (record.spec, record.name, record.manifest, record.error, record.origin)
    yield from chain.from_iterable((a.target, a.key, a.error, a.worker) for a in record.actions)
    yield from (span.name for span in record.spans)


def recent(cache: Cache, unreadable: list[str] | None = None) -> Iterator[BuildRecord]:
    """Builds that this cache knows, newest first; what cannot be read is left out.

    Args:
        cache: where they are.
        unreadable: takes the names of those left out.
    """
    for name in cache.builds.list():
        try:
            record = read(cache, name)
        except InvalidRecordError:
            if unreadable is not None:
                unreadable.append(name)
        else:
            if record is not None:
                yield record


def find(cache: Cache, name: str) -> BuildRecord:
    """The build of this id, of an unambiguous beginning of it, or the newest one for `last`.

    Raises:
        BuildNotFoundError: there is none, or several begin so.
        InvalidRecordError: the stored document is damaged.
    """
    known = list(cache.builds.list())
    if name == "last":
        found = _own_newest(cache, known)
    else:
        found = [k for k in known if k == name] or [k for k in known if k.startswith(name)]
    if not found or not name:
        raise BuildNotFoundError(f"no build is called {name[:80]!r} in this cache")
    if len(found) > 1:
        raise BuildNotFoundError(f"{len(found)} builds begin with {name[:80]!r}: {', '.join(found[:5])}")
    try:
        record = read(cache, found[0])
    except InvalidRecordError as error:
        raise InvalidRecordError(f"build {found[0]} is kept but unreadable: {error}") from None
    if record is None:
        raise BuildNotFoundError(f"build {found[0]} is not kept any more")
    return record


def me() -> str:
    """This user on this machine, `user@host`, for people and for `last`."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user: a container's number
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:200]


def _own_newest(cache: Cache, known: list[str]) -> list[str]:
    """The newest of one's own; in a directory of this machine, the newest of all if none is."""
    own = me()
    for build in known[:_RECENT]:
        with contextlib.suppress(InvalidRecordError):
            record = read(cache, build)
            if record is not None and record.origin == own:
                return [build]
    return [] if cache.is_shared else known[:1]


def state(cache: Cache, record: BuildRecord, claims: Claims | None = None) -> str:
    """A build's status; of those that say they run, `left` when nobody drives it any more and somebody could go on
    (`watch`, or a worker of the fleet), `died` when nobody can.

    Raises:
        CacheUnavailableError: the claims cannot be reached.
    """
    if record.status != "running" or is_held_here(cache, record.id):
        return record.status
    if claims is not None:
        from spyre_build.taking import is_driven

        if is_driven(claims, record.id):
            return "running"
    return "died" if record.plan is None else "left"


def is_held_here(cache: Cache, build: str) -> bool:
    """Whether a living process of this machine has the build's lease."""
    from spyre_cache.leases import is_live

    return is_live(cache.path / "leases" / build, 0.0)


def as_json(cache: Cache, record: BuildRecord, claims: Claims | None = None) -> dict[str, Any]:
    """A build for `status --json`."""
    return {
        "build": record.id,
        "started": record.started,
        "spec": record.spec,
        "origin": record.origin or None,
        "name": record.name,
        "status": state(cache, record, claims),
        "manifest": record.manifest or None,
        "error": record.error or None,
        "actions": [
            {
                "fragment": str(action.fragment),
                "target": action.target,
                "action": action.key,
                "outcome": action.outcome,
                "error": action.error or None,
            }
            for action in record.actions
        ],
    }


def logs(cache: Cache, record: BuildRecord, fragment: str = "") -> list[dict[str, str]]:
    """The kept logs of a build's compilations, failed ones first.

    Args:
        cache: where they are.
        record: the build.
        fragment: a fragment's digest or the beginning of it; empty for all.

    Raises:
        UsageError: no fragment of this build begins so.
    """
    wanted = fragment.removeprefix("blake3:")
    chosen = [a for a in record.actions if a.fragment.hash.startswith(wanted)]
    if wanted and not chosen:
        raise UsageError(f"build {record.id} has no fragment {fragment[:80]!r}")
    chosen.sort(key=lambda action: action.outcome != "failed")
    found = []
    for action in chosen:
        if action.log is None:
            continue
        try:
            text = cache.blobs.get(action.log).decode("utf-8", "replace")
        except BlobNotFoundError:
            continue
        found.append(
            {"fragment": str(action.fragment), "target": action.target, "outcome": action.outcome, "log": text}
        )
    return found


def replay_failure(cache: Cache, failure: str, imports: tuple[str, ...] = ()) -> dict[str, Any]:
    """Compiles again what a failed action was about; the action cache is not written.

    Args:
        cache: where the action's document and its fragment are.
        failure: an action key, or the beginning of one that failed in some build.
        imports: modules, or Python files, that define the custom operators it calls.

    Raises:
        UsageError: no kept failure begins so, or several different ones do.
    """
    failed = list(dict.fromkeys(a.key for b in recent(cache) for a in b.actions if a.outcome == "failed"))
    found = [key for key in failed if key.startswith(failure)] if failure else []
    if not found and _KEY.fullmatch(failure):
        found = [failure]
    if len(found) != 1:
        hint = "failures: " + (", ".join(key[:12] for key in failed[:8]) or "none is kept")
        count = "no kept failure begins" if not found else f"{len(found)} failures begin"
        raise UsageError(f"{count} with {failure[:80]!r}", hint=hint)
    action = cache.actions.document(found[0])
    if action is None:
        raise UsageError(f"this cache has no document of the action {found[0]}", hint="submit the model again")

    from spyre_workers.client import CompileServer
    from spyre_workers.compile import replay

    with CompileServer(imports) as server:
        result, log = replay(cache, found[0], server=server)
    failure_words = None
    if result.failure is not None:
        said = result.failure
        failure_words = {
            "kind": said.kind, "message": said.message, "nodes": list(said.nodes), "ops": list(said.ops),
        }  # fmt: skip
    return {
        "action": found[0],
        "fragment": str(action.fragment),
        "target": action.target.name,
        "status": result.status,
        "failure": failure_words,
        "seconds": result.statistics.seconds,
        "peak_rss_bytes": result.statistics.peak_rss_bytes,
        "log": log,
    }
