"""What a build says while it runs. The display, plain logs and tests listen through one small protocol."""

from __future__ import annotations

from typing import Literal, Protocol

Outcome = Literal["hit", "compiled", "waited", "failed"]


class Events(Protocol):
    """Listens to a build. Called from one thread, in order; must be quick and must not raise."""

    def phase(self, name: str) -> None:
        """A phase begins: import, capture, partition, lookup, dispatch, publish, record, compile, verify.

        Compiling goes on elsewhere from `dispatch` on.
        """

    def planned(self, total: int, hits: int) -> None:
        """The plan is made: `total` distinct (fragment, target) pairs, `hits` of them already in the cache."""

    def started(self, fragment: str, target: str) -> None:
        """A compilation begins. `fragment` is the printed digest `blake3:…`, `target` the target's name."""

    def finished(self, fragment: str, target: str, outcome: Outcome, seconds: float) -> None:
        """A compilation that was started ended with `outcome` after `seconds` of wall-clock time."""

    def note(self, text: str) -> None:
        """Something a person should know that stops nothing; one line."""


class NullEvents:
    """Hears everything and does nothing."""

    def phase(self, name: str) -> None:
        """Ignored."""

    def planned(self, total: int, hits: int) -> None:
        """Ignored."""

    def started(self, fragment: str, target: str) -> None:
        """Ignored."""

    def finished(self, fragment: str, target: str, outcome: Outcome, seconds: float) -> None:
        """Ignored."""

    def note(self, text: str) -> None:
        """Ignored."""
