"""SIGKILL in the middle of submits: every later run is right, and the cache has nothing wrong in it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width, scale):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = scale

    def forward(self, h):
        return h + self.scale * self.down(torch.relu(self.up(self.norm(h))))

def build():
    torch.manual_seed(5)
    model = nn.Sequential(*[Block(16, {scale}) for _ in range(3)], nn.Linear(16, 4)).eval()
    return model, (torch.randn(3, 16),)
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "spyre_build.cli.main", *words]


def run(*words: str) -> tuple[int, dict]:
    done = subprocess.run(command(*words, "--json"), capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def kill_submits(folder: Path, count: int, seed: int) -> dict:
    """Kills `count` submits at random moments, each followed by a check of the cache; now and then by a whole run."""
    rng = random.Random(seed)
    cache = str(folder / "cache")
    reached: dict[str, int] = {}
    longest = 8.0
    for number in range(count):
        # Other constants give other fragments, so that there is always something to compile.
        spec = folder / f"model_{number}.py"
        spec.write_text(MODEL.replace("{scale}", repr(0.5 + number / 1024)))
        words = command("submit", f"{spec}:build", "--cache", cache, "--tag", "victim", "--json")
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, text=True
        )
        started = time.monotonic()
        try:
            process.wait(rng.uniform(0.5, longest))
            longest = max(4.0, 1.2 * (time.monotonic() - started))  # it got through: aim closer
            reached["finished"] = reached.get("finished", 0) + 1
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            reached["killed"] = reached.get("killed", 0) + 1
        process.communicate()
        code, found = run("cache", "verify", "--cache", cache)
        assert code == 0, (number, found)
        if number % 10 == 9 or number == count - 1:
            code, built = run("submit", f"{spec}:build", "--cache", cache, "--tag", f"whole:{number}")
            assert (code, built["status"]) == (0, "ok"), built
            code, checked = run("verify", f"whole:{number}", "--cache", cache)
            assert code == 0, checked
    return reached


def test_submits_that_are_killed_leave_the_cache_sound(tmp_path):
    assert kill_submits(tmp_path, 3, seed=11)["killed"] >= 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_submits_that_are_killed_leave_the_cache_sound(tmp_path):
    from evidence import keep

    seed = int(os.environ.get("SPYRE_BUILD_SOAK_SEED", "2026"))
    reached = kill_submits(tmp_path, 50, seed)
    keep("kills-of-submit", seed, {"submits": 50, **reached, "every later run right": True, "cache verify": "clean"})
    assert reached["killed"] >= 25
