"""Builds a small Llama with the command line, loads it in another process, generates, and compares with eager.

    make demo

Run it again to see that nothing is compiled twice. `--fresh` starts from an empty cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".demo-cache"
TAG = "demo-llama:1"
PROMPT = [11, 42, 7, 300, 5]
NEW = 24


def command(*words: str) -> list[str]:
    """A `spyre-build` command line in this interpreter's environment."""
    return [sys.executable, "-m", "spyre_build.cli.main", *words]


def build(cache: Path) -> dict[str, object]:
    """Submits the example: progress goes to the terminal, the counters come back."""
    words = command("submit", f"{HERE / 'llama.py'}:build", "--tag", TAG, "--cache", str(cache), "--json")
    print("$ spyre-build", *words[3:], flush=True)
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stdout)
        raise SystemExit(done.returncode)
    return dict(json.loads(done.stdout))


def run(cache: Path) -> dict[str, object]:
    """Loads and generates in a process of its own, as a device node would: there is no compiler in it."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--node", "--cache", str(cache)],
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.returncode)
    return dict(json.loads(done.stdout))


def node(cache: Path) -> None:
    """The other process: generates with compiled code and with eager, and prints what came as JSON."""
    import llama
    import torch

    import spyre_build
    from spyre_runtime.correct import compare

    start = time.perf_counter()
    model = spyre_build.load(TAG, cache=cache)
    loaded = time.perf_counter()
    tokens = llama.generate(model.entry("prefill"), model.entry("decode"), PROMPT, NEW)
    done = time.perf_counter()
    eager = llama.make()
    expected = llama.generate(eager, eager, PROMPT, NEW)
    again = time.perf_counter()
    # The two caches hold the same conversation now; one more token compares numbers, not only choices.
    call = (torch.tensor([[tokens[-1]]]), torch.tensor([len(PROMPT) + NEW]))
    logits, reference = model.entry("decode")(*call), eager(*call)
    report = compare(logits, reference)
    print(
        json.dumps(
            {
                "tokens": tokens,
                "eager": expected,
                "difference": float((logits - reference).abs().max()),
                "findings": str(report),
                "correct": report.correct,
                "seconds": {"load": loaded - start, "generate": done - loaded, "eager": again - done},
                "compiler": "torch._inductor" in sys.modules,
            }
        )
    )


def show(built: dict[str, object], ran: dict[str, object], seconds: float) -> int:
    """Says what came; gives the exit code."""
    actions, times, phases = built["actions"], ran["seconds"], built["seconds"]
    assert isinstance(actions, dict)
    assert isinstance(times, dict)
    assert isinstance(phases, dict)
    same = ran["tokens"] == ran["eager"] and bool(ran["correct"])
    calls = actions["total"] + actions["deduplicated"]
    print(f"\nmodel      {built['manifest']}")
    print(
        f"fragments  {calls} calls of {actions['total']} distinct: {actions['hit']} hit, {actions['compiled']} compiled"
    )
    print("build      " + ", ".join(f"{name} {value:.1f} s" for name, value in phases.items() if value >= 0.05))
    print(f"prompt     {PROMPT}")
    print(f"generated  {ran['tokens']}")
    print(f"eager      {ran['eager']}")
    print(f"           {'equal' if ran['tokens'] == ran['eager'] else 'DIFFERENT'};", end=" ")
    print(f"largest difference of the next logits {ran['difference']:.2g}")
    print(f"seconds    load {times['load']:.2f}, {NEW} tokens {times['generate']:.2f} (eager {times['eager']:.2f})")
    if not same:
        print(f"WRONG: {ran['findings']}")
    print(f"\n{'ok' if same else 'failed'} after {seconds:.1f} s; again, and everything hits: cache in {CACHE.name}/")
    return 0 if same else 1


def main() -> int:
    """Everything; 0 when compiled and eager agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the compiled model is kept")
    parser.add_argument("--fresh", action="store_true", help="remove that cache first")
    parser.add_argument("--node", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.node:
        node(words.cache)
        return 0
    if words.fresh and (words.cache / "FORMAT").exists():
        shutil.rmtree(words.cache)
    start = time.perf_counter()
    built = build(words.cache)
    return show(built, run(words.cache), time.perf_counter() - start)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))
    sys.exit(main())
