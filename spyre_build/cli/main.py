"""The command line: assembles the commands, and shows results and errors in one way.

Nothing here, nor at the top of a command's module, imports torch: `--help` answers at once.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from spyre_build import __version__
from spyre_build.cli import (
    cache,
    cancel,
    doctor,
    explain,
    inspect,
    logs,
    replay,
    report,
    run,
    status,
    submit,
    verify,
    watch,
    worker,
)
from spyre_build.cli.failure import INTERRUPTED, Failure, describe
from spyre_build.cli.output import Result, reserved_stdout, visible, write_json, write_lines


class Shell(TyperGroup):
    """A group that shows what its commands return, and turns whatever they raise into one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, **extra: Any) -> NoReturn:
        """Runs one command and exits with its code."""
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra |= {"standalone_mode": False}
        run_super = super().main

        def invoke() -> Any:
            return run_super(words, prog_name or "spyre-build", **extra)

        sys.exit(_shown_as_json(invoke) if _wants_json(words) else _shown_to_people(invoke))


def _wants_json(words: Sequence[str]) -> bool:
    before = words[: words.index("--")] if "--" in words else words
    return "--json" in before


def _attempt(invoke: Any) -> Result | Failure | int:
    """What came of it; an int is the code of something that already said what it had to, such as `--help`."""
    try:
        outcome = invoke()
    except BaseException as error:  # noqa: BLE001  this is the one place that turns errors into words
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else 1
        # Ctrl-C twice must not turn into a traceback while the first is being told.
        with contextlib.suppress(KeyboardInterrupt):
            return describe(error)
        return INTERRUPTED
    # typer turns Ctrl-C into a plain code.
    if outcome == INTERRUPTED:
        return describe(KeyboardInterrupt())
    return outcome if isinstance(outcome, (Result, int)) else 0


def _shown_as_json(invoke: Any) -> int:
    with reserved_stdout() as out:
        outcome = _attempt(invoke)
        if isinstance(outcome, int):
            return outcome
        if isinstance(outcome, Failure):
            _say(outcome)
            data: Any = {"error": outcome.error, "hint": outcome.hint, "exit": outcome.code}
        else:
            data = outcome.data
        return _written(out, lambda: write_json(out, data), outcome.code)


def _shown_to_people(invoke: Any) -> int:
    outcome = _attempt(invoke)
    if isinstance(outcome, int):
        return outcome
    if isinstance(outcome, Failure):
        _say(outcome)
        return outcome.code
    return _written(sys.stdout, lambda: write_lines(sys.stdout, outcome.lines), outcome.code)


def _written(out: TextIO, write: Callable[[], None], code: int) -> int:
    """Writes the result and gives the exit code; a reader that has gone is no error, a full disk is one."""
    try:
        write()
    except OSError as error:
        # Otherwise Python would flush, and complain, once more when it ends.
        with contextlib.suppress(OSError):
            out.close()
        if isinstance(error, BrokenPipeError):
            return code
        failure = describe(error)
        _say(failure)
        return failure.code
    return code


def _say(failure: Failure) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"error: {visible(failure.error)}\n")
        if failure.hint:
            sys.stderr.write(f"hint: {visible(failure.hint)}\n")


app = typer.Typer(
    cls=Shell,
    name="spyre-build",
    help="Compile PyTorch models without a device; run the precompiled code on the device.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spyre-build {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Compile PyTorch models without a device; run the precompiled code on the device."""


for module in (submit, status, watch, cancel, logs, explain, report, inspect, run, verify, replay, worker):
    app.command()(module.command)
app.add_typer(cache.app, name="cache")
app.command()(doctor.command)


def main() -> NoReturn:
    """Entry point of `spyre-build`."""
    app()
    raise AssertionError


if __name__ == "__main__":
    main()
