"""Builds that outlive their submitter, that share work, that start from a stored plan, and that are cancelled."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spyre_build import builds, following
from spyre_build.errors import BuildNotFoundError, UsageError
from spyre_cache.cache import Cache

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, h):
        return h + self.down(torch.tanh(self.up(h)))

def build():
    torch.manual_seed(3)
    widths = [8, 8, 12, 16]
    layers = []
    for before, width in zip([8] + widths, widths):
        layers += [nn.Linear(before, width), Block(width)]
    return nn.Sequential(*layers).eval(), (torch.randn(2, 8),)
"""


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "spyre_build.cli.main", *map(str, words), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def result(process):
    out, errors = process.communicate(timeout=300)
    assert out, errors
    return process.returncode, json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("driving") / "model.py"
    path.write_text(MODEL)
    return f"{path}:build"


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "nothing of the kind happened"
        time.sleep(0.05)
    return found


def planned(cache):
    """The one build of a cache once its plan is stored."""

    def look():
        with Cache.open(cache, read_only=True) as opened:
            return next((record for record in builds.recent(opened) if record.plan is not None), None)

    return wait_for(lambda: Path(cache, "FORMAT").exists() and look())


@pytest.fixture(scope="module")
def shared(model, tmp_path_factory):
    """Three submits of one model at once into an empty cache."""
    cache = tmp_path_factory.mktemp("shared") / "cache"
    running = [start("submit", model, "--cache", cache, "--jobs", 1) for _ in range(3)]
    return cache, [result(process) for process in running]


def test_submits_at_once_compile_each_fragment_once_and_agree(shared):
    _, done = shared
    assert [code for code, _ in done] == [0, 0, 0]
    totals = {data["actions"]["total"] for _, data in done}
    assert len(totals) == 1
    assert sum(data["actions"]["compiled"] for _, data in done) == totals.pop()
    assert len({data["manifest"] for _, data in done}) == 1


def test_plan_built_again_loads_no_torch_and_hits_everything(shared):
    cache, done = shared
    code = (
        "import sys; from spyre_cache.cache import Cache; from spyre_build.following import rebuild\n"
        f"build = rebuild('last', cache=Cache.open({str(cache)!r}), replay=False)\n"
        "assert 'torch' not in sys.modules; print(build.manifest, build.status, build.actions['hit'])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False)
    assert out.returncode == 0, out.stderr
    manifest, status, hits = out.stdout.split()
    assert (manifest, status, int(hits)) == (done[0][1]["manifest"], "ok", done[0][1]["actions"]["total"])


def test_build_of_a_killed_submitter_is_brought_to_its_end_by_whoever_watches(model, shared, tmp_path):
    cache = tmp_path / "cache"
    submitter = start("submit", model, "--cache", cache, "--jobs", 1, "--tag", "left:1")
    try:
        record = planned(cache)
    finally:
        submitter.kill()
        submitter.communicate()
    assert record.status == "running"
    with Cache.open(cache) as opened:
        assert builds.state(opened, record) == "left"
        data = following.watch(record.id, cache=opened)
        assert data["status"] == "ok"
        assert data["manifest"] == shared[1][0][1]["manifest"]
        assert data["actions"]["total"] == data["actions"]["compiled"] + data["actions"]["waited"]
        assert [release.label for release in opened.refs.releases()] == ["left:1"]
        assert following.watch(record.id, cache=opened)["status"] == "ok"  # an ended build is just told
        assert not opened.verify()


def test_cancelled_build_ends_and_keeps_what_it_compiled(model, tmp_path):
    cache = tmp_path / "cache"
    submitter = start("submit", model, "--cache", cache, "--jobs", 1)
    record = planned(cache)
    with Cache.open(cache) as opened:
        assert following.cancel(record.id, cache=opened)["driven"]
        code, data = result(submitter)
        assert code == 1
        assert "cancelled" in data["error"]
        assert builds.find(opened, record.id).status == "cancelled"
        with pytest.raises(UsageError, match="has ended"):
            following.cancel(record.id, cache=opened)
        assert not opened.verify()


def test_second_driver_is_refused_and_a_watcher_follows(model, tmp_path):
    cache = tmp_path / "cache"
    submitter = start("submit", model, "--cache", cache, "--jobs", 1)
    record = planned(cache)
    watcher = start("watch", record.id, "--cache", cache)
    code, data = result(watcher)
    assert (code, data["status"]) == (0, "ok")
    assert result(submitter)[1]["manifest"] == data["manifest"]


def test_submitter_frozen_for_long_goes_on_where_it_was(model, tmp_path):
    cache = tmp_path / "cache"
    submitter = start("submit", model, "--cache", cache, "--jobs", 1)
    planned(cache)
    submitter.send_signal(signal.SIGSTOP)
    time.sleep(10)
    submitter.send_signal(signal.SIGCONT)
    code, data = result(submitter)
    assert (code, data["status"]) == (0, "ok")


def test_unknown_build_is_refused_by_name(tmp_path):
    with Cache.open(tmp_path / "cache") as opened, pytest.raises(BuildNotFoundError, match="no build is called 'x'"):
        following.watch("x", cache=opened)
