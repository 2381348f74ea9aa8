"""What came of a submit: the object that `submit` returns, and how it counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spyre_build.frontend.model import Model
    from spyre_build.plan import Plan, PlannedAction
    from spyre_cache.digest import Digest
    from spyre_cache.objects.action import ActionResult

Status = Literal["ok", "partial", "failed"]


@dataclass
class Build:
    """What came of a submit.

    Attributes:
        id: name of the build in its cache.
        manifest: digest of the precompiled model; None when nothing could be published.
        status: `partial` when some fragments failed, `failed` when all did or verification did.
        actions: counters over distinct (fragment, target).
        seconds: wall-clock time by phase.
        peak_rss_bytes: `plan` of this process until dispatch, `compile` of the largest compiling process.
    """

    id: str
    name: str
    cache: str
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

    def count(self, model: Model, plan: Plan, results: Mapping[str, ActionResult]) -> None:
        """Fills in counters over distinct (fragment, target), entries, failures and status."""
        failed = [planned for planned in plan.actions if results[planned.key].status == "failed"]
        hits = [planned for planned in plan.actions if planned.key in plan.hits and planned not in failed]
        calls = sum(len(program.steps) for program in model.programs)
        self.actions = {
            "total": len(plan.actions),
            "hit": len(hits),
            "compiled": len(plan.actions) - len(hits) - len(failed),
            "waited": 0,
            "failed": len(failed),
            "deduplicated": calls - len(model.pool.fragments),
        }
        self.entries = [
            {
                "name": program.name + "".join(f"@{dim}={size}" for dim, size in program.bucket),
                "calls": len(program.steps),
                "unique": len({step.fragment for step in program.steps}),
            }
            for program in model.programs
        ]
        self.failures = [failure_words(planned, results[planned.key], model) for planned in failed]
        self.status = "ok" if not failed else "failed" if len(failed) == len(plan.actions) else "partial"


def failure_words(planned: PlannedAction, result: ActionResult, model: Model) -> dict[str, Any]:
    """A failed fragment in the user's words: operators with the lines of the model they come from."""
    failure = result.failure
    assert failure is not None  # a failed result says why
    origins = model.pool.origins[planned.fragment]
    nodes = []
    for index in failure.nodes:
        if 0 <= index < len(origins):
            origin = origins[index]
            place = " at " + origin.source if origin.source else ""
            where = f" ({origin.module})" if origin.module else ""
            nodes.append(f"{origin.op}{place}{where}")
    return {
        "fragment": str(planned.action.fragment),
        "target": planned.action.target.name,
        "kind": failure.kind,
        "error": failure.message,
        "nodes": nodes or list(failure.ops),
        "action": planned.key,
    }
