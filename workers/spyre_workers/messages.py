"""What is said between builds and workers: small, of digests and names only; a stranger's schema is refused by name."""

from __future__ import annotations

from typing import Literal

from spyre_cache.codec import Record
from spyre_cache.digest import Digest  # noqa: TC001  msgspec reads the annotations

Urgency = Literal["interactive", "warm"]


class Task(Record, frozen=True, kw_only=True):
    """Compile this, if nobody has or does.

    Attributes:
        action: the key; its document and fragment are in the shared cache.
        build: on whose behalf.
        hedge: the running one is overdue; a second run is welcome.
    """

    schema: Literal["task/1"] = "task/1"
    action: str
    build: str
    hedge: bool = False


class Event(Record, frozen=True, kw_only=True):
    """Something happened to an action; every build hears of every action and minds its own.

    An event is a hint: it may be lost or come twice. The action cache and the claims have the truth.

    Attributes:
        kind: `started` and `finished` are a run's; `failed` ends an action without a result that would be cached;
            `crashed` says that a run ended with nothing and another may follow; `lost` that a run was replaced;
            `unstored` that a run's worker cannot store what it makes, for the reason in `text`, and tries on.
        action: the key.
        build: the build on whose behalf it ran.
        worker: who ran it.
        at: seconds since the epoch by the worker's clock; for people and traces.
        seconds: how long it ran, once it has ended.
        result: blob of the encoded ActionResult, for `failed`.
        text: one line for people.
    """

    schema: Literal["event/1"] = "event/1"
    kind: Literal["started", "finished", "failed", "crashed", "lost", "unstored"]
    action: str
    build: str
    worker: str
    at: float
    seconds: float = 0.0
    result: Digest | None = None
    text: str = ""
