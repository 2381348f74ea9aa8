"""Whether a kernel keeps the machine's rules, for all inputs: what xDSL checks, and what only addresses can tell."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final

from spyre_runtime.ktir import lx
from spyre_runtime.ktir.cost import Cost, Meter
from spyre_runtime.ktir.findings import Finding, Findings
from spyre_runtime.ktir.machine import BUFFER_DTYPES, CORES, LX_BYTES, SEGMENT_BYTES, SEGMENTS, STICK_BYTES
from spyre_runtime.ktir.memory import Memory
from spyre_runtime.ktir.structure import check_structure
from spyre_runtime.ktir.walk import Walk

if TYPE_CHECKING:
    from spyre_runtime.ktir.kernel import Buffer, Kernel

MAX_OUTPUT_ELEMENTS: Final = 1 << 28  # the writer of each is kept in memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examination:
    """What is known of a kernel without running it.

    Attributes:
        findings: the rules it breaks; none means it keeps them.
        lx_bytes: the most that lives in a core at once.
        cost: the estimate; None where a finding kept the walk from its end.
    """

    findings: tuple[Finding, ...]
    lx_bytes: int
    cost: Cost | None

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the broken rules, each once."""
        return tuple(dict.fromkeys(finding.rule for finding in self.findings))


def examine(kernel: Kernel) -> Examination:
    """Checks every rule that needs no elements, and estimates what the kernel costs."""
    findings = Findings()
    peak = check_statically(kernel, findings)
    if findings.found:
        return Examination(findings=tuple(findings.found), lx_bytes=peak, cost=None)
    cores = math.prod(kernel.grid)
    meter = Meter(cores)
    Walk(kernel, Memory(kernel.buffers, cores, findings, None), findings, meter, None).run()
    return Examination(findings=tuple(findings.found), lx_bytes=peak, cost=meter.cost())


def verify(kernel: Kernel) -> Examination:
    """Like `examine`, for kernels that must keep the rules.

    Raises:
        KtirRuleError: it breaks some; the error has their names.
    """
    found = examine(kernel)
    if found.findings:
        collected = Findings()
        collected.found = list(found.findings)
        raise collected.error(kernel.name)
    return found


def check_statically(kernel: Kernel, findings: Findings) -> int:
    """Checks what the text and the buffers alone tell; gives the bytes that live in a core at once."""
    _check_grid(kernel, findings)
    _check_buffers(kernel, findings)
    check_structure(kernel, findings)
    peak, at = lx.high_water(kernel.func)
    if peak > LX_BYTES:
        findings.add("lx", at if at is not None else kernel.name, f"{peak} bytes live at once")
    return peak


def _check_grid(kernel: Kernel, findings: Findings) -> None:
    grid = kernel.grid
    if not grid or any(size < 1 for size in grid) or math.prod(grid) > CORES:
        findings.add("grid", kernel.name, f"the grid is {list(grid)}")
    elif math.prod(grid) != kernel.cores:
        findings.add("grid", kernel.name, f"the grid {list(grid)} is planned for {kernel.cores} cores")


def _check_buffers(kernel: Kernel, findings: Findings) -> None:
    if len(kernel.buffers) > SEGMENTS:
        findings.add("segments", kernel.name, f"it has {len(kernel.buffers)} buffers")
    arguments = kernel.func.body.block.args
    if len(arguments) not in {0, len(kernel.buffers)}:
        findings.add("ir", kernel.name, f"{len(arguments)} arguments for {len(kernel.buffers)} buffers")
    for buffer in kernel.buffers:
        _check_buffer(buffer, findings)
    if not arguments and any(buffer.address is None for buffer in kernel.buffers):
        findings.add("ir", kernel.name, "a kernel without arguments has buffers with addresses")
    planned = [buffer for buffer in kernel.buffers if buffer.address is not None]
    for number, one in enumerate(planned):
        for other in planned[number + 1 :]:
            low, high = max(one.address or 0, other.address or 0), min(_end(one), _end(other))
            if low < high and (one.role != "in" or other.role != "in"):
                findings.add("alias", repr(one.name), f"it shares {high - low} bytes with {other.name!r}")


def _end(buffer: Buffer) -> int:
    return (buffer.address or 0) + buffer.bytes


def _check_buffer(buffer: Buffer, findings: Findings) -> None:
    name = repr(buffer.name)
    if buffer.dtype not in BUFFER_DTYPES:
        findings.add("dtype", name, f"memory of {buffer.dtype}")
        return
    if not buffer.shape or any(size < 1 for size in buffer.shape) or any(stride < 0 for stride in buffer.strides):
        findings.add("ir", name, f"shape {list(buffer.shape)} with strides {list(buffer.strides)}")
    elif buffer.bytes > SEGMENT_BYTES or (buffer.role != "in" and buffer.elements > MAX_OUTPUT_ELEMENTS):
        findings.add("segments", name, f"it has {buffer.bytes} bytes")
    if (buffer.address or 0) % STICK_BYTES or (buffer.address or 0) < 0:
        findings.add("stick", name, f"its address is {buffer.address}")
