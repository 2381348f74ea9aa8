"""Settings: which source wins, and what is refused."""

from pathlib import Path

import pytest

from spyre_build.config import load_settings
from spyre_build.errors import SettingsError


def settings(tmp_path: Path, flags=None, environ=None, project="", user=""):
    work = tmp_path / "project" / "deep"
    work.mkdir(parents=True, exist_ok=True)
    if project:
        (tmp_path / "project" / "spyre-build.toml").write_text(project)
    user_file = tmp_path / "user.toml"
    if user:
        user_file.write_text(user)
    home = {"HOME": str(tmp_path / "home")}
    return load_settings(flags, environ=home | (environ or {}), directory=work, user_file=user_file)


def test_settings_nothing_set_gives_one_machine_defaults(tmp_path):
    found = settings(tmp_path)
    assert found.cache == str(tmp_path / "home/.cache/spyre-build")
    assert found.toolchain_dir == tmp_path / "home/.cache/spyre-build-toolchain"
    assert (found.policy, found.targets, found.weights, found.jobs) == ("strict", (), "store", None)
    assert dict(found.origins) == {}


def test_settings_four_sources_nearest_wins(tmp_path):
    user = '[defaults]\ncache = "from-user"\njobs = 1\npolicy = "build"\naudit = 5\n'
    project = '[defaults]\njobs = 2\npolicy = "fetch"\naudit = 6\n'
    found = settings(tmp_path, {"audit": 8}, {"SPYRE_BUILD_POLICY": "strict", "SPYRE_BUILD_AUDIT": "7"}, project, user)
    assert found.cache == str(tmp_path / "from-user"), "a path in a file is relative to that file"
    assert found.jobs == 2
    assert found.policy == "strict"
    assert found.audit == 8
    assert found.origins["policy"] == "SPYRE_BUILD_POLICY"
    assert found.origins["audit"] == "flag"
    assert found.origins["jobs"].endswith("spyre-build.toml")


def test_settings_flag_not_given_leaves_the_file(tmp_path):
    found = settings(
        tmp_path, {"targets": [], "jobs": None}, project='[defaults]\ntargets = ["cpu/aarch64"]\njobs = 3\n'
    )
    assert found.targets == ("cpu/aarch64",)
    assert found.jobs == 3


@pytest.mark.parametrize(
    ("project", "words"),
    [
        ("[defaults]\ncahce = 'x'\n", "unknown key `cahce`"),
        ("[default]\n", "unknown key `default`"),
        ("[models.granite]\ntargets = []\n", r"\[models.granite\] lacks `spec`"),
        ("[models.granite]\nspec = 'a:b'\ntarget = 'x'\n", r"\[models.granite\]: unknown key `target`"),
        ("[defaults\n", "is not TOML"),
        ("defaults = 3\n", "are tables"),
        ("[defaults]\njobs = 0\n", "jobs is a whole number from 1 to 1024"),
        ("[defaults]\njobs = 1.5\n", "jobs is a whole number"),
        ("[defaults]\njobs = true\n", "jobs is a whole number"),
        ("[defaults]\naudit = nan\n", "audit is a number"),
        ("[defaults]\npolicy = 'lenient'\n", "policy is strict, fetch or build"),
        ("[defaults]\ntargets = [1]\n", "targets is a list of target names"),
        ("[defaults]\ncache = 'http://bucket'\n", "a tier is a directory"),
        ("x = " + "[" * 5000 + "\n", "is not TOML"),
    ],
)
def test_settings_file_malformed_names_the_place(tmp_path, project, words):
    with pytest.raises(SettingsError, match=words):
        settings(tmp_path, project=project)


def test_settings_variable_misspelt_is_refused_with_the_right_name(tmp_path):
    with pytest.raises(SettingsError, match="SPYRE_BUILD_CAHCE") as caught:
        settings(tmp_path, environ={"SPYRE_BUILD_CAHCE": "/x"})
    assert "SPYRE_BUILD_CACHE" in caught.value.hint


def test_settings_variable_of_a_cluster_service_is_let_pass(tmp_path):
    assert settings(tmp_path, environ={"SPYRE_BUILD_PORT_443_TCP_ADDR": "10.0.0.1"}).policy == "strict"
