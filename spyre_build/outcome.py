"""What came of a submit: the object that `submit` returns, and how it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spyre_cache.digest import Digest
    from spyre_cache.objects.plan import PlanRecord

Status = Literal["running", "ok", "partial", "failed"]


@dataclass
class Build:
    """What came of a submit.

    Attributes:
        id: name of the build in its cache.
        manifest: digest of the precompiled model; None when nothing could be published.
        status: `partial` when some fragments failed, `failed` when all did or verification did; `running` for one that
            was detached.
        actions: counters over distinct (fragment, target).
        seconds: wall-clock time by phase.
        peak_rss_bytes: `plan` of this process until dispatch, `compile` of the largest compiling process.
    """

    id: str
    name: str
    cache: str = field(repr=False)  # its URL may hold a password
    manifest: Digest | None = None
    status: Status = "failed"
    entries: list[dict[str, Any]] = field(default_factory=list)
    actions: dict[str, int] = field(default_factory=dict)
    peak_rss_bytes: dict[str, int] = field(default_factory=lambda: {"plan": 0, "compile": 0})
    seconds: dict[str, float] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The fields of `submit --json`."""
        return {
            "build": self.id,
            "manifest": None if self.manifest is None else str(self.manifest),
            "name": self.name,
            "status": self.status,
            "entries": self.entries,
            "actions": self.actions,
            "peak_rss_bytes": self.peak_rss_bytes,
            "seconds": self.seconds,
            "failures": self.failures,
            "notes": self.notes,
        }

    def count(self, plan: PlanRecord, outcomes: Mapping[str, str]) -> None:
        """Fills in counters over distinct (fragment, target), entries and status; failures are the caller's to add.

        Args:
            plan: what was to be done.
            outcomes: `hit`, `compiled`, `waited` or `failed`, by the key of every action of the plan.
        """
        tally = Counter(outcomes.values())
        calls = sum(len(program.steps) for program in plan.programs)
        self.actions = {
            "total": len(outcomes),
            "hit": tally["hit"],
            "compiled": tally["compiled"],
            "waited": tally["waited"],
            "failed": tally["failed"],
            "deduplicated": calls - len(plan.fragments),
        }
        self.entries = [
            {
                "name": program.name + "".join(f"@{dim}={size}" for dim, size in program.bucket),
                "calls": len(program.steps),
                "unique": len({step.fragment for step in program.steps}),
            }
            for program in plan.programs
        ]
        self.status = "ok" if not tally["failed"] else "failed" if tally["failed"] == len(outcomes) else "partial"
