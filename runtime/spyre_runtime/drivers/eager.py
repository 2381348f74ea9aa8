"""Interprets fragments, operator by operator: slow, needs no artifact, and is what everything else is compared with."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from spyre_cache.errors import BlobNotFoundError
from spyre_runtime.drivers.base import Call, Driver
from spyre_runtime.errors import ArtifactError, MissingPieceError
from spyre_runtime.graph import decode_fragment, to_fx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre_cache.digest import Digest
    from spyre_cache.objects.fragment import Fragment
    from spyre_cache.objects.manifest import Artifact
    from spyre_cache.objects.target import Target
    from spyre_cache.stores.base import BlobStore


class EagerDriver(Driver):
    """Decodes each fragment once.

    Args:
        blobs: where fragments are.
        custom_ops: operators or namespaces allowed beyond ATen's.
    """

    name: ClassVar[str] = "eager"
    needs_artifacts: ClassVar[bool] = False

    def __init__(self, blobs: BlobStore, custom_ops: frozenset[str] = frozenset()) -> None:
        self._blobs = blobs
        self._custom_ops = custom_ops
        self._lock = threading.Lock()
        self._loaded: dict[str, Call] = {}

    def provides(self, target: Target) -> str | None:  # noqa: ARG002  it runs fragments, whatever they were built for
        """See `Driver.provides`: everything."""
        return None

    def load(self, fragment: Digest, artifact: Artifact | None) -> Call:  # noqa: ARG002  none is needed
        """See `Driver.load`: decodes the fragment."""
        with self._lock:
            call = self._loaded.get(fragment.hash)
            if call is None:
                try:
                    data = self._blobs.get(fragment)
                except BlobNotFoundError as error:
                    raise MissingPieceError(
                        f"fragment {fragment.short} is not in this cache ({error}): pull it, or build it again",
                        fragment=str(fragment),
                        target="eager",
                    ) from None
                call = self._loaded[fragment.hash] = interpret(decode_fragment(data), self._custom_ops)
        return call


def interpret(fragment: Fragment, custom_ops: frozenset[str] = frozenset()) -> Call:
    """A callable that runs a fragment's operators on real tensors.

    Raises:
        InvalidFragmentError: the fragment breaks a rule of the format.
        OperatorMissingError: an operator is not registered in this process.
    """
    module = to_fx(fragment, fake=False, custom_ops=custom_ops)

    def call(inputs: Sequence[Any]) -> list[Any]:
        try:
            with torch.no_grad():
                return list(module(*inputs))
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            line = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise ArtifactError(f"a fragment failed while it was interpreted: {line}") from error

    return call
