"""A build on the terminal: a live line on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

from spyre_build.cli.output import count, visible
from spyre_build.events import NullEvents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

    from spyre_build.events import Events, Outcome

SHORT = len("blake3:") + 12


@contextlib.contextmanager
def display(stream: TextIO | None = None, *, quiet: bool = False) -> Iterator[Events]:
    """Shows a build until the block ends.

    Args:
        stream: where to (default: stderr).
        quiet: show nothing.
    """
    out = sys.stderr if stream is None else stream
    if quiet:
        yield NullEvents()
    elif out.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}:
        with _live(out) as events:
            yield events
    else:
        yield PlainEvents(out)


class PlainEvents:
    """One line for each thing that happens, with the seconds since the start: readable in a CI log."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._start = time.monotonic()
        self._total = self._done = 0
        self._phase = ""

    def _line(self, text: str) -> None:
        # A closed pipe must not end a build.
        with contextlib.suppress(OSError, ValueError):
            self._out.write(f"[{time.monotonic() - self._start:7.1f}s] {visible(text)}\n")
            self._out.flush()

    def phase(self, name: str) -> None:
        """Says the phase, once."""
        if name != self._phase:
            self._line(name)
        self._phase = name

    def planned(self, total: int, hits: int) -> None:
        """Says how much there is to do."""
        self._total, self._done = total, hits
        whose = "its target" if total == 1 else "their targets"
        self._line(f"{count(total, 'fragment')} for {whose}: {hits} in the cache, {total - hits} to compile")

    def started(self, fragment: str, target: str) -> None:
        """Nothing: the end of a compilation tells enough."""

    def finished(self, fragment: str, target: str, outcome: Outcome, seconds: float) -> None:
        """Says the outcome and how far the build is."""
        if outcome != "hit":
            self._done += 1
        self._line(f"{outcome} {fragment[:SHORT]} for {target} in {seconds:.1f} s ({self._done}/{self._total})")

    def note(self, text: str) -> None:
        """Says it."""
        self._line(f"note: {text}")


@contextlib.contextmanager
def _live(out: TextIO) -> Iterator[Events]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=out), transient=True) as progress:
        yield LiveEvents(progress)


class LiveEvents:
    """A bar that names what is being compiled; phases and notes scroll by above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task("starting", total=None)
        self._running: dict[tuple[str, str], float] = {}
        self._plan: tuple[int, int] | None = None

    def phase(self, name: str) -> None:
        """Names the phase; only of compiling is it known how much there is."""
        self._running.clear()
        total, done = self._plan if name == "compile" and self._plan is not None else (None, 0)
        self._progress.update(self._task, description=visible(name), total=total, completed=done)

    def planned(self, total: int, hits: int) -> None:
        """Gives the bar its length, now and in the compile phase."""
        self._plan = (total, hits)
        self._progress.update(self._task, total=total, completed=hits)

    def started(self, fragment: str, target: str) -> None:
        """Adds it to what is running."""
        self._running[fragment, target] = time.monotonic()
        self._show()

    def finished(self, fragment: str, target: str, outcome: Outcome, seconds: float) -> None:
        """Moves the bar; a failure stays on the screen."""
        self._running.pop((fragment, target), None)
        if outcome != "hit":
            self._progress.advance(self._task)
        if outcome == "failed":
            self._print(f"failed {fragment[:SHORT]} for {target} after {seconds:.1f} s")
        self._show()

    def note(self, text: str) -> None:
        """Prints it above the bar."""
        self._print(f"note: {text}")

    def _print(self, text: str) -> None:
        self._progress.console.print(visible(text), markup=False, highlight=False)

    def _show(self) -> None:
        running = sorted(self._running, key=self._running.__getitem__)
        names = " ".join(fragment[len("blake3:") : SHORT] for fragment, _ in running[:4])
        self._progress.update(self._task, description=visible(f"compile {names}"))
