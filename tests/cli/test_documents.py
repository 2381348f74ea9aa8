"""The documentation names what there is, and nothing that there is not."""

import re
import tomllib
from pathlib import Path

import typer

from spyre_build import errors
from spyre_build.cli.main import app
from spyre_build.config import load_settings

ROOT = Path(__file__).parents[2]
COMMANDS = (ROOT / "docs/reference/commands.md").read_text()
COMMON = {"--version", "--json", "--cache", "--help"}


def commands():
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        for inner, each in getattr(command, "commands", {"": command}).items():
            yield f"{name} {inner}".strip(), each


def test_every_command_and_option_is_in_the_reference():
    for name, command in commands():
        assert name.split()[0] in COMMANDS
        for parameter in command.params:
            # Of `--replay/--no-replay` the one that is not the default is told.
            for option in parameter.secondary_opts or ([] if parameter.hidden else parameter.opts):
                if option.startswith("--"):
                    assert option in COMMANDS, (name, option)


def test_every_option_in_the_reference_exists():
    known = {
        option
        for _, command in commands()
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | COMMON
    assert set(re.findall(r"--[a-z][a-z-]*", COMMANDS)) <= known


def test_every_command_in_readme_and_how_to_exists():
    names = {name.split()[0] for name, _ in commands()}
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]:
        for word in re.findall(r"(?:^|`)spyre-build ([a-z]+)", page.read_text(), re.MULTILINE):
            assert word in names, (page.name, word)


def test_every_link_between_pages_leads_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), (page, link)


def test_every_error_of_the_client_is_in_the_reference():
    page = (ROOT / "docs/reference/errors.md").read_text()
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.BuildError):
            assert f"`{name}`" in page or f".{name}`" in page, name


def test_settings_of_the_reference_are_read(tmp_path):
    page = (ROOT / "docs/reference/settings.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert tomllib.loads(example)["models"]
    (tmp_path / "spyre-build.toml").write_text(example)
    found = load_settings(environ={"HOME": str(tmp_path)}, directory=tmp_path)
    assert found.cache == str(tmp_path / ".cache/spyre")
    for key in ("cache", "toolchain_dir", "policy", "targets", "weights", "jobs", "audit"):
        assert f"| `{key}` | `SPYRE_BUILD_{key.upper()}`" in page
