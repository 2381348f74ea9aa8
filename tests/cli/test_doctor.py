"""What the machine is said to be able to do."""

import platform

from spyre_build.config import load_settings
from spyre_build.doctor import cannot_run, examine
from spyre_cache.objects.target import TARGETS, Target


def settings(tmp_path, **environ):
    environ.setdefault("HOME", str(tmp_path))
    return load_settings(environ=environ, directory=tmp_path, user_file=tmp_path / "none.toml")


def test_machine_with_a_compiler_builds_and_runs_a_target_and_says_what_is_absent(tmp_path):
    found = examine(settings(tmp_path))
    assert found["ok"]
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["torch"]["text"].startswith("2.13.")
    assert checks["cache"]["status"] == "ok"
    for name in ("dbo-opt", "spyre card"):
        assert checks[name]["status"] in {"ok", "absent"}
        assert checks[name]["status"] == "ok" or "needed for" in checks[name]["text"]
    assert {t["target"] for t in found["targets"]} == set(TARGETS)


def test_cache_that_cannot_be_used_makes_the_machine_unfit(tmp_path):
    (tmp_path / "file").write_text("x")
    found = examine(settings(tmp_path, SPYRE_BUILD_CACHE=str(tmp_path / "file")))
    assert not found["ok"]
    assert next(c for c in found["checks"] if c["name"] == "cache")["status"] == "bad"


def test_settings_say_where_they_came_from(tmp_path):
    found = examine(settings(tmp_path, SPYRE_BUILD_CACHE=str(tmp_path / "c")))
    assert next(c for c in found["checks"] if c["name"] == "settings")["text"] == "cache from SPYRE_BUILD_CACHE"


def test_target_beyond_this_host_says_what_it_lacks():
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    here = {"kind": "cpu", "name": "cpu/x", "isa": "x"}
    assert cannot_run(Target(arch=other, **here)) == f"this host is {platform.machine()}"
    assert cannot_run(Target(arch=platform.machine(), features=("time_travel",), **here)) == "lacks time_travel"
    assert cannot_run(Target(arch=platform.machine(), **here)) == ""
