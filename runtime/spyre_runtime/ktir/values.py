"""What values are while a kernel is walked: each has a leading axis of cores, of length 1 where all cores agree."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spyre_runtime.ktir.kernel import Buffer

Number = int | np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Index:
    """An integer that is known: one number, or one a core.

    Attributes:
        number: the number or numbers; None where it is unknown (it was read, and nothing is read in a dry walk).
        buffer: the buffer it is an offset into, for arguments and what is computed of them.
    """

    number: Number | None
    buffer: int | None = None

    def pick(self, cores: np.ndarray[Any, Any]) -> Index:
        """The numbers of some of the cores."""
        if isinstance(self.number, np.ndarray):
            return Index(self.number[cores], self.buffer)
        return self


@dataclasses.dataclass(frozen=True)
class Data:
    """A tensor, or a scalar that is no known integer.

    Attributes:
        dtype: of the elements.
        shape: of one core's tensor.
        tensor: the elements, with the axis of cores; None in a dry walk.
        empty: nothing was put into it yet.
    """

    dtype: str
    shape: tuple[int, ...]
    tensor: torch.Tensor | None = None
    empty: bool = False

    def pick(self, cores: np.ndarray[Any, Any]) -> Data:
        """The tensors of some of the cores."""
        if self.tensor is None or self.tensor.shape[0] == 1:
            return self
        return dataclasses.replace(self, tensor=self.tensor[torch.from_numpy(cores)])


@dataclasses.dataclass(frozen=True)
class View:
    """A shape and strides laid over a buffer.

    Attributes:
        buffer: which.
        base: element offset in it.
        sizes: of the view.
        strides: in elements.
        dtype: of its elements.
    """

    buffer: int
    base: Number
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    def pick(self, cores: np.ndarray[Any, Any]) -> View:
        """The view of some of the cores."""
        return dataclasses.replace(self, base=self.base[cores]) if isinstance(self.base, np.ndarray) else self


@dataclasses.dataclass(frozen=True)
class Tile:
    """A box of a view.

    Attributes:
        view: the view.
        base: element offset of its first element in the buffer.
        sizes: of the box.
        ok: it lies within its view.
    """

    view: View
    base: Number
    sizes: tuple[int, ...]
    ok: bool = True

    def pick(self, cores: np.ndarray[Any, Any]) -> Tile:
        """The tile of some of the cores."""
        base = self.base[cores] if isinstance(self.base, np.ndarray) else self.base
        return dataclasses.replace(self, view=self.view.pick(cores), base=base)


@dataclasses.dataclass(frozen=True)
class Scattered:
    """Coordinates of a view of which some are read.

    Attributes:
        view: the view.
        sizes: of the tile.
        offsets: element offset of each in the buffer, with the axis of cores; None in a dry walk.
        index_bytes: how many bytes were read to know them.
    """

    view: View
    sizes: tuple[int, ...]
    offsets: torch.Tensor | None
    index_bytes: int

    def pick(self, cores: np.ndarray[Any, Any]) -> Scattered:
        """The coordinates of some of the cores."""
        if self.offsets is None or self.offsets.shape[0] == 1:
            return self
        return dataclasses.replace(self, offsets=self.offsets[torch.from_numpy(cores)])


Value = Index | Data | View | Tile | Scattered


def per_core(number: Number, cores: int) -> np.ndarray[Any, Any]:
    """The number of each core."""
    return np.broadcast_to(np.asarray(number, dtype=np.int64), (cores,))


def same_everywhere(number: Number) -> int | None:
    """The number where all cores agree, else None."""
    if not isinstance(number, np.ndarray):
        return int(number)
    return int(number[0]) if number.size and bool((number == number[0]).all()) else None


def step_of(bases: np.ndarray[Any, Any]) -> int | None:
    """The distance between consecutive cores' offsets where it is one and not negative."""
    if bases.size < 2:
        return 0
    steps = np.diff(bases)
    return int(steps[0]) if steps[0] >= 0 and bool((steps == steps[0]).all()) else None


def injective(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether distinct coordinates surely lie at distinct places."""
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size > 1):
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last, both counted."""
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def item(buffer: Buffer) -> int:
    """Bytes of an element."""
    return max(1, buffer.item_bytes)
