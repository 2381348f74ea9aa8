"""What a build's summary, its plan and its manifest tell; any of them may be missing or unreadable."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from spyre_build.inspection import weight_bytes
from spyre_cache.codec import Record, decode
from spyre_cache.digest import Digest, parse_hash
from spyre_cache.errors import CacheError
from spyre_cache.objects.manifest import Manifest
from spyre_cache.objects.plan import PlanRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre_build.builds import BuildRecord
    from spyre_cache.cache import Cache
    from spyre_cache.objects.program import Program

R = TypeVar("R", bound=msgspec.Struct)

MAX_NOTES = 200
MAX_ENTRIES = 500
MAX_SECONDS = 1e10
MAX_BYTES = 1 << 60


def sane_seconds(value: float) -> float:
    """A length of time as somebody claims it, within what a build can take (an age); 0 for what is no number."""
    return min(value, MAX_SECONDS) if value > 0 else 0.0


def sane_bytes(value: int) -> int:
    """A number of bytes as somebody claims it, within what machines have."""
    return min(max(0, value), MAX_BYTES)


class Entry(Record, frozen=True, kw_only=True):
    """An entry point of the model: `calls` fragment calls, of `unique` fragments."""

    name: str
    calls: int
    unique: int


class Sizes(Record, frozen=True, kw_only=True):
    """Bytes of what the build is about; None where it is not known.

    Attributes:
        fragments: of distinct graphs.
        artifacts: (target, how many, bytes).
        weights: of all tensors, stored or not.
        plan: of the serialised plan.
    """

    fragments: int = 0
    artifacts: tuple[tuple[str, int, int], ...] = ()
    weights: int | None = None
    weight_count: int = 0
    weights_stored: int = 0
    weight_mode: str = ""
    plan: int | None = None


class FailureWords(msgspec.Struct, frozen=True, kw_only=True):
    """A failure as the summary tells it."""

    fragment: str = ""
    target: str = ""
    kind: str = ""
    error: str = ""
    nodes: list[str] = []
    action: str = ""


class _Summary(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[Entry] = []
    seconds: dict[str, float] = {}
    peak_rss_bytes: dict[str, int] = {}
    failures: list[FailureWords] = []
    notes: list[str] = []


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """See the module.

    Attributes:
        calls: how often each fragment is called, by hex hash; empty when the programs are not known.
        users: the entries that call it.
        seconds: by phase, and `total`.
        failed: failures by action key.
    """

    calls: dict[str, int]
    users: dict[str, tuple[str, ...]]
    entries: tuple[Entry, ...]
    sizes: Sizes
    seconds: tuple[tuple[str, float], ...]
    peak_rss_bytes: tuple[tuple[str, int], ...]
    failed: dict[str, FailureWords]
    notes: tuple[str, ...]


def facts_of(cache: Cache, record: BuildRecord) -> Facts:
    """What is known about a build beside its actions."""
    summary, notes = _summary(record.summary)
    plan: PlanRecord | Manifest | None = None
    if record.plan is not None:
        plan = _read(cache, record.plan, PlanRecord)
        if plan is None:
            notes.append("the plan is not in the cache any more: how often fragments are called may not be known")
    if plan is None and record.manifest:
        digest = _manifest_digest(cache, record.manifest)
        plan = None if digest is None else _read(cache, digest, Manifest)
        if plan is None:
            notes.append("the manifest is not in the cache any more: submitting the model again makes it again")
    programs, fragments = ((), ()) if plan is None else (plan.programs, plan.fragments)
    return Facts(
        calls=_calls(programs, fragments),
        users=_users(programs, fragments),
        entries=tuple(summary.entries[:MAX_ENTRIES]) or _entries(programs[:MAX_ENTRIES]),
        sizes=_sizes(record, plan),
        seconds=tuple((name, sane_seconds(value)) for name, value in _in_order(summary.seconds)),
        peak_rss_bytes=tuple(
            (name, sane_bytes(value)) for name, value in sorted(summary.peak_rss_bytes.items()) if value > 0
        ),
        failed={failure.action: failure for failure in summary.failures},
        notes=tuple(dict.fromkeys([*notes, *summary.notes, *(getattr(plan, "notes", ()) or ())]))[:MAX_NOTES],
    )


def _summary(data: dict[str, Any]) -> tuple[_Summary, list[str]]:
    try:
        return msgspec.convert(data, _Summary), []
    except msgspec.ValidationError as error:
        return _Summary(), [f"the build's summary is of another version, and is left out: {error}"]


_PHASES = ("import", "capture", "partition", "lookup", "compile", "verify", "publish")


def _in_order(seconds: dict[str, float]) -> list[tuple[str, float]]:
    known = {name: place for place, name in enumerate(_PHASES)}
    return sorted(seconds.items(), key=lambda item: (known.get(item[0], len(known)), item[0]))


def _read(cache: Cache, digest: Digest, kind: type[R]) -> R | None:
    try:
        return decode(cache.blobs.get(digest), kind)
    except CacheError:
        return None


def _manifest_digest(cache: Cache, printed: str) -> Digest | None:
    try:
        wanted = parse_hash(printed)
        return next((digest for digest in cache.refs.manifests() if digest.hash == wanted), None)
    except CacheError:
        return None


def _calls(programs: Sequence[Program], fragments: Sequence[Digest]) -> dict[str, int]:
    # A malformed program may point anywhere.
    counts = Counter(step.fragment for program in programs for step in program.steps)
    return {fragments[index].hash: count for index, count in counts.items() if 0 <= index < len(fragments)}


def _users(programs: Sequence[Program], fragments: Sequence[Digest]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for program in programs[:MAX_ENTRIES]:
        for index in {step.fragment for step in program.steps}:
            if 0 <= index < len(fragments):
                found.setdefault(fragments[index].hash, []).append(_name(program))
    return {key: tuple(names) for key, names in found.items()}


def _name(program: Program) -> str:
    return program.name + "".join(f"@{dim}={size}" for dim, size in program.bucket)


def _entries(programs: Sequence[Program]) -> tuple[Entry, ...]:
    return tuple(
        Entry(
            name=_name(program),
            calls=len(program.steps),
            unique=len({step.fragment for step in program.steps}),
        )
        for program in programs
    )


def _sizes(record: BuildRecord, plan: PlanRecord | Manifest | None) -> Sizes:
    fragments = {action.fragment.hash: action.fragment.size for action in record.actions}
    sizes = Sizes(fragments=sum(fragments.values()), plan=None if record.plan is None else record.plan.size)
    if plan is None:
        return sizes
    return msgspec.structs.replace(
        sizes,
        weights=sum(max(0, weight_bytes(entry)) for entry in plan.weights),
        weight_count=len(plan.weights),
        weights_stored=sum(entry.digest is not None for entry in plan.weights),
        weight_mode=plan.weight_mode,
    )
