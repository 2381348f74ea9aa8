"""Models and the two ways to build them, each meant to run in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[1]


def llama(layers: int, hidden: int = 256, seq: int = 64) -> tuple[Any, tuple[Any, ...]]:
    """A Llama with random weights and its example ids (1, seq)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, use_cache=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    return _Logits(model), (torch.randint(0, 1000, (1, seq)),)


def _Logits(model: Any) -> Any:  # noqa: N802  a class made late, so that torch is imported late
    import torch

    class Logits(torch.nn.Module):
        """Tensors out, so that stock AOTInductor takes the same model."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(ids).logits

    return Logits().eval()


def measure(function: str, *args: Any, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs `bench.workload.<function>(*args)` in a fresh process; gives the JSON it returned."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.workload", function, json.dumps(args)],
        cwd=REPO, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{function}{args}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# --- what runs in the fresh process -----------------------------------------------------------------------------------


def build_ours(layers: int, cache: str, hidden: int = 256, seq: int = 64) -> dict[str, Any]:
    """Builds with spyre-build into `cache`."""
    import spyre_build

    model, args = llama(layers, hidden, seq)
    start = time.perf_counter()
    build = spyre_build.submit((model, args), cache=cache)
    total = time.perf_counter() - start
    return {"seconds": total, "status": build.status, "phases": build.seconds, "manifest": str(build.manifest)}


def build_stock(layers: int, package: str, hidden: int = 256, seq: int = 64) -> dict[str, Any]:
    """Builds the whole model with stock AOTInductor, headers warm (a one-layer model of another width goes first)."""
    import torch
    from torch._inductor import aoti_compile_and_package

    small, small_args = llama(1, 64, 16)
    with torch.no_grad():
        aoti_compile_and_package(torch.export.export(small, small_args), package_path=package + ".warm.pt2")
        model, args = llama(layers, hidden, seq)
        start = time.perf_counter()
        aoti_compile_and_package(torch.export.export(model, args), package_path=package)
    return {"seconds": time.perf_counter() - start}


def import_torch() -> dict[str, Any]:
    """`import torch` alone."""
    start = time.perf_counter()
    import torch  # noqa: F401

    return {"seconds": time.perf_counter() - start}


def import_runtime() -> dict[str, Any]:
    """What `import spyre_runtime` (with its loader) adds to `import torch`."""
    import torch  # noqa: F401

    start = time.perf_counter()
    import spyre_runtime.load  # noqa: F401

    return {"seconds": time.perf_counter() - start}


def start_ours(manifest: str, cache: str, seq: int = 64) -> dict[str, Any]:
    """From nothing to the first output, `import torch` included."""
    start = time.perf_counter()
    import torch

    from spyre_cache import Cache
    from spyre_runtime.load import load

    model = load(Cache.open(cache, read_only=True), manifest)
    model(torch.zeros(1, seq, dtype=torch.int64))
    return {"seconds": time.perf_counter() - start}


def start_stock(package: str, seq: int = 64) -> dict[str, Any]:
    """The same with `torch._inductor.aoti_load_package`."""
    start = time.perf_counter()
    import torch
    from torch._inductor import aoti_load_package

    model = aoti_load_package(package)
    model(torch.zeros(1, seq, dtype=torch.int64))
    return {"seconds": time.perf_counter() - start}


def steady(manifest: str, cache: str, package: str, seq: int = 64, rounds: int = 60) -> dict[str, Any]:
    """Calls of both, alternately in one process; seconds each, medians."""
    import statistics

    import torch
    from torch._inductor import aoti_load_package

    from spyre_cache import Cache
    from spyre_runtime.load import load

    ours, stock = load(Cache.open(cache, read_only=True), manifest), aoti_load_package(package)
    ids = torch.randint(0, 1000, (1, seq))
    seconds: dict[str, list[float]] = {"ours": [], "stock": []}
    with torch.no_grad():
        for index in range(rounds + 10):
            for name, call in (("ours", ours), ("stock", stock)):
                start = time.perf_counter()
                call(ids)
                if index >= 10:
                    seconds[name].append(time.perf_counter() - start)
        difference = float((ours(ids) - stock(ids)).abs().max())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = [stock_ / ours_ for ours_, stock_ in zip(seconds["ours"], seconds["stock"], strict=True)]
    return {**medians, "ratio": statistics.median(ratios), "difference": difference}


def _rss() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["VmHWM"].split()[0]) * 1024


def memory_base() -> dict[str, Any]:
    """Peak of a process that imports torch and makes one small matrix product."""
    import torch

    torch.mm(torch.zeros(64, 64), torch.zeros(64, 64))
    return {"peak": _rss()}


def memory_ours(manifest: str, cache: str, seq: int = 64) -> dict[str, Any]:
    """Peak resident bytes of loading and three calls; weights are mapped pages, counted as they are touched."""
    import torch

    from spyre_cache import Cache
    from spyre_runtime.load import load

    model = load(Cache.open(cache, read_only=True), manifest)
    for _ in range(3):
        model(torch.zeros(1, seq, dtype=torch.int64))
    return {"peak": _rss()}


def memory_stock(package: str, seq: int = 64) -> dict[str, Any]:
    """The same by the bare container runner on the unpacked library, without importing Inductor."""
    import zipfile

    import torch

    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(package) as archive:
            archive.extractall(folder)
        library = next(Path(folder).rglob("*.so"))
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
        for _ in range(3):
            runner.run([torch.zeros(1, seq, dtype=torch.int64)])
    return {"peak": _rss()}


def plan_granite() -> dict[str, Any]:
    """Plan of Granite-3.3-8B without weights: seconds from an imported torch to keys, and peak memory."""
    import resource

    import torch  # noqa: F401

    start = time.perf_counter()
    from spyre_build.frontend.factory import load_spec
    from spyre_build.frontend.model import build_model

    spec = load_spec(str(REPO / "examples" / "granite.py") + ":build", weights="external")
    made = time.perf_counter()
    model = build_model(spec)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "seconds": time.perf_counter() - made,
        "with_factory": time.perf_counter() - start,
        "peak_rss_bytes": peak,
        "unique": len(model.pool.fragments),
        "calls": sum(len(program.steps) for program in model.programs),
    }


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*json.loads(sys.argv[2]))))
