"""Operations of `ktdp` in a walk: views, tiles, and what moves them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from spyre_runtime.ktir.affine import evaluate
from spyre_runtime.ktir.compute import dtype_of, shape_of
from spyre_runtime.ktir.machine import ITEM_BYTES
from spyre_runtime.ktir.values import Data, Index, Number, Scattered, Tile, View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdsl.ir import Operation

    from spyre_runtime.ktir import dialect
    from spyre_runtime.ktir.walk import Frame, Walk


def view(walk: Walk, op: dialect.ConstructMemoryViewOp, frame: Frame) -> None:
    """ktdp.construct_memory_view."""
    offset = frame.get(op.offset)
    base = walk.number(op.offset, op, frame)
    assert isinstance(offset, Index)
    dtype = dtype_of(op.result.type)
    buffer = offset.buffer
    if buffer is None:
        buffer = _by_address(walk, int(np.min(base)) * ITEM_BYTES.get(dtype, 1))
    if buffer is None:
        raise walk.stop("view", op, f"no buffer begins at or contains element {int(np.min(base))}")
    owner = walk.kernel.buffers[buffer]
    if owner.dtype != dtype:
        raise walk.stop("dtype", op, f"{owner.name!r} is of {owner.dtype}, and the view of {dtype}")
    base = base - (owner.address or 0) // owner.item_bytes
    sizes = tuple(int(size) for size in op.static_sizes.get_values())
    strides = tuple(int(stride) for stride in op.static_strides.get_values())
    frame.values[op.result] = walk.memory.view(op, View(buffer, base, sizes, strides, dtype))


def _by_address(walk: Walk, byte: int) -> int | None:
    for number, buffer in enumerate(walk.kernel.buffers):
        if buffer.address is not None and buffer.address <= byte < buffer.address + buffer.bytes:
            return number
    return None


def tile(walk: Walk, op: dialect.ConstructAccessTileOp, frame: Frame) -> None:
    """ktdp.construct_access_tile."""
    view = frame.get(op.base)
    assert isinstance(view, View)
    values: list[Any] = [walk.number(index, op, frame) for index in op.indices]
    try:
        starts: list[Any] = [evaluate(result, values) for result in op.base_map.data.results]
    except ZeroDivisionError as error:
        raise walk.stop("set", op, str(error)) from None
    frame.values[op.result] = walk.memory.tile(op, view, starts, op.result.type.sizes)


def indirect(walk: Walk, op: dialect.ConstructIndirectAccessTileOp, frame: Frame) -> None:
    """ktdp.construct_indirect_access_tile."""
    view = frame.get(op.base)
    assert isinstance(view, View)
    sizes = op.result.type.sizes
    captured: list[Any] = [walk.number(value, op, frame) for value in op.captured_variables]
    leading = any(isinstance(value, np.ndarray) for value in [*captured, view.base])
    lead = frame.cores.size if leading else 1
    dims = [_column(value, len(sizes)) for value in captured]
    for axis, size in enumerate(sizes):
        shape = [1] * (len(sizes) + 1)
        shape[axis + 1] = size
        dims.append(torch.arange(size).view(shape))
    memrefs, known, read = iter(op.indirect_memrefs), True, 0
    total = torch.as_tensor(_column(view.base, len(sizes)))
    for dim, (kind, attribute) in enumerate(
        zip(op.per_dim_subscript_kinds.data, op.per_dim_subscript_maps.data, strict=True)
    ):
        try:
            coords: list[Any] = [evaluate(result, dims) for result in attribute.data.results]
        except ZeroDivisionError as error:
            raise walk.stop("set", op, str(error)) from None
        place: Any = coords[0]
        if kind.value.data:
            source = frame.get(next(memrefs))
            assert isinstance(source, View)
            place, count = _read_indices(walk, op, source, coords, len(sizes))
            read += count
            if place is None:
                known = False
                continue
        _within(walk, op, place, view.sizes[dim], "gather" if kind.value.data else "tile")
        total = total + torch.as_tensor(place) * view.strides[dim]
    offsets = total.expand(lead if total.shape[0] == 1 else total.shape[0], *sizes) if known else None
    frame.values[op.result] = Scattered(view, sizes, offsets, read)


def _read_indices(
    walk: Walk, op: Operation, source: View, coords: Sequence[Any], rank: int
) -> tuple[torch.Tensor | None, int]:
    """Coordinates that lie in a view, and how many bytes they have."""
    offsets = torch.as_tensor(_column(source.base, rank))
    for dim, coord in enumerate(coords):
        _within(walk, op, coord, source.sizes[dim], "tile")
        offsets = offsets + torch.as_tensor(coord) * source.strides[dim]
    count = (offsets.numel() // offsets.shape[0]) * ITEM_BYTES.get(source.dtype, 4)
    if walk.memory.contents is None:
        return None, count
    return walk.memory.contents[source.buffer][offsets.reshape(-1)].view(offsets.shape).to(torch.int64), count


def _within(walk: Walk, op: Operation, place: Any, size: int, rule: str) -> None:
    values = torch.as_tensor(place)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= size:
        raise walk.stop(rule, op, f"a view of {size} coordinates is indexed from {low} to {high}")


def load(walk: Walk, op: dialect.LoadOp, frame: Frame) -> None:
    """ktdp.load."""
    tile = frame.get(op.access_tile)
    dtype, shape = dtype_of(op.result.type), shape_of(op.result.type)
    if isinstance(tile, Scattered):
        walk.meter.move(frame.cores, tile.index_bytes)
        found = walk.memory.gather(op, tile, frame.cores)
    else:
        assert isinstance(tile, Tile)
        found = walk.memory.load(op, tile, frame.cores)
    walk.meter.move(frame.cores, math.prod(shape) * ITEM_BYTES.get(dtype, 1))
    frame.values[op.result] = Data(dtype, shape, found)


def store(walk: Walk, op: dialect.StoreOp, frame: Frame) -> None:
    """ktdp.store."""
    tile, data = frame.get(op.access_tile), frame.get(op.data_tile)
    assert isinstance(data, Data)
    walk.meter.move(frame.cores, math.prod(data.shape) * ITEM_BYTES.get(data.dtype, 1))
    if isinstance(tile, Scattered):
        walk.memory.scatter(op, data, tile, frame.cores)
    else:
        assert isinstance(tile, Tile)
        walk.memory.store(op, data, tile, frame.cores)


def tile_id(walk: Walk, op: dialect.GetComputeTileIdOp, frame: Frame) -> None:
    """ktdp.get_compute_tile_id: the last dim of the grid runs fastest."""
    rest = frame.cores.astype(np.int64)
    for value, size in reversed(list(zip(op.ids, walk.kernel.grid, strict=False))):
        frame.values[value] = Index(rest % size)
        rest = rest // size


def _column(value: Number, rank: int) -> Any:
    """A number, or numbers a core as a tensor that broadcasts along a tile."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()).view(-1, *(1 for _ in range(rank)))
    return torch.as_tensor(value).view(1, *(1 for _ in range(rank)))


HANDLERS: Final[dict[str, Callable[[Walk, Any, Frame], None]]] = {
    "ktdp.get_compute_tile_id": tile_id,
    "ktdp.construct_memory_view": view,
    "ktdp.construct_access_tile": tile,
    "ktdp.construct_indirect_access_tile": indirect,
    "ktdp.load": load,
    "ktdp.store": store,
}
