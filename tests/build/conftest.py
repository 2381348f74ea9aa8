"""Shared by the tests of `submit`: their folder on the path, and one cache for all."""

import os
import sys
from pathlib import Path

import pytest

# importlib mode puts no folder of tests on the path, and `factories` is a helper, not a test.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def builds_cache(tmp_path_factory):
    """A path that worker processes share, so that a fragment that two tests need is compiled once."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    return Path(os.environ.get("SPYRE_BUILD_TEST_CACHE") or base / "builds-cache")
