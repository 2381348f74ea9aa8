"""Programs and targets to actions: what is to be compiled, and what the cache has already."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spyre_build.errors import TargetError
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.action import Action, ActionResult
from spyre_cache.objects.target import TARGETS, Target, Toolchain, parse_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest


@dataclass(frozen=True)
class PlannedAction:
    """One distinct (fragment, target)."""

    fragment: int
    action: Action
    key: str


@dataclass
class Plan:
    """What a build will do.

    Attributes:
        actions: every distinct (fragment, target), fragments in order of first use.
        hits: results the cache has, by key.
    """

    actions: list[PlannedAction]
    hits: dict[str, ActionResult] = field(default_factory=dict)

    @property
    def missing(self) -> list[PlannedAction]:
        """What is to be compiled."""
        return [planned for planned in self.actions if planned.key not in self.hits]


def choose_targets(names: Sequence[str] | None) -> tuple[Target, ...]:
    """Targets by name, each once; by default the highest level that this host provides.

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
        reason = cannot_build(target)
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


def make_plan(fragments: Sequence[Digest], targets: Sequence[Target], toolchain: Toolchain, salt: str = "") -> Plan:
    """The actions of a model; pure."""
    actions = []
    for index, digest in enumerate(fragments):
        for target in targets:
            action = Action(fragment=digest, target=target, toolchain=toolchain, salt=salt)
            actions.append(PlannedAction(index, action, action.key()))
    return Plan(actions)


def look_up(plan: Plan, cache: Cache) -> None:
    """Fills in what the cache has: successes whose outputs are all there, and failures still remembered."""
    for planned in plan.actions:
        result = cache.actions.get(planned.key)
        if result is not None:
            plan.hits[planned.key] = result
