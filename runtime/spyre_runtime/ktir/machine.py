"""The machine as numbers: what is published, and what is assumed."""

from __future__ import annotations

import dataclasses
from typing import Final

CORES: Final = 32
STICK_BYTES: Final = 128
LX_BYTES: Final = 1_625_344  # of 2 MiB: 64 KiB are reserved, and a fifth of the rest is the back end's
SEGMENTS: Final = 7  # of eight; the last holds the program
SEGMENT_BYTES: Final = 16 << 30
SPAN_BYTES: Final = 268_431_360  # 255.996 MiB: what one core can reach in one piece
ITEM_BYTES: Final[dict[str, int]] = {"f16": 2, "f32": 4, "i32": 4, "i1": 1, "i64": 8, "index": 8}
BUFFER_DTYPES: Final = ("f16", "f32", "i32")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """What the cost model takes the machine to do. The rates are assumptions, no measurements.

    Attributes:
        clock_hz: cycles a second, used to turn cycles into time.
        memory_bytes_per_cycle: device memory, all cores together.
        vector_lanes: fp16 elements a core's vector unit does a cycle; half as many of fp32.
        special_factor: how many times longer a transcendental or a division takes.
        matrix_macs_per_cycle: multiply-accumulates a core's matrix unit does a cycle in fp16.
        launch_cycles: what a launch costs before the first byte moves.
    """

    clock_hz: float = 1.0e9
    memory_bytes_per_cycle: float = 200.0
    vector_lanes: int = 64
    special_factor: int = 8
    matrix_macs_per_cycle: int = 1024
    launch_cycles: int = 2000

    def assumptions(self) -> tuple[str, ...]:
        """The assumptions, one sentence each."""
        return (
            f"{self.clock_hz / 1e9:g} GHz clock",
            f"{self.memory_bytes_per_cycle:g} bytes a cycle of device memory, shared by all cores",
            "a tile that several cores load in the same step moves once for each of them",
            (
                f"{self.vector_lanes} fp16 lanes a core, half as many in fp32; special functions take"
                f" {self.special_factor} times as long"
            ),
            f"{self.matrix_macs_per_cycle} fp16 multiply-accumulates a cycle and core, fp32 operands at the same rate",
            "transfers and computation overlap fully: a kernel takes the longer of the two",
            f"{self.launch_cycles} cycles a launch",
        )


RATES: Final = Rates()
