"""A caller's arguments and a model's results as trees with numbered tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spyre_build.errors import CaptureError
from spyre_cache.objects.program import Leaf, SymLeaf, Tree
from spyre_runtime import trees
from spyre_runtime.errors import SpyreRuntimeError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Leaves:
    """Collects the tensors of one or more values, in order, with their paths."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.paths: list[str] = []
        self.sizes: list[torch.SymInt] = []

    def tree(self, value: Any, path: str) -> Tree:
        """The tree of a value; its `Leaf` numbers index `tensors`.

        Raises:
            CaptureError: it holds something that is neither a tensor, a plain value nor a known container.
        """
        try:
            return trees.flatten(value, self._leaf, path=path)
        except SpyreRuntimeError as error:
            raise CaptureError(
                str(error),
                hint="pass and return tensors; for transformers, use_cache=False or a static cache in buffers",
            ) from error

    def _leaf(self, path: str, value: object) -> Tree:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            self.paths.append(path)
            return Leaf(v=len(self.tensors) - 1)
        if isinstance(value, torch.SymInt):
            self.sizes.append(value)
            return SymLeaf(
                expr=str(len(self.sizes) - 1)
            )  # its number; the expression is put in when symbols have names
        return trees.plain_leaf(path, value)


def flatten_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tree, Tree, Leaves]:
    """Trees of positional and keyword arguments; tensors are numbered through both."""
    leaves = Leaves()
    args_tree = leaves.tree(args, "args")
    kwargs_tree = leaves.tree(dict(kwargs), "kwargs")
    return args_tree, kwargs_tree, leaves


def rebuild_call(args: Tree, kwargs: Tree, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `flatten_call` with other tensors in the same places."""
    return trees.build(args, tensors), trees.build(kwargs, tensors)


def argument_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that an argument is expected with: the example's when it is dense, else row-major ones.

    An example that is broadcast or a slice of something larger would otherwise bind every later call to that accident.
    """
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return tuple(torch.empty(tensor.shape, device="meta").stride())
        expected *= size
    return tuple(tensor.stride()) if tensor.numel() else tuple(torch.empty(tensor.shape, device="meta").stride())
