"""Everything a build needs after capture: with it any machine, with neither torch nor the model, ends the build."""

from __future__ import annotations

from typing import Literal

from spyre_cache.codec import Record
from spyre_cache.digest import Digest
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.program import Program, WeightEntry
from spyre_cache.objects.target import TARGETS, Target, Toolchain


class PlanRecord(Record, frozen=True, kw_only=True):
    """A plan as a blob. Fragments are blobs of the same cache.

    Its actions are not listed: they follow from fragments, targets, toolchain and salt, so that no plan can have the
    code of one fragment under the name of another.

    Attributes:
        name: the model's name, for people.
        spec: what was asked to be built, as typed.
        targets: each once, in the order of the build.
        toolchain: what compiles.
        salt: keeps a tenant's keys apart.
        release: name and version to release the result under; an empty version for the next whole number.
        golden: the verification record (golden vectors) to attach to the manifest and to replay, when there is one.
            Where the weights are stored there must be one, or nothing is released.
        notes: what a person should know, one line each.
    """

    schema: Literal["plan/1"] = "plan/1"
    name: str
    spec: str = ""
    programs: tuple[Program, ...]
    fragments: tuple[Digest, ...]
    targets: tuple[Target, ...]
    toolchain: Toolchain
    salt: str = ""
    weights: tuple[WeightEntry, ...]
    weight_mode: Literal["store", "external", "none"]
    custom_ops: tuple[str, ...] = ()
    partition: str
    torch: str
    release: tuple[str, str] | None = None
    golden: Digest | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses a plan that contradicts itself.

        Raises:
            InvalidRecordError: it does.
        """
        count = len(self.fragments)
        if len(set(self.fragments)) != count or len({target.name for target in self.targets}) != len(self.targets):
            raise InvalidRecordError("a plan names each of its fragments and targets once, and this one does not")
        unknown = next((target.name for target in self.targets if TARGETS.get(target.name) != target), None)
        if unknown is not None or not self.targets:
            raise InvalidRecordError(
                f"a plan is for targets that this version knows ({', '.join(TARGETS)}), not {(unknown or '')[:80]!r}"
            )
        called = {step.fragment for program in self.programs for step in program.steps}
        if not called <= set(range(count)):
            raise InvalidRecordError(f"the programs of a plan call its {count} fragments and no others")
