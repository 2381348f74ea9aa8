"""What a kernel would cost on the device, by the assumptions of `machine.Rates`: an estimate, never a measurement."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from spyre_runtime.ktir.machine import RATES, Rates

Bound = Literal["memory", "compute", "launch"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """An estimate.

    Attributes:
        cycles: of the slowest core, launch included.
        bytes_moved: between device memory and cores, all cores together.
        macs: multiply-accumulates of the matrix units, all cores together.
        memory_cycles: what moving takes alone.
        compute_cycles: what computing takes alone, on the busiest core.
        bound: which of them decides.
        assumptions: what was assumed.
    """

    cycles: int
    bytes_moved: int
    macs: int
    memory_cycles: int
    compute_cycles: int
    bound: Bound
    assumptions: tuple[str, ...]


class Meter:
    """Counts what each core does."""

    def __init__(self, cores: int) -> None:
        self.moved = np.zeros(cores, dtype=np.int64)
        self.macs = np.zeros(cores, dtype=np.int64)
        self.lanes = np.zeros(cores, dtype=np.float64)

    def move(self, cores: np.ndarray[Any, Any], count: int) -> None:
        """Bytes, for each of the cores."""
        self.moved[cores] += count

    def vector(self, cores: np.ndarray[Any, Any], elements: int, dtype: str, *, special: bool = False) -> None:
        """Elements of one operation, for each of the cores; counted in fp16 lanes."""
        width = 1 if dtype in {"f16", "i1"} else 2
        self.lanes[cores] += elements * width * (RATES.special_factor if special else 1)

    def matrix(self, cores: np.ndarray[Any, Any], macs: int) -> None:
        """Multiply-accumulates, for each of the cores."""
        self.macs[cores] += macs

    def cost(self, rates: Rates = RATES) -> Cost:
        """The estimate."""
        memory = float(self.moved.sum()) / rates.memory_bytes_per_cycle
        compute = float((self.lanes / rates.vector_lanes + self.macs / rates.matrix_macs_per_cycle).max(initial=0.0))
        longest = max(memory, compute)
        bound: Bound = "launch" if longest < rates.launch_cycles else "memory" if memory >= compute else "compute"
        return Cost(
            cycles=int(np.ceil(longest)) + rates.launch_cycles,
            bytes_moved=int(self.moved.sum()),
            macs=int(self.macs.sum()),
            memory_cycles=int(np.ceil(memory)),
            compute_cycles=int(np.ceil(compute)),
            bound=bound,
            assumptions=rates.assumptions(),
        )
