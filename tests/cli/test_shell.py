"""The shell around the commands: what is printed where, exit codes, errors of every kind."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from spyre_build import __version__
from spyre_build.cli.main import app

COMMANDS = [
    "submit",
    "status",
    "watch",
    "cancel",
    "logs",
    "explain",
    "inspect",
    "run",
    "verify",
    "replay",
    "report",
    "doctor",
    "worker",
]
CACHE_COMMANDS = ["path", "stats", "ls", "verify", "gc", "pin", "unpin"]


def shell(*words, cwd=None, code=None, **environ):
    """Runs the command line in a process of its own."""
    start = [sys.executable, "-c", code] if code else [sys.executable, "-m", "spyre_build.cli.main"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SPYRE_BUILD_")}
    return subprocess.run(
        [*start, *map(str, words)],
        cwd=cwd,
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def home(tmp_path):
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": "", "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}


@pytest.mark.parametrize("words", [["--help"], *([c, "--help"] for c in COMMANDS), ["cache", "gc", "--help"]])
def test_help_of_any_command_does_not_import_torch(words):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "spyre_build.cli.main", *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "Usage: spyre-build" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"torch", "numpy", "rich", "spyre_runtime", "spyre_workers"}


def test_help_takes_less_than_a_third_of_a_second_of_cpu():
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert shell("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.3


def test_commands_are_those_that_work_and_each_takes_json():
    group = typer.main.get_command(app)
    assert set(group.commands) == {*COMMANDS, "cache"}
    assert set(group.commands["cache"].commands) == set(CACHE_COMMANDS)
    for command in [*group.commands.values(), *group.commands["cache"].commands.values()]:
        if not hasattr(command, "commands"):
            assert any("--json" in parameter.opts for parameter in command.params), command.name


def test_version_is_the_packages(home):
    done = shell("--version", **home)
    assert (done.returncode, done.stdout) == (0, f"spyre-build {__version__}\n")


def test_no_words_shows_the_help():
    done = shell()
    assert done.returncode == 0
    assert "Commands:" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nosuch"], 2, "No such command"),
        (["cache", "ls", "--jsno"], 2, "No such option"),
        (["cache", "ls", "--cache", ""], 2, "--cache is a path"),
        (["cache", "ls", "--cache", "ftp://b"], 2, "a tier is a directory's path or one of"),
        (["cache", "ls", "--cache", "a,b"], 2, "file:///dir"),
        (
            ["cache", "ls", "--cache", "redis://me:secret@127.0.0.1:1/0"],
            5,
            "redis://127.0.0.1:1/0 cannot be reached, after",
        ),
        (["cache", "ls", "--cache", "/proc/version"], 5, "a cache is a directory"),
        (["cache", "ls", "--cache", "x" * 300], 5, "File name too long"),
        (["inspect", "nosuch:1"], 3, "no release 'nosuch:1'"),
        (["inspect", "blake3:123456"], 3, "no manifest blake3:123456"),
        (["inspect", "UPPER"], 2, "lowercase"),
        (["inspect", "blake3:zzzz"], 2, "6 to 64 lowercase hex digits"),
        (["inspect", "blake3:12"], 2, "6 to 64 lowercase hex digits"),
        (["status", "nosuch"], 2, "no build is called 'nosuch'"),
        (["explain", "nosuch"], 2, "neither a build nor a model"),
        (["run", "nosuch:1"], 3, "no release"),
        (["run", "nosuch:1", "--policy", "lenient"], 2, "--policy is strict, fetch or build"),
    ],
)
def test_wrong_words_give_one_line_a_code_and_no_traceback(tmp_path, home, words, code, said):
    for extra in ([], ["--json"]):
        done = shell(*words, *extra, cwd=tmp_path, **home)
        assert done.returncode == code, done.stderr
        first, *rest = done.stderr.splitlines()
        assert first.startswith("error: ")
        assert said in first
        assert len(rest) <= 1
        assert "Traceback" not in done.stderr
        if extra:
            found = json.loads(done.stdout)
            assert set(found) == {"error", "hint", "exit"}
            assert found["exit"] == code
            assert said in found["error"]
        else:
            assert done.stdout == ""


def test_defect_shows_one_line_and_keeps_its_traceback(tmp_path, home):
    code = (
        "import spyre_build.caching as c, spyre_build.cli.main as m\n"
        "def broken(cache): raise RuntimeError('first\\nsecond')\n"
        "c.stats = broken\n"
        "m.main()"
    )
    done = shell("cache", "stats", "--json", code=code, **home)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert found["error"] == "unexpected RuntimeError: first second"
    kept = found["hint"].split()[-1]
    assert kept.startswith(str(tmp_path))
    assert "in broken" in Path(kept).read_text()


def test_defect_where_home_is_read_only_still_is_one_line(tmp_path):
    code = (
        "import spyre_build.caching as c, spyre_build.cli.main as m\n"
        "def broken(cache): raise RuntimeError('x')\n"
        "c.stats = broken\n"
        "m.main()"
    )
    environ = {"HOME": "/proc/nowhere", "TMPDIR": str(tmp_path), "XDG_STATE_HOME": ""}
    done = shell("cache", "stats", "--cache", tmp_path / "c", code=code, **environ)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert str(tmp_path) in done.stderr


def test_interrupt_gives_130_and_one_line(home):
    code = (
        "import os, signal, time, spyre_build.caching as c, spyre_build.cli.main as m\n"
        "def slow(cache): os.kill(os.getpid(), signal.SIGINT); time.sleep(30)\n"
        "c.stats = slow\n"
        "m.main()"
    )
    done = shell("cache", "stats", "--json", code=code, **home)
    assert done.returncode == 130
    assert json.loads(done.stdout)["exit"] == 130
    assert done.stderr.startswith("error: interrupted")


def test_json_whatever_else_is_printed_stays_one_object(home):
    code = (
        "import os, subprocess, spyre_build.caching as c, spyre_build.cli.main as m\n"
        "def noisy(cache):\n"
        "    print('from python'); os.write(1, b'from c\\n'); subprocess.run(['echo', 'from a child'])\n"
        "    return {'answer': 42}\n"
        "c.stats = noisy\n"
        "m.main()"
    )
    done = shell("cache", "stats", "--json", code=code, **home)
    assert json.loads(done.stdout) == {"answer": 42}
    assert all(text in done.stderr for text in ("from python", "from c", "from a child"))


def test_reader_gone_ends_quietly(tmp_path, home):
    command = f"{sys.executable} -m spyre_build.cli.main cache path --cache {tmp_path} | true"
    done = subprocess.run(["bash", "-c", command], env=os.environ | home, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_runner_cache_path_follows_the_project_file(tmp_path, monkeypatch):
    (tmp_path / "spyre-build.toml").write_text('[defaults]\ncache = "here"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPYRE_BUILD_CACHE", raising=False)
    result = CliRunner().invoke(app, ["cache", "path", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"path": str(tmp_path / "here")}


def test_read_only_cache_serves_readers_and_refuses_writers(tmp_path, home):
    cache = tmp_path / "cache"
    assert shell("cache", "ls", "--cache", cache, **home).returncode == 0
    read_only = ["unshare", "-m", "bash", "-c", f'mount --bind -o ro {cache} {cache} && exec "$@"', "-"]
    probe = subprocess.run([*read_only, "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("needs the right to mount")
    python = [sys.executable, "-m", "spyre_build.cli.main"]
    done = subprocess.run(
        [*read_only, *python, "cache", "ls", "--cache", str(cache)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [*read_only, *python, "cache", "gc", "--cache", str(cache)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("words", [["cache", "path"], ["cache", "path", "--json"]])
def test_stdout_full_closed_or_ascii_gives_no_traceback(tmp_path, home, words):
    start = f"{sys.executable} -m spyre_build.cli.main {' '.join(words)} --cache {tmp_path}/ä→"
    for redirect, code in (("> /dev/full", 5), (">&-", 0), ("> /dev/null", 0)):
        environ = os.environ | home | {"PYTHONIOENCODING": "ascii"}
        done = subprocess.run(
            ["bash", "-c", f"{start} {redirect}"], env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, (redirect, done.stderr)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
