"""What a soak leaves behind: commit, seed and result of each, in `docs/evidence/`."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "evidence"


def keep(name: str, seed: int, result: dict[str, Any]) -> None:
    """Writes `docs/evidence/<name>.json` over the one of the run before."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=FOLDER.parents[1]
    ).stdout.strip()
    FOLDER.mkdir(parents=True, exist_ok=True)
    document = {"what": name, "commit": commit, "seed": seed, "day": time.strftime("%Y-%m-%d"), "result": result}
    (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
