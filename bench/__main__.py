"""`python -m bench [NAME…] [--rounds N] [--json FILE]`: measures, prints a table, writes JSON."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import cache, emulator, fleet, pairs, workers

NEEDS_BUILD = {"start", "steady", "memory"}
MEASUREMENTS = {
    "build": pairs.build,
    "start": pairs.start,
    "steady": pairs.steady,
    "memory": pairs.memory,
    "plan": pairs.plan,
    "presence": fleet.presence,
    "lookup-disk": fleet.lookup,
    "cache": lambda _scratch, rounds: cache.run(rounds=rounds),
    "workers": workers.workers,
    "lookup": workers.lookup,
    "scaling": workers.scaling,
    "emulator": emulator.emulator,
}


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _table(results: dict[str, dict[str, Any]]) -> Table:
    table = Table("measurement", "figure", "value", "promised", title="spyre-build against stock PyTorch")
    for name, figures in results.items():
        for key, value in figures.items():
            if key.endswith(("_at_most", "_at_least")):
                continue
            limit = "".join(
                f"{sign} {figures[key + suffix]}"
                for suffix, sign in (("_at_most", "≤"), ("_at_least", "≥"))
                if key + suffix in figures
            )
            table.add_row(name, key, json.dumps(value), limit)
    return table


def main() -> None:
    """Runs the chosen measurements in order."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MEASUREMENTS, []], help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = list(options.names or MEASUREMENTS)
    if NEEDS_BUILD & set(names) and "build" not in names:
        names.insert(0, "build")
    console = Console(stderr=True)
    scratch = pairs.Scratch()
    results: dict[str, Any] = {}
    try:
        for name in names:
            console.print(f"measuring {name} …")
            results[name] = MEASUREMENTS[name](scratch, options.rounds)
    finally:
        scratch.close()
    console.print(_table(results))
    document = {"commit": _commit(), "machine": platform.machine(), "rounds": options.rounds, "results": results}
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
