"""What importing the cache costs: it is on the path of every command and of every device node."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "zstandard", "pyfastcdc", "concurrent.futures", "multiprocessing", "asyncio", "logging")


@pytest.mark.parametrize("module", ["spyre_cache", "spyre_cache.gc", "spyre_cache.verify", "spyre_cache.chunks"])
def test_import_pulls_nothing_heavy(module):
    script = f"import sys; sys.path[:] = {sys.path!r}; import {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(HEAVY) & set(run.stdout.split()) == set()
    assert "blake3" in run.stdout
