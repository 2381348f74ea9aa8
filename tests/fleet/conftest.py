"""Shared by the tests of whole fleets: real processes of the command line, a real Redis, a real object store."""

import os
import sys
from pathlib import Path

import pytest
from filelock import FileLock

# importlib mode puts no folder of tests on the path, and `fleets` is a helper, not a test.
sys.path.insert(0, str(Path(__file__).parent))

from fleets import TARGET, Fleet, write_model

from spyre_cache.cache import Cache


@pytest.fixture
def new_fleet(tmp_path, redis_url):
    """Makes fleets whose machines share a directory, or the tiers named; with `tiers=""` all is on one machine."""
    fleets = []

    def make(broker=redis_url, tiers=None, environment=None, **more):
        folder = tmp_path / f"fleet-{len(fleets)}"
        shared = f"file://{folder / 'shared'}" if tiers is None else tiers
        fleets.append(Fleet(folder, broker, shared, environment or {}, **more))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.close()


@pytest.fixture(scope="session")
def seeds(tmp_path_factory, redis_server):
    """Plans of models by their number of fragments, nothing of them compiled: (cache directory, build)."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder = base / "fleet-seeds"
    folder.mkdir(exist_ok=True)
    sizes = (1, 3, 6)
    with FileLock(folder / "lock"), Cache.open(folder / "cache") as cache:
        for size in sizes:
            kept = folder / f"build-{size}"
            if not kept.exists():
                from spyre_build.submission import submit

                words = write_model(folder / f"model_{size}.py", size)
                build = submit(words, targets=[TARGET], cache=cache, broker=redis_server.url_of(9999), detach=True)
                kept.write_text(build.id)
    return {size: (folder / "cache", (folder / f"build-{size}").read_text()) for size in sizes}
