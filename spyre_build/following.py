"""A build after its submitter: picked up by whoever watches it, followed while another drives it, or cancelled."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from spyre_build import builds
from spyre_build.building import Building, new_id
from spyre_build.errors import BuildTakenError, UsageError
from spyre_build.events import Events, NullEvents
from spyre_build.taking import is_driven
from spyre_build.workshop import workshop
from spyre_cache.claims import CLAIM_SECONDS, cancel_token
from spyre_cache.codec import decode
from spyre_cache.errors import BlobNotFoundError, CacheUnavailableError
from spyre_cache.objects.plan import PlanRecord

if TYPE_CHECKING:
    from spyre_build.builds import BuildRecord
    from spyre_build.outcome import Build
    from spyre_cache.cache import Cache

_LOOK_SECONDS = 1.0


def watch(
    name: str,
    *,
    cache: Cache,
    broker: str | None = None,
    jobs: int | None = None,
    events: Events | None = None,
    seconds: float | None = None,
    adopt: bool = False,
) -> dict[str, Any]:
    """Follows a build to its end, and brings it there when nobody else does.

    Args:
        name: the build, the beginning of its id, or `last`.
        cache: the cache it was submitted to, or one that shares a tier with it.
        broker: URL of the Redis whose workers compile; None for a pool on this machine.
        jobs: compilations at once, of a pool.
        events: hears what happens.
        seconds: how long to watch; None for as long as it takes.
        adopt: come back at once when another process drives it.

    Returns:
        What `submit --json` prints of a build.

    Raises:
        UsageError: no such build, or one that cannot be picked up.
        BuildError: it failed as a whole.
    """
    events = events or NullEvents()
    record = builds.find(cache, name)
    follower = _Follower(events)
    deadline = None if seconds is None else time.monotonic() + seconds
    while record.status == "running" and (deadline is None or time.monotonic() < deadline):
        try:
            return _pick_up(record, cache, broker, jobs, events)
        except BuildTakenError:
            if adopt:
                break
            follower.show(record)
            time.sleep(_LOOK_SECONDS)
        record = _again(cache, record)
    follower.show(record)
    return summary_of(record)


def _again(cache: Cache, record: BuildRecord) -> BuildRecord:
    try:
        return builds.find(cache, record.id)
    except CacheUnavailableError:
        return record


def summary_of(record: BuildRecord) -> dict[str, Any]:
    """What a build's record says of it, in the words of `submit --json`, with what made it fail as a whole."""
    said: dict[str, Any] = {
        "build": record.id, "manifest": record.manifest or None, "name": record.name,
        "entries": [], "actions": {}, "failures": [], "notes": [], "seconds": {}, "peak_rss_bytes": {},
    }  # fmt: skip
    return {**said, **record.summary, "status": record.status, "error": record.error or None}


def _pick_up(record: BuildRecord, cache: Cache, broker: str | None, jobs: int | None, events: Events) -> dict[str, Any]:
    with workshop(cache, broker, jobs=jobs) as (claims, executor):
        if is_driven(claims, record.id) or builds.is_held_here(cache, record.id):
            raise BuildTakenError(f"the build {record.id} is driven by another process")
        plan = plan_of_build(cache, record)
        building = Building(cache, record, events)
        building.claims = claims
        with building.kept(mine=False):
            building.resume(plan)
            building.drive(executor)
            building.wait()
            building.finish()
        return {**building.build.to_json(), "error": None}


def plan_of_build(cache: Cache, record: BuildRecord) -> PlanRecord:
    """The stored plan of a build.

    Raises:
        UsageError: it was never stored, or is gone.
    """
    if record.plan is None:
        raise UsageError(
            f"the build {record.id} was left before its plan was stored, so only its submitter could go on",
            hint="submit the model again: what was compiled is kept",
        )
    try:
        return decode(cache.blobs.get(record.plan), PlanRecord)
    except BlobNotFoundError as error:
        raise UsageError(
            f"the plan of build {record.id} is not in this cache: {error}", hint="submit the model again"
        ) from None


def rebuild(
    name: str,
    *,
    cache: Cache,
    broker: str | None = None,
    jobs: int | None = None,
    events: Events | None = None,
    detach: bool = False,
    replay: bool = True,
) -> Build:
    """Builds once more from the plan of an earlier build: without the model, and but for the replay without torch.

    Args:
        name: the earlier build.
        cache: where its plan is.
        broker: URL of the Redis whose workers compile; None for a pool on this machine.
        jobs: compilations at once, of a pool.
        events: hears what happens.
        detach: come back once everything is handed out.
        replay: whether golden vectors are replayed; without that nothing is released.

    Raises:
        UsageError: no such build, or its plan is gone.
        BuildError: the build failed as a whole.
    """
    events = events or NullEvents()
    known = builds.find(cache, name)
    plan = plan_of_build(cache, known)
    record = builds.BuildRecord(
        id=new_id(), started=time.time(), spec=known.spec, origin=builds.me(), name=plan.name, plan=known.plan
    )
    building = Building(cache, record, events)
    with building.kept(), cache.lease(record.id), workshop(cache, broker, jobs=jobs) as (claims, executor):
        building.claims = claims
        building.resume(plan, fresh=True)
        if building.missing:
            building.drive(executor)
        if detach and building.missing:
            building.leave()
        else:
            building.wait()
            building.finish(replay=replay)
    return building.build


class _Follower:
    """Turns a record that grows into events."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._seen: set[str] = set()
        self._planned = False

    def show(self, record: BuildRecord) -> None:
        """Tells what is new in the record."""
        known = [action for action in record.actions if action.outcome != "planned"]
        if record.actions and not self._planned:
            self._planned = True
            hits = [action.key for action in known if action.outcome == "hit"]
            self._seen.update(hits)
            self._events.planned(len(record.actions), len(hits))
            self._events.phase("compile")
        for action in known:
            outcome = action.outcome
            if action.key in self._seen or outcome == "planned":
                continue
            self._seen.add(action.key)
            took = max(0.0, action.ended - action.began) if action.began else 0.0
            self._events.finished(str(action.fragment), action.target, outcome, took)


def cancel(name: str, *, cache: Cache, broker: str | None = None) -> dict[str, Any]:
    """Cancels a build: nothing of it is begun any more; what runs goes on to its end, for others may want it.

    Raises:
        UsageError: no such build, or it has ended.
    """
    from msgspec.structs import replace

    from spyre_workers.opening import open_claims

    record = builds.find(cache, name)
    if record.status != "running":
        raise UsageError(f"the build {record.id} has ended ({record.status}), so there is nothing to cancel")
    claims = open_claims(broker, cache)
    claims.begin(cancel_token(record.id), CLAIM_SECONDS, detached=True)
    driven = is_driven(claims, record.id)
    if not driven:
        builds.keep(cache, replace(record, status="cancelled", error="cancelled while nobody drove it"))
    return {"build": record.id, "status": "cancelled", "driven": driven}
