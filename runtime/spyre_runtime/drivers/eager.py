"""Interprets fragments, operator by operator: slow, needs no artifact, and is what everything else is compared with."""

from __future__ import annotations

import operator
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from spyre_cache.errors import BlobNotFoundError
from spyre_cache.objects.fragment import TensorSpec
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
    _lay_out(module, fragment)

    def call(inputs: Sequence[Any]) -> list[Any]:
        try:
            with torch.no_grad():
                return list(module(*inputs))
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            line = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise ArtifactError(f"a fragment failed while it was interpreted: {line}") from error

    return call


def _lay_out(module: torch.fx.GraphModule, fragment: Fragment) -> None:
    """Gives results the strides that the fragment records.

    Torch's kernels do not always lay a result out as their description says (batch norm of a transposed tensor), and
    the views that follow were chosen by the description.
    """
    for node in list(module.graph.nodes):
        if "is_record" not in node.meta or _aliases(node.target):
            continue
        record = fragment.graph.nodes[node.meta["index"]]
        if record.pack == "single":
            parts = [(node, record.results[0])]
        else:
            parts = [(user, record.results[user.args[1]]) for user in node.users if user.target is operator.getitem]
        for part, spec in parts:
            if not isinstance(spec, TensorSpec) or any(isinstance(step, str) for step in spec.stride):
                continue
            with module.graph.inserting_after(part):
                laid = module.graph.call_function(_laid, (part, tuple(spec.stride)))
            part.replace_all_uses_with(laid, delete_user_cb=lambda user, laid=laid: user is not laid)
    module.recompile()


def _aliases(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _laid(value: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.stride() == stride or value.numel() == 0:
        return value
    if all(a == b or size == 1 for a, b, size in zip(value.stride(), stride, value.shape, strict=True)):
        return value
    return torch.empty_strided(value.shape, stride, dtype=value.dtype).copy_(value)
