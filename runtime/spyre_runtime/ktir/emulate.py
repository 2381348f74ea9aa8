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


def run_in_place(kernel: Kernel, memories: Sequence[torch.Tensor], *, mode: Mode = "fp16") -> tuple[int, Cost]:
    """Runs a kernel on memories that are changed; gives the LX high water and the cost.

    Args:
        kernel: what to run.
        memories: one-dimensional, as `memory_of` makes them, one a buffer.
        mode: how f16 rounds.

    Raises:
        KtirRuleError: the kernel breaks a rule; what it wrote until then stays.
        KtirError: the memories do not fit the buffers.
    """
    findings = Findings(stop=True)
    return _run(kernel, memories, Numbers(mode), findings, check_statically(kernel, findings))


def _run(
    kernel: Kernel, memories: Sequence[torch.Tensor], numbers: Numbers, findings: Findings, peak: int
) -> tuple[int, Cost]:
    for buffer, memory in zip(kernel.buffers, memories, strict=True):
        if memory.dtype != numbers.torch_dtype(buffer.dtype) or memory.shape != (buffer.elements,):
            raise KtirError(
                f"the memory of {buffer.name!r} has {buffer.elements} elements of {buffer.dtype}, but "
                f"{memory.dtype} of {list(memory.shape)} came"
            )
    cores = math.prod(kernel.grid)
    meter = Meter(cores)
    with torch.no_grad():
        Walk(kernel, Memory(kernel.buffers, cores, findings, memories), findings, meter, numbers).run()
    return peak, meter.cost()


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
    numbers, findings, memories = Numbers(mode), Findings(stop=True), []
    peak = check_statically(kernel, findings)
    for buffer in kernel.buffers:
        if buffer.role != "out" and buffer.name not in tensors:
            raise KtirError(f"the kernel reads {buffer.name!r}, but only {', '.join(tensors) or 'nothing'} came")
        memories.append(memory_of(buffer, tensors[buffer.name] if buffer.role != "out" else None, numbers))
    peak, cost = _run(kernel, memories, numbers, findings, peak)
    outputs = {
        buffer.name: buffer.unpack(memory)
        for buffer, memory in zip(kernel.buffers, memories, strict=True)
        if buffer.role != "in"
    }
    return Emulation(outputs=outputs, lx_bytes=peak, cost=cost)
