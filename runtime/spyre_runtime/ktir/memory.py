"""Device memory while a kernel is walked: who wrote and who read each element, and what lies in it.

In a dry walk there is nothing in it, and only who touches what is followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from spyre_runtime.ktir.machine import ITEM_BYTES, SPAN_BYTES, STICK_BYTES
from spyre_runtime.ktir.values import (
    Data,
    Number,
    Scattered,
    Tile,
    View,
    extent,
    injective,
    item,
    per_core,
    same_everywhere,
    step_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdsl.ir import Operation

    from spyre_runtime.ktir.findings import Findings
    from spyre_runtime.ktir.kernel import Buffer

Cores = np.ndarray[Any, Any]
_MANY: Final = -1


class Memory:
    """The buffers of one walk.

    Args:
        buffers: of the kernel.
        cores: of its grid.
        findings: where broken rules go.
        contents: one-dimensional tensors in the emulator's number format; None for a dry walk.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        cores: int,
        findings: Findings,
        contents: Sequence[torch.Tensor] | None,
    ) -> None:
        self.buffers, self.findings, self.contents = buffers, findings, contents
        self._writer = {
            number: torch.zeros(buffer.elements, dtype=torch.int16)
            for number, buffer in enumerate(buffers)
            if buffer.role != "in"
        }
        self._reader = {
            number: torch.zeros(buffer.elements, dtype=torch.int16)
            for number, buffer in enumerate(buffers)
            if buffer.role == "inout"
        }
        self._unknown: set[int] = set()  # buffers that are stored to at places a dry walk does not know
        self._storing = np.zeros((len(buffers), cores), dtype=bool)
        self._next: list[tuple[int, int]] = []  # where one more core would have begun to store
        self._low = np.full((len(buffers), cores), np.iinfo(np.int64).max)
        self._high = np.full((len(buffers), cores), -1)

    # Views and tiles.

    def view(self, op: Operation, view: View) -> View:
        """Checks that a view lies within its buffer."""
        buffer = self.buffers[view.buffer]
        low = int(np.min(view.base))
        last = int(np.max(view.base)) + extent(view.sizes, view.strides)
        if low < 0 or last > buffer.elements or any(stride < 0 for stride in view.strides):
            self.findings.add(
                "view", op, f"elements {low} to {last - 1} of {buffer.name!r} are meant, which has {buffer.elements}"
            )
        return view

    def tile(self, op: Operation, view: View, starts: Sequence[Number], sizes: tuple[int, ...]) -> Tile:
        """A box of a view, checked to lie within it and to begin at a stick."""
        ok = True
        base: Number = view.base
        for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            low, high = int(np.min(start)), int(np.max(start))
            if low < 0 or high + size > view.sizes[dim]:
                ok = False
                self.findings.add(
                    "tile", op, f"dim {dim} has {view.sizes[dim]} coordinates, but {low} to {high + size - 1} are meant"
                )
            base = base + start * view.strides[dim]
        ok = ok and self._fits(view, base, sizes)
        if ok:
            self._sticks(op, view, base, sizes)
        return Tile(view, base, sizes, ok)

    def _fits(self, view: View, base: Number, sizes: tuple[int, ...]) -> bool:
        reach = extent(sizes, view.strides)
        return int(np.min(base)) >= 0 and int(np.max(base)) + reach <= self.buffers[view.buffer].elements

    def _sticks(self, op: Operation, view: View, base: Number, sizes: tuple[int, ...]) -> None:
        stick = STICK_BYTES // ITEM_BYTES[view.dtype]
        origin = (self.buffers[view.buffer].address or 0) // ITEM_BYTES[view.dtype]
        if bool(np.any((np.asarray(base) + origin) % stick)):
            bad = int(
                np.asarray(base).reshape(-1)[int(np.argmax((np.asarray(base).reshape(-1) + origin) % stick != 0))]
            )
            self.findings.add("stick", op, f"a tile begins at element {bad}, {bad % stick} past a stick of {stick}")
        for size, stride in zip(sizes, view.strides, strict=True):
            if size > 1 and stride != 1 and stride % stick:
                self.findings.add("stick", op, f"rows are {stride} elements apart, no whole number of sticks")

    # Moving.

    def load(self, op: Operation, tile: Tile, cores: Cores) -> torch.Tensor | None:
        """What lies in a tile, with the axis of cores; a view of memory where that is safe."""
        buffer = self.buffers[tile.view.buffer]
        if buffer.role == "out":
            self.findings.add("alias", op, f"{buffer.name!r} is an output, and is loaded from")
        if not tile.ok:
            return None
        self._touch(tile, cores)
        if tile.view.buffer in self._reader:
            self._read(tile, cores)
        if self.contents is None:
            return None
        memory, strides = self.contents[tile.view.buffer], tile.view.strides
        once = same_everywhere(tile.base)
        if once is not None:
            found = memory.as_strided((1, *tile.sizes), (0, *strides), once)
        else:
            bases = per_core(tile.base, cores.size)
            step = step_of(bases)
            if step is not None:
                found = memory.as_strided((cores.size, *tile.sizes), (step, *strides), int(bases[0]))
            else:
                return torch.stack([memory.as_strided(tile.sizes, strides, int(base)) for base in bases])
        return found.clone() if buffer.role != "in" else found

    def store(self, op: Operation, data: Data, tile: Tile, cores: Cores) -> None:
        """Puts tensors into a tile, and records who did."""
        buffer = self.buffers[tile.view.buffer]
        if buffer.role == "in":
            self.findings.add("alias", op, f"{buffer.name!r} is an input, and is stored to")
            return
        if not tile.ok:
            return
        self._touch(tile, cores)
        self._storing[tile.view.buffer, cores] = True
        bases = per_core(tile.base, cores.size)
        sizes, strides = (cores.size, *tile.sizes), (step_of(bases) or 0, *tile.view.strides)
        together = step_of(bases) is not None and injective(sizes, strides)
        ids = torch.from_numpy(cores.astype(np.int16) + 1)
        if together:
            self._next.append((tile.view.buffer, int(bases[-1]) + strides[0]))
            self._write(op, tile.view.buffer, ids, sizes, strides, int(bases[0]))
        elif not injective(tile.sizes, tile.view.strides):
            self.findings.add("overlap", op, f"the strides {list(tile.view.strides)} put elements on one another")
            return
        else:
            for number, base in enumerate(bases):
                self._write(op, tile.view.buffer, ids[number : number + 1], (1, *sizes[1:]), strides, int(base))
        if self.contents is None or data.tensor is None:
            return
        memory = self.contents[tile.view.buffer]
        if together:
            memory.as_strided(sizes, strides, int(bases[0])).copy_(data.tensor.expand(sizes))
        else:
            for number, base in enumerate(bases):
                source = data.tensor[number if data.tensor.shape[0] > 1 else 0]
                memory.as_strided(tile.sizes, tile.view.strides, int(base)).copy_(source)

    def _write(
        self,
        op: Operation,
        buffer: int,
        ids: torch.Tensor,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        base: int,
    ) -> None:
        places = self._writer[buffer].as_strided(sizes, strides, base)
        mine = ids.view(-1, *(1 for _ in sizes[1:]))
        self._collide(op, buffer, places, mine)
        places.copy_(mine.expand(sizes))

    def _collide(self, op: Operation, buffer: int, before: torch.Tensor, mine: torch.Tensor) -> None:
        if not bool(before.any()):
            return
        name = self.buffers[buffer].name
        if bool(((before != 0) & (before != mine)).any()):
            self.findings.add("race", op, f"two cores write one element of {name!r}")
        else:
            self.findings.add("overlap", op, f"a core writes an element of {name!r} again")

    def _read(self, tile: Tile, cores: Cores) -> None:
        for core, base in zip(cores, per_core(tile.base, cores.size), strict=True):
            places = self._reader[tile.view.buffer].as_strided(tile.sizes, tile.view.strides, int(base))
            mine = int(core) + 1
            places.copy_(torch.where((places == 0) | (places == mine), mine, _MANY))

    def _touch(self, tile: Tile, cores: Cores) -> None:
        number, reach = tile.view.buffer, extent(tile.sizes, tile.view.strides)
        bases = per_core(tile.base, cores.size)
        self._low[number, cores] = np.minimum(self._low[number, cores], bases)
        self._high[number, cores] = np.maximum(self._high[number, cores], bases + reach)

    # Places that are read.

    def gather(self, op: Operation, tile: Scattered, cores: Cores) -> torch.Tensor | None:
        """What lies at places that were read."""
        buffer = self.buffers[tile.view.buffer]
        if buffer.role == "out":
            self.findings.add("alias", op, f"{buffer.name!r} is an output, and is loaded from")
        elif buffer.role == "inout":
            # Which places is not known before the kernel runs: any may be one that another core writes.
            self._reader[tile.view.buffer][:] = _MANY if cores.size > 1 else int(cores[0]) + 1
        if self.contents is None or tile.offsets is None:
            return None
        rows = self.contents[tile.view.buffer]
        return rows[tile.offsets.reshape(-1)].view(tile.offsets.shape)

    def scatter(self, op: Operation, data: Data, tile: Scattered, cores: Cores) -> None:
        """Puts elements at places that were read."""
        number = tile.view.buffer
        buffer = self.buffers[number]
        if buffer.role == "in":
            self.findings.add("alias", op, f"{buffer.name!r} is an input, and is stored to")
            return
        self._storing[number, cores] = True
        if self.contents is None or tile.offsets is None or data.tensor is None:
            self._unknown.add(number)
            return
        for place, core in enumerate(cores):
            offsets = tile.offsets[place if tile.offsets.shape[0] > 1 else 0].reshape(-1)
            source = data.tensor[place if data.tensor.shape[0] > 1 else 0].reshape(-1)
            mine = torch.full((1,), int(core) + 1, dtype=torch.int16)
            if int(torch.unique(offsets).numel()) != offsets.numel():
                self.findings.add("overlap", op, f"a core writes an element of {buffer.name!r} again")
            self._collide(op, number, self._writer[number][offsets], mine)
            self._writer[number][offsets] = mine.expand(offsets.numel())
            self.contents[number][offsets] = source

    # At the end.

    def finish(self) -> None:
        """Checks what can be known only when all cores are done."""
        for number, buffer in enumerate(self.buffers):
            span = int((self._high[number] - np.minimum(self._low[number], self._high[number])).max()) * item(buffer)
            if span > SPAN_BYTES:
                self.findings.add("span", repr(buffer.name), f"a core touches {span} bytes from first to last")
            if buffer.role == "inout":
                writer, reader = self._writer[number], self._reader[number]
                if bool(((writer != 0) & (reader != 0) & (reader != writer)).any()):
                    self.findings.add("race", repr(buffer.name), "a core reads what another core writes")
            elif buffer.role == "out" and number not in self._unknown:
                self._gap(number, buffer)

    def _gap(self, number: int, buffer: Buffer) -> None:
        written = self._writer[number].as_strided(buffer.shape, buffer.strides) != 0
        missing = written.numel() - int(written.sum())
        if not missing:
            return
        first = [int(place) for place in (~written).nonzero()[0]]
        self.findings.add("gap", repr(buffer.name), f"{missing} elements are not written, the first at {first}")
        idle = np.flatnonzero(~self._storing[number])
        left = buffer.elements
        after = any(
            which == number and base < left and int(self._writer[number][base]) == 0 for which, base in self._next
        )
        if after or idle.size:
            who = f"cores {idle.tolist()} store nothing" if idle.size else "one core more would have written it"
            self.findings.add("missing-core", repr(buffer.name), who)
