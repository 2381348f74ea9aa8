"""`submit` through the command line: what it prints, and what bad input gets. Real processes where it matters."""

import json
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from spyre_build.cli.main import app

pytestmark = pytest.mark.xdist_group("cli-submit")

FACTORIES = """
import torch
from torch import nn

print("imported")


class Tiny(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(8, eps=eps)
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.lin(self.norm(x))


def good(eps=1e-5):
    print("made")
    torch.manual_seed(0)
    return nn.Sequential(*(Tiny(eps) for _ in range(3))).eval(), (torch.randn(2, 8),)


def other():
    return good(1e-6)


def raises():
    raise ValueError("no checkpoint\\nat all")


def wrong():
    return 42


def lacks_package():
    import a_package_that_is_not_there


class Branches(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x - 1


def branches():
    return Branches(), (torch.randn(4),)


def training():
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), (torch.randn(2, 4),)


not_callable = 3
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words, code=0):
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_submit_then_again_then_changed_counts_and_explains(project):
    cache = ["--cache", project / "cache"]
    first = call("submit", "model.py:good", "--tag", "tiny:1", *cache)
    assert first["status"] == "ok"
    assert first["name"] == "tiny:1"
    assert first["actions"]["total"] == first["actions"]["compiled"] == 1
    assert first["actions"]["deduplicated"] == 2
    again = call("submit", "model.py:good", "--tag", "tiny:1", *cache)
    assert again["manifest"] == first["manifest"]
    assert again["actions"]["compiled"] == 0
    call("submit", "model.py:other", "--tag", "tiny:2", *cache)
    (fragment,) = call("explain", "tiny:2", *cache)["fragments"]
    assert [d["text"].split(" in node")[0] for d in fragment["differences"]] == ["layer norm epsilon 1e-05 → 1e-06"]
    assert call("verify", "tiny:2", *cache)["ok"]
    assert call("run", "tiny:2", *cache)["outputs"][0]["shape"] == [2, 8]
    assert call("cache", "verify", *cache)["ok"]
    assert [b["name"] for b in call("status", *cache)["builds"]] == ["tiny:2", "tiny:1", "tiny:1"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere.py:make"], 2, "nowhere.py"),
        (["model.py"], 2, "model.py"),
        (["model.py:nothing"], 2, "nothing"),
        (["model.py:not_callable"], 2, "int"),
        (["model.py:wrong"], 2, "int"),
        (["a_module_that_is_not_there:make"], 1, "a_module_that_is_not_there"),
        (["model.py:raises"], 1, "no checkpoint"),
        (["model.py:lacks_package"], 1, "a_package_that_is_not_there"),
        (["model.py:branches"], 1, "model.py"),
        (["model.py:training"], 1, "ropout"),
        (["model.py:good", "--target", "cpu/z80"], 2, "cpu/z80"),
        (["model.py:good", "--weights", "sometimes"], 2, "store, external or none"),
        (["model.py:good", "--jobs", "0"], 2, "jobs"),
        (["model.py:good", "--audit", "101"], 2, "audit"),
        (["model.py:good", "--tag", "UPPER"], 2, "lowercase"),
    ],
)
def test_bad_input_gets_one_line_and_its_code(project, words, code, said):
    found = call("submit", *words, "--cache", project / "cache", code=code)
    assert said in found["error"], found
    assert "\n" not in found["error"]
    assert "unexpected" not in found["error"]


def test_submit_in_a_process_prints_one_object_though_the_factory_prints(project):
    done = subprocess.run(
        [sys.executable, "-m", "spyre_build.cli.main", "submit", "model.py:wrong", "--json", "--cache", "cache"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit"] == 2
    assert "imported" in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupt_while_compiling_gives_130_and_leaves_a_sound_cache(project):
    process = subprocess.Popen(
        [sys.executable, "-m", "spyre_build.cli.main", "submit", "model.py:good", "--json", "--cache", "cache"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stderr:
        if line.rstrip().endswith("compile"):
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["exit"] == 130
    assert "Traceback" not in err
    cache = ["--cache", project / "cache"]
    assert call("cache", "verify", *cache)["ok"]
    assert call("status", *cache)["builds"][0]["status"] == "failed"
    assert call("submit", "model.py:good", *cache)["status"] == "ok"


CUSTOM = """
import torch


@torch.library.custom_op("spyre_cli_test::twist", mutates_args=())
def twist(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


@twist.register_fake
def _(x):
    return torch.empty_like(x)
"""

CUSTOM_MODEL = """
import torch
import spyre_build
import twist_ops


class Twisted(torch.nn.Module):
    def forward(self, x):
        return torch.ops.spyre_cli_test.twist(x) + 1


def make():
    entry = spyre_build.Entry((torch.randn(2, 8),))
    return spyre_build.ModelSpec(Twisted().eval(), {"forward": entry}, custom_ops=["twist_ops"])
"""


def test_custom_operator_is_run_only_where_the_user_imports_it(project):
    (project / "twist_ops.py").write_text(CUSTOM)
    (project / "twisted.py").write_text(CUSTOM_MODEL)
    shell = [sys.executable, "-m", "spyre_build.cli.main"]

    def say(*words):
        done = subprocess.run([*shell, *words, "--cache", "cache"], capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        return done

    submitted = say("submit", "twisted.py:make", "--tag", "twisted:1")
    assert submitted.returncode == 0, submitted.stderr
    # Nothing is imported because a manifest names it.
    refused = say("run", "twisted:1")
    assert refused.returncode == 1
    assert "spyre_cli_test::twist" in refused.stderr
    assert say("run", "twisted:1", "--import", "twist_ops").returncode == 0
    assert say("verify", "twisted:1", "--import", "twist_ops.py").returncode == 0
    missing = say("verify", "twisted:1", "--import", "nowhere.py")
    assert missing.returncode == 2
    assert "nowhere.py" in missing.stderr
