from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spyre_cache.codec import encode
from spyre_cache.objects.action import Action
from spyre_cache.objects.target import parse_target
from spyre_cache.root import Root
from spyre_cache.stores.disk import DiskStore
from spyre_workers.client import CompileServer
from spyre_workers.toolchain import toolchain

sys.path.insert(0, str(Path(__file__).parent))  # for `fragments`, shared by these tests only


@pytest.fixture(scope="session")
def record():
    return toolchain()


@pytest.fixture
def blobs(tmp_path):
    return DiskStore(Root(tmp_path / "cache"))


@pytest.fixture(scope="session")
def server():
    with CompileServer() as running:
        yield running


@pytest.fixture
def action_of(blobs, record):
    def make(fragment, target="cpu/x86-64-v3", **more):
        return Action(fragment=blobs.put(encode(fragment)), target=parse_target(target), toolchain=record, **more)

    return make
