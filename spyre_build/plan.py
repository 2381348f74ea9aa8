"""Programs and targets to actions: what there is to be compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spyre_build.errors import TargetError
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.action import Action
from spyre_cache.objects.target import TARGETS, Target, Toolchain, parse_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre_cache.digest import Digest
    from spyre_cache.objects.plan import PlanRecord


@dataclass(frozen=True)
class PlannedAction:
    """One distinct (fragment, target)."""

    fragment: int
    action: Action
    key: str


def choose_targets(names: Sequence[str] | None, *, here: bool = True) -> tuple[Target, ...]:
    """Targets by name, each once; by default the highest level that this host provides.

    Args:
        names: what the user asked for.
        here: whether this machine is to build for them; else workers elsewhere are.

    Raises:
        TargetError: a name is unknown, or this machine cannot build for it.
    """
    from spyre_workers.capability import cannot_build

    if not names:
        names = [default_target()]
    chosen: dict[str, Target] = {}
    for name in names:
        try:
            target = parse_target(name)
        except InvalidRecordError as error:
            raise TargetError(str(error), hint=f"targets: {', '.join(TARGETS)}") from error
        reason = cannot_build(target) if here else None
        if reason:
            raise TargetError(f"this machine cannot build for {name}: {reason}")
        chosen[target.name] = target
    return tuple(chosen.values())


def default_target() -> str:
    """The highest CPU level that this host provides.

    Raises:
        TargetError: none fits; the message says what this machine is.
    """
    from spyre_runtime.host import cpu_features, machine

    provided = cpu_features()
    fitting = [
        target.name
        for target in TARGETS.values()
        if target.kind == "cpu" and target.arch == machine() and provided.issuperset(target.features)
    ]
    if not fitting:
        raise TargetError(
            f"no CPU target fits this machine ({machine()})", hint=f"name one with --target: {', '.join(TARGETS)}"
        )
    return fitting[-1]


def make_plan(
    fragments: Sequence[Digest], targets: Sequence[Target], toolchain: Toolchain, salt: str = ""
) -> list[PlannedAction]:
    """The actions of a model, one for each distinct (fragment, target), fragments in order of first use; pure."""
    actions = []
    for index, digest in enumerate(fragments):
        for target in targets:
            action = Action(fragment=digest, target=target, toolchain=toolchain, salt=salt)
            actions.append(PlannedAction(index, action, action.key()))
    return actions


def planned_of(plan: PlanRecord) -> list[PlannedAction]:
    """The actions of a stored plan."""
    return make_plan(plan.fragments, plan.targets, plan.toolchain, plan.salt)
