"""A cache warmed by `submit` serves `torch.compile`, and the other way round: both give the same keys."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from architectures import FAMILIES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("models-doors")]
PROGRAM = Path(__file__).parent / "doors.py"


def ask(names, seed, directory):
    """Starts a process of its own; its answer is read later."""
    directory.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(PROGRAM), *names],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=directory,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """By hash seed; the second goes through the families backwards, from another directory."""
    base = tmp_path_factory.mktemp("doors")
    names = list(FAMILIES)
    # Capturing costs seconds each: the second goes both ways in with every third family only.
    second = [name if place % 3 == 0 else f"{name}:submit" for place, name in enumerate(names)][::-1]
    asked = [ask(names, "1", base / "here"), ask(second, "20301", base / "a n other")]
    return [json.loads(process.communicate(timeout=900)[0]) for process in asked]


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("name", FAMILIES)
def test_family_submitted_and_compiled_has_the_same_keys(name, answers):
    first, second = (answer[name] for answer in answers)
    assert first["submit"]
    assert first["compile"] == first["submit"]
    assert second["submit"] == first["submit"]
    assert second["compile"] in ([], first["compile"])
