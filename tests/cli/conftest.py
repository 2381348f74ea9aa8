"""Shared by the tests of the command line."""

import os
import sys
from pathlib import Path

import pytest

# importlib mode puts no folder of tests on the path, and `documents` is a helper, not a test.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """Neither the developer's settings nor their home have a part in these tests."""
    for name in [n for n in os.environ if n.startswith("SPYRE_BUILD_") and n != "SPYRE_BUILD_TOOLCHAIN_DIR"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
