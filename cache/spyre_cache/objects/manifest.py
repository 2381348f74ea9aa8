"""The precompiled model: one digest names everything, the same for everyone who builds the same thing."""

from __future__ import annotations

from typing import Literal

from spyre_cache.codec import Record, encode
from spyre_cache.digest import Digest
from spyre_cache.objects.action import OutputFile, Requires
from spyre_cache.objects.program import Program, WeightEntry


class Artifact(Record, frozen=True, kw_only=True):
    """What one fragment became for one target. `fragment` indexes `Manifest.fragments`; `action` is the key."""

    fragment: int
    target: str
    action: str
    outputs: tuple[OutputFile, ...]
    requires: Requires


class Manifest(Record, frozen=True, kw_only=True):
    """Deterministic: no time, host, user or timing; what is said about it lives in statements."""

    schema: Literal["manifest/1"] = "manifest/1"
    programs: tuple[Program, ...]
    fragments: tuple[Digest, ...]
    artifacts: tuple[Artifact, ...]
    weights: tuple[WeightEntry, ...]
    weight_mode: Literal["store", "external", "none"]
    targets: tuple[str, ...]
    custom_ops: tuple[str, ...] = ()
    partition: str
    torch: str

    def encoded(self) -> bytes:
        """Canonical bytes; what is hashed."""
        return encode(self)

    def digest(self) -> Digest:
        """Identity of the precompiled model."""
        return Digest.of(self.encoded())
