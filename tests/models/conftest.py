"""Shared by the tests of whole models: one cache for all of them, and for all worker processes."""

import os
import sys
from pathlib import Path

import pytest

from spyre_cache.cache import Cache

# importlib mode puts no folder of tests on the path, and `odd` and `harness` are helpers, not tests.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def shared_cache_path(tmp_path_factory):
    """A fragment that two tests need is compiled once, whichever process comes first."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    return Path(os.environ.get("SPYRE_BUILD_TEST_CACHE") or base / "models-cache")


@pytest.fixture(scope="session")
def shared_cache(shared_cache_path):
    with Cache.open(shared_cache_path) as cache:
        yield cache
