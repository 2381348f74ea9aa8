"""What runs artifacts: one interface, however the code came to be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from spyre_cache.digest import Digest
    from spyre_cache.objects.manifest import Artifact
    from spyre_cache.objects.target import Target

Call = Callable[[Sequence[Any]], list[Any]]
"""Takes a fragment's inputs in order (tensors, ints for symbolic sizes), gives its outputs; writes to state inputs."""


class Driver(ABC):
    """Loads fragments. Thread-safe; what it returns may be called from several threads at once.

    Attributes:
        name: what users type as `--device`.
        needs_artifacts: whether it runs compiled artifacts (otherwise fragments as they are).
    """

    name: ClassVar[str]
    needs_artifacts: ClassVar[bool] = True

    @abstractmethod
    def provides(self, target: Target) -> str | None:
        """None where this host runs artifacts of the target, else what it lacks, in words."""

    @abstractmethod
    def load(self, fragment: Digest, artifact: Artifact | None) -> Call:
        """Makes a fragment callable; `artifact` is None for drivers that need none.

        Raises:
            IncompatibleHostError: the host lacks what the artifact requires.
            ArtifactError: the artifact cannot be loaded.
            MissingPieceError: a file of the artifact, or the fragment, is not in the cache.
        """
