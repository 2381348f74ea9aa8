"""Runs a kernel on a CPU with the machine's rules enforced: all cores in one walk."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch

from spyre_runtime.errors import KtirError
from spyre_runtime.ktir.cost import Cost, Meter
from spyre_runtime.ktir.findings import Findings
from spyre_runtime.ktir.memory import Memory
from spyre_runtime.ktir.numbers import Mode, Numbers
from spyre_runtime.ktir.verify import check_statically
from spyre_runtime.ktir.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdsl.ir import Operation

    from spyre_runtime.ktir.compute import Generic
    from spyre_runtime.ktir.kernel import Buffer, Kernel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Emulation:
    """What a run gave.

    Attributes:
        outputs: the tensors of the buffers that the kernel writes, by name; fp32 for f16 in mode `dl16`.
        lx_bytes: the most that lived in a core at once.
        cost: what it would cost on the device, estimated.
    """

    outputs: Mapping[str, torch.Tensor]
    lx_bytes: int
    cost: Cost


def memory_of(buffer: Buffer, tensor: torch.Tensor | None, numbers: Numbers) -> torch.Tensor:
    """Memory of a buffer in a number format: with a tensor in it, or poisoned.

    Raises:
        KtirError: the tensor has another shape or type.
    """
    dtype = numbers.torch_dtype(buffer.dtype)
    poison = math.nan if dtype.is_floating_point else torch.iinfo(dtype).min
    memory = torch.full((buffer.elements,), poison, dtype=dtype)
    if tensor is not None:
        if tuple(tensor.shape) != buffer.shape or tensor.is_floating_point() != dtype.is_floating_point:
            raise KtirError(
                f"the buffer {buffer.name!r} takes {buffer.dtype} of {list(buffer.shape)}, but "
                f"{tensor.dtype} of {list(tensor.shape)} came"
            )
        memory.as_strided(buffer.shape, buffer.strides).copy_(numbers.cast(tensor, buffer.dtype))
    return memory


class Emulator:
    """A kernel that is ready to run many times: what its text tells is checked once.

    Attributes:
        kernel: the kernel.
        lx_bytes: the most that lives in a core at once.

    Raises:
        KtirRuleError: the text or the buffers break a rule.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lx_bytes = check_statically(kernel, Findings(stop=True))
        self._generics: dict[Operation, Generic] = {}

    def run(self, memories: Sequence[torch.Tensor], *, mode: Mode = "fp16") -> Cost:
        """Runs the kernel on memories, which it changes; gives the estimate of what it costs.

        Args:
            memories: one-dimensional, as `memory_of` makes them, one a buffer.
            mode: how f16 rounds.

        Raises:
            KtirRuleError: the kernel breaks a rule; what it wrote until then stays.
            KtirError: the memories do not fit the buffers.
        """
        numbers, findings, buffers = Numbers(mode), Findings(stop=True), self.kernel.buffers
        if len(memories) != len(buffers):
            raise KtirError(f"a kernel of {len(buffers)} buffers takes as many memories, but {len(memories)} came")
        for buffer, memory in zip(buffers, memories, strict=True):
            if memory.dtype != numbers.torch_dtype(buffer.dtype) or memory.shape != (buffer.elements,):
                raise KtirError(
                    f"the memory of {buffer.name!r} has {buffer.elements} elements of {buffer.dtype}, but "
                    f"{memory.dtype} of {list(memory.shape)} came"
                )
        cores = math.prod(self.kernel.grid)
        meter = Meter(cores)
        walk = Walk(self.kernel, Memory(buffers, cores, findings, memories), findings, meter, numbers)
        walk.generics = self._generics
        with torch.no_grad():
            walk.run()
        return meter.cost()


def emulate(kernel: Kernel, tensors: Mapping[str, torch.Tensor], *, mode: Mode = "fp16") -> Emulation:
    """Runs a kernel on tensors.

    Args:
        kernel: what to run.
        tensors: for each buffer that is read, by name.
        mode: how f16 rounds: `fp16`, or `dl16` for the device's format.

    Raises:
        KtirRuleError: the kernel breaks a rule.
        KtirError: a tensor is missing or does not fit.
    """
    emulator, numbers, memories = Emulator(kernel), Numbers(mode), []
    for buffer in kernel.buffers:
        if buffer.role != "out" and buffer.name not in tensors:
            raise KtirError(f"the kernel reads {buffer.name!r}, but only {', '.join(tensors) or 'nothing'} came")
        memories.append(memory_of(buffer, tensors[buffer.name] if buffer.role != "out" else None, numbers))
    cost = emulator.run(memories, mode=mode)
    outputs = {
        buffer.name: buffer.unpack(memory)
        for buffer, memory in zip(kernel.buffers, memories, strict=True)
        if buffer.role != "in"
    }
    return Emulation(outputs=outputs, lx_bytes=emulator.lx_bytes, cost=cost)
