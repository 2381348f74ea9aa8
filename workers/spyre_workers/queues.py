"""Which queue an action goes to, and what its compilation may use.

A queue is named after a toolchain, a target and a size class, so that two versions on one fleet never take each other's
work, and a few large fragments do not stand before many small ones. The class goes by the bytes of the fragment, which
are in its digest: looking at its nodes would mean reading it, for each of ten thousand.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Literal, get_args

from spyre_cache.codec import encode
from spyre_cache.objects.target import TARGETS
from spyre_workers.compile import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spyre_cache.objects.action import Action
    from spyre_cache.objects.target import Target, Toolchain
    from spyre_workers.messages import Urgency

SizeClass = Literal["small", "large"]
CLASSES: Final[tuple[SizeClass, ...]] = get_args(SizeClass)

SMALL_BYTES: Final = 256 << 10
"""An encoded fragment up to here is small: some six hundred nodes, as many as the default cut puts into one block."""

LIMITS: Final[dict[SizeClass, Limits]] = {
    "small": Limits(seconds=900.0, memory_bytes=8 << 30),
    "large": Limits(seconds=1800.0, memory_bytes=16 << 30),
}

PRIORITIES: Final[dict[Urgency, int]] = {"interactive": 0, "warm": 9}
"""Lower comes first."""

VISIBILITY_SECONDS: Final = int(2 * max(limits.seconds for limits in LIMITS.values()) + 300)
"""How long the broker waits for an ack until it hands a task to another worker: the second line of defence, behind the
claims, and it must not strike while a compilation is still within its limit."""


def size_class(action: Action) -> SizeClass:
    """The class of an action's fragment."""
    return "small" if action.fragment.size <= SMALL_BYTES else "large"


def limits_of(action: Action) -> Limits:
    """What an action's compilation may use on a fleet."""
    return LIMITS[size_class(action)]


def toolchain_id(toolchain: Toolchain) -> str:
    """A short name of a toolchain, for queues and people: 12 hex digits."""
    return hashlib.sha256(encode(toolchain)).hexdigest()[:12]


def queue_name(toolchain: Toolchain, target: Target, size: SizeClass) -> str:
    """The queue of actions of this kind."""
    return f"spyre.{toolchain_id(toolchain)}.{target.name.replace('/', '-')}.{size}"


def queue_of(action: Action) -> str:
    """The queue that an action goes to."""
    return queue_name(action.toolchain, action.target, size_class(action))


def queues_of(toolchain: Toolchain, targets: Iterable[Target], classes: Sequence[SizeClass] = CLASSES) -> list[str]:
    """The queues that a worker with this toolchain serves; small ones first."""
    chosen = list(targets)
    return [queue_name(toolchain, target, size) for size in classes for target in chosen]


def compilable(arch: str) -> list[Target]:
    """The CPU targets that a machine of this architecture compiles for; it need not be able to run them."""
    return [target for target in TARGETS.values() if target.kind == "cpu" and target.arch == arch]
