"""The kernels of one layer of hidden size 2048 in the emulator, checks on, against eager fp32 on the same host."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

SEQ, HIDDEN, INNER, HEADS = 64, 2048, 5632, 32


def emulator(_scratch: Path, rounds: int) -> dict[str, Any]:
    """Seconds of process time on one thread, the shortest of the rounds: build, verification, run, and eager."""
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "ktir"))
    from spyre_runtime.ktir.emulate import Emulator, memory_of
    from spyre_runtime.ktir.numbers import Numbers
    from spyre_runtime.ktir.verify import verify

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        totals = {"build": 0.0, "verify": 0.0, "emulate": 0.0}
        slowest = 0.0
        for make, times in _layer():
            kernel, built = _timed(make, 1)
            _, verified = _timed(lambda kernel=kernel: verify(kernel), 1)
            memories = [
                memory_of(buffer, None if buffer.role == "out" else torch.randn(buffer.shape).half(), Numbers("fp16"))
                for buffer in kernel.buffers
            ]
            ready = Emulator(kernel)
            _, ran = _timed(lambda ready=ready, memories=memories: ready.run(memories), rounds)
            totals["build"] += built
            totals["verify"] += verified
            totals["emulate"] += ran * times
            slowest = max(slowest, built)
        _, eager = _timed(_eager(), rounds)
    finally:
        torch.set_num_threads(threads)
    return {
        **{f"{name}_s": round(seconds, 3) for name, seconds in totals.items()},
        "slowest_build_s": round(slowest, 3),
        "slowest_build_s_at_most": 0.1,
        "eager_fp32_s": round(eager, 3),
        "ratio": round(totals["emulate"] / eager, 2),
        "ratio_at_most": 4,
    }


def _layer() -> list[tuple[Any, int]]:
    import ktir_kernels as k

    def swiglu(s: Any, a: Any, b: Any) -> Any:
        return s.mul(s.silu(a), b)

    def add(s: Any, a: Any, b: Any) -> Any:
        return s.add(a, b)

    return [
        (lambda: k.rmsnorm(SEQ, HIDDEN), 2),
        (lambda: k.matmul(SEQ, HIDDEN, HIDDEN, transposed=True), 4),
        (lambda: k.permute((SEQ, HEADS, HIDDEN // HEADS), (1, 0, 2)), 4),
        (lambda: k.softmax(SEQ * HEADS, SEQ), 1),
        (lambda: k.matmul(SEQ, INNER, HIDDEN, transposed=True), 2),
        (lambda: k.pointwise("swiglu", (SEQ, INNER), 2, swiglu), 1),
        (lambda: k.matmul(SEQ, HIDDEN, INNER, transposed=True), 1),
        (lambda: k.pointwise("add", (SEQ, HIDDEN), 2, add), 2),
    ]


def _eager() -> Any:
    import torch

    functional = torch.nn.functional
    x, inner = torch.randn(SEQ, HIDDEN), torch.randn(SEQ, INNER)
    square, up, down = torch.randn(HIDDEN, HIDDEN), torch.randn(INNER, HIDDEN), torch.randn(HIDDEN, INNER)
    scores, weight = torch.randn(SEQ * HEADS, SEQ), torch.ones(HIDDEN)

    def run() -> None:
        for _ in range(2):
            functional.rms_norm(x, (HIDDEN,), weight)
            functional.linear(x, up)
            torch.add(x, x)
        for _ in range(4):
            functional.linear(x, square)
            x.view(SEQ, HEADS, -1).transpose(0, 1).contiguous()
        torch.softmax(scores, 1)
        functional.linear(functional.silu(inner) * inner, down)

    return run


def _timed(call: Any, rounds: int) -> tuple[Any, float]:
    best, result = float("inf"), None
    for _ in range(max(1, rounds)):
        start = time.process_time()
        result = call()
        best = min(best, time.process_time() - start)
    return result, best
