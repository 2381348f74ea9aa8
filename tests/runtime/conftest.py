"""Shared by the tests of the runtime."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spyre_cache import Cache

# importlib mode puts no folder of tests on the path, and `handmade` is a helper, not a test.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def cache(tmp_path):
    return Cache.open(tmp_path / "cache")
