"""Everything a build needs after capture: with it any machine, with neither torch nor the model, ends the build."""

from __future__ import annotations

import re
from typing import Literal

from spyre_cache.codec import Record
from spyre_cache.digest import Digest
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.program import Program, WeightEntry


class PlanAction(Record, frozen=True, kw_only=True):
    """One distinct (fragment, target). `fragment` indexes `PlanRecord.fragments`; `action` is the key."""

    fragment: int
    target: str
    action: str


class PlanRecord(Record, frozen=True, kw_only=True):
    """A plan as a blob. Fragments and the actions' documents are blobs of the same cache.

    Attributes:
        name: the model's name, for people.
        spec: what was asked to be built, as typed.
        release: name and version to release the result under; an empty version for the next whole number.
        golden: the verification record (golden vectors) to attach to the manifest and to replay, when there is one.
        verified: whether a release needs the golden vectors replayed where a host can.
        notes: what a person should know, one line each.
    """

    schema: Literal["plan/1"] = "plan/1"
    name: str
    spec: str = ""
    programs: tuple[Program, ...]
    fragments: tuple[Digest, ...]
    actions: tuple[PlanAction, ...]
    weights: tuple[WeightEntry, ...]
    weight_mode: Literal["store", "external", "none"]
    targets: tuple[str, ...]
    custom_ops: tuple[str, ...] = ()
    partition: str
    torch: str
    release: tuple[str, str] | None = None
    golden: Digest | None = None
    verified: bool = True
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses a plan that contradicts itself; whether its programs fit its fragments shows when they are loaded.

        Raises:
            InvalidRecordError: it does.
        """
        count = len(self.fragments)
        called = (step.fragment for program in self.programs for step in program.steps)
        stray = next((n for n in (*called, *(item.fragment for item in self.actions)) if not 0 <= n < count), None)
        if stray is not None:
            raise InvalidRecordError(f"a plan is about its own {count} fragments, and there is no number {stray}")
        for item in self.actions:
            if not _KEY.fullmatch(item.action) or item.target not in self.targets:
                raise InvalidRecordError(
                    "a plan's actions have keys of 64 lowercase hex digits and are for its targets, but "
                    f"{item.action[:80]!r} for {item.target[:80]!r} came"
                )


_KEY = re.compile(r"[0-9a-f]{64}")
