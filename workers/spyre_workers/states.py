"""What may become of a claim: pure functions over one table of legal transitions; no I/O and no clock.

Whoever wants something reads a claim with the tokens that live, asks one of the verbs here, and swaps what it gives in
(`spyre_workers.claiming`). A verb answers with a `Move` or with a `Refusal` that says why, in a sentence.

A claim is seen through its tokens: `queued` whose build has died is `orphaned`; `running` whose run has died has
`fallen`, unless its hedge lives, which then is the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from spyre_cache.claims import Claim, Crash

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

MAX_CRASHES: Final = 3
"""Runs whose compiling process died under the eyes of its worker, until an action is quarantined."""
MAX_FRUITLESS: Final = 6
"""Runs without a result of either kind: machines go away for reasons of their own, so silence accuses by half."""
MAX_WHY: Final = 300
HEDGE_FLOOR_SECONDS: Final = 30.0

Phase = Literal["absent", "queued", "orphaned", "running", "hedged", "fallen", "crashed", "quarantined"]
Verb = Literal["queue", "start", "hedge", "resume", "finish", "crash", "release", "cancel", "clear"]
Why = Literal["busy", "queued", "quarantined", "lost", "early", "illegal"]

LEGAL: Final[dict[tuple[Phase, Verb], tuple[Phase, ...]]] = {
    # A build wants a result, and means to have it made.
    ("absent", "queue"): ("queued",),
    ("queued", "queue"): ("queued",),  # its own, once more
    ("orphaned", "queue"): ("queued",),
    ("fallen", "queue"): ("queued",),
    ("crashed", "queue"): ("queued",),
    # A worker begins to compile. `absent`: the claims were lost, or the build has given up while the task waited.
    ("absent", "start"): ("running",),
    ("queued", "start"): ("running",),
    ("orphaned", "start"): ("running",),
    ("fallen", "start"): ("running", "quarantined"),
    ("crashed", "start"): ("running",),
    # A second run beside one that is overdue.
    ("running", "hedge"): ("hedged",),
    # A run whose token lapsed while no other run took its place (a frozen machine, claims lost with their Redis).
    ("absent", "resume"): ("running",),
    ("queued", "resume"): ("running",),
    ("orphaned", "resume"): ("running",),
    ("crashed", "resume"): ("running",),
    ("fallen", "resume"): ("running",),
    ("running", "resume"): ("running", "hedged"),
    # A run ends: with a result, with its process dead, or without fault.
    ("running", "finish"): ("absent",),
    ("hedged", "finish"): ("absent",),
    ("running", "crash"): ("crashed", "quarantined"),
    ("hedged", "crash"): ("running",),
    ("running", "release"): ("absent", "crashed"),
    ("hedged", "release"): ("running",),
    ("queued", "release"): ("absent", "crashed"),
    # The same by one whose token has lapsed, as long as nobody took its place.
    ("fallen", "finish"): ("absent",),
    ("fallen", "crash"): ("crashed", "quarantined"),
    ("fallen", "release"): ("absent", "crashed"),
    ("orphaned", "release"): ("absent", "crashed"),
    # A build no longer wants it.
    ("queued", "cancel"): ("absent", "crashed"),
    ("orphaned", "cancel"): ("absent", "crashed"),
    # A result is there after all: what is left of dead runs and builds goes.
    ("orphaned", "clear"): ("absent",),
    ("fallen", "clear"): ("absent",),
    ("crashed", "clear"): ("absent",),
    ("quarantined", "clear"): ("absent",),
}


class Move(NamedTuple):
    """What shall be there instead; None for no claim."""

    new: Claim | None


class Refusal(NamedTuple):
    """Why nothing may be done: `busy` (another run lives), `queued` (another build sees to it), `quarantined`, `lost`
    (the run was replaced), `early` (no hedge yet), `illegal`.
    """

    why: Why
    text: str


Answer = Move | Refusal


def phase(claim: Claim | None, alive: Collection[str]) -> Phase:
    """A claim as it is to be seen, given the tokens that live."""
    if claim is None:
        return "absent"
    if claim.state == "queued":
        return "queued" if claim.owner in alive else "orphaned"
    if claim.state == "running":
        living = (claim.owner in alive) + (bool(claim.hedge) and claim.hedge in alive)
        return ("fallen", "running", "hedged")[living]
    return claim.state


def queue(claim: Claim | None, alive: Collection[str], *, key: str, token: str, build: str, now: float) -> Answer:
    """A build sees to an action: the claim is its own until a run begins."""
    before = phase(claim, alive)
    claim = _settled(claim, alive)
    if claim is not None and claim.state == "quarantined":
        return _quarantined(claim)
    if before == "queued" and claim is not None and claim.owner != token:
        return Refusal("queued", f"build {claim.build} has this action queued")
    if before == "queued":
        return Move(claim)
    if (before, "queue") not in LEGAL:
        return _busy(claim)
    base = claim or Claim(action=key, state="queued", owner=token, build=build)
    return Move(_with(base, state="queued", owner=token, build=build, worker="", hedge="", since=now))


def start(
    claim: Claim | None, alive: Collection[str], *, key: str, token: str, build: str, worker: str, now: float
) -> Answer:
    """A worker begins a run. A `Move` to `quarantined` means that it must not: the crash just found was the last."""
    before = phase(claim, alive)
    claim = _settled(claim, alive)
    if claim is not None and claim.state == "quarantined":
        return Move(claim) if before == "fallen" else _quarantined(claim)
    if (before, "start") not in LEGAL:
        return _busy(claim)
    # On whose behalf: the living build that has it queued, else whoever sent this task.
    behalf = claim.build if claim is not None and before == "queued" else build
    base = claim or Claim(action=key, state="running", owner=token, build=build)
    return Move(
        _with(
            base, state="running", owner=token, build=behalf, worker=worker, hedge="", starts=base.starts + 1, since=now
        )
    )


def hedge(claim: Claim | None, alive: Collection[str], *, token: str, now: float, age: float) -> Answer:
    """A worker begins a second run beside one that has lasted longer than `age` seconds."""
    before = phase(claim, alive)
    settled = _settled(claim, alive)
    if before == "hedged":
        return _busy(settled)
    if settled is None or (before, "hedge") not in LEGAL:
        return _illegal(before, "hedge")
    if now - settled.since < age:
        return Refusal("early", f"it has run for {now - settled.since:.0f} s; a second run may begin after {age:.0f} s")
    return Move(_with(settled, hedge=token, starts=settled.starts + 1))


def resume(
    claim: Claim | None, alive: Collection[str], *, key: str, old: str, token: str, build: str, worker: str, now: float
) -> Answer:
    """A run whose token has lapsed goes on under a new one, unless another run took its place.

    What was queued meanwhile it takes over, on behalf of that build: the task that comes for it finds this run.
    """
    before = phase(claim, alive)
    if claim is None:
        return Move(Claim(action=key, state="running", owner=token, build=build, worker=worker, starts=1, since=now))
    if claim.state in {"queued", "crashed"}:
        behalf = claim.build if before == "queued" else build
        return Move(_with(claim, state="running", owner=token, build=behalf, worker=worker, since=now))
    if claim.state != "running" or old not in (claim.owner, claim.hedge) or (before, "resume") not in LEGAL:
        return _lost(claim)
    return Move(_with(claim, owner=token) if claim.owner == old else _with(claim, hedge=token))


def finish(claim: Claim | None, alive: Collection[str], *, token: str) -> Answer:
    """A run has a result, which is stored: the claim has served. Of a hedged pair the first to end ends it."""
    return Move(None) if _runs(claim, token) else _lost(claim) if claim else _illegal(phase(claim, alive), "finish")


def crash(claim: Claim | None, alive: Collection[str], *, token: str, worker: str, why: str, now: float) -> Answer:
    """A run ended with nothing; the third time quarantines the action."""
    if claim is None or not _runs(claim, token):
        return _lost(claim)
    left = _without(claim, alive, token)
    crashes = (*claim.crashes, Crash(worker=worker, why=_short(why)))
    if left is not None:
        return Move(_with(left, crashes=crashes))
    return Move(_ended(claim, crashes, now))


def release(claim: Claim | None, alive: Collection[str], *, token: str, now: float) -> Answer:
    """A run, or a build, lets go without a result and without fault; earlier crashes stay remembered."""
    if claim is None:
        return _lost(claim)
    if claim.state == "queued" and claim.owner == token:
        return Move(_ended(claim, claim.crashes, now) if claim.crashes else None)
    if not _runs(claim, token):
        return _lost(claim)
    left = _without(claim, alive, token)
    if left is not None:
        return Move(left)
    return Move(_ended(claim, claim.crashes, now) if claim.crashes else None)


def cancel(claim: Claim | None, alive: Collection[str], *, token: str, now: float) -> Answer:
    """A build no longer wants what it has queued. A run goes on: others may wait for it."""
    if claim is not None and claim.state == "queued" and claim.owner == token:
        return release(claim, alive, token=token, now=now)
    return _illegal(phase(claim, alive), "cancel")


def clear(claim: Claim | None, alive: Collection[str]) -> Answer:
    """There is a result after all: removes what the dead left, and nothing of the living."""
    before = phase(claim, alive)
    return Move(None) if (before, "clear") in LEGAL else _illegal(before, "clear")


def hedge_age(seconds: Sequence[float]) -> float:
    """When a run is overdue, given how long others of its kind took: twice their 95th percentile, never below a floor.

    With fewer than five to go by, nothing is overdue.
    """
    if len(seconds) < 5:
        return float("inf")
    ordered = sorted(seconds)
    return max(HEDGE_FLOOR_SECONDS, 2 * ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))])


def accusation(claim: Claim) -> str:
    """Who met what with a quarantined action, in a sentence."""
    told = "; ".join(f"{crash.worker}: {crash.why}" for crash in claim.crashes[-MAX_FRUITLESS:])
    return f"quarantined after {len(claim.crashes)} runs that ended without a result ({told})"


def _settled(claim: Claim | None, alive: Collection[str]) -> Claim | None:
    """The claim with its dead runs turned into crashes; a living hedge takes the place of a dead run."""
    if claim is None or claim.state != "running":
        return claim
    crashes, runs = claim.crashes, [token for token in (claim.owner, claim.hedge) if token in alive and token]
    dead = [token for token in (claim.owner, claim.hedge) if token and token not in alive]
    for token in dead:
        who = claim.worker if token == claim.owner else "a second run"
        crashes = (*crashes, Crash(worker=who, why="fell silent", lost=True))
    if runs:
        return _with(claim, owner=runs[0], hedge=runs[1] if len(runs) > 1 else "", crashes=crashes) if dead else claim
    return _ended(claim, crashes, claim.since)


def _ended(claim: Claim, crashes: tuple[Crash, ...], now: float) -> Claim:
    seen = sum(not crash.lost for crash in crashes)
    state: Literal["quarantined", "crashed"] = (
        "quarantined" if seen >= MAX_CRASHES or len(crashes) >= MAX_FRUITLESS else "crashed"
    )
    return _with(claim, state=state, owner="", hedge="", crashes=crashes, since=now)


def _runs(claim: Claim | None, token: str) -> bool:
    return claim is not None and claim.state == "running" and token in (claim.owner, claim.hedge)


def _without(claim: Claim, alive: Collection[str], token: str) -> Claim | None:
    """The claim with one of its two runs gone; None when the other does not live."""
    other = claim.hedge if token == claim.owner else claim.owner
    return _with(claim, owner=other, hedge="") if other and other in alive else None


def _with(claim: Claim, **changes: object) -> Claim:
    return msgspec.structs.replace(claim, **changes)


def _short(text: str) -> str:
    return " ".join(text.split())[:MAX_WHY]


def _busy(claim: Claim | None) -> Refusal:
    worker = claim.worker if claim is not None else "another worker"
    return Refusal("busy", f"{worker} is at it")


def _quarantined(claim: Claim) -> Refusal:
    return Refusal("quarantined", accusation(claim))


def _lost(claim: Claim | None) -> Refusal:
    if claim is None:
        return Refusal("lost", "its claim is gone: another run ended first, or the claims were lost")
    return Refusal("lost", f"its claim is {claim.state} by {claim.worker or claim.build} now")


def _illegal(before: Phase, verb: Verb) -> Refusal:
    return Refusal("illegal", f"nothing that is {before} can {verb}")
