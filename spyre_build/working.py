"""A worker of a fleet, from what the user typed to the process that serves."""

from __future__ import annotations

import logging
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

from spyre_build.errors import UsageError
from spyre_build.plan import choose_targets
from spyre_build.stewarding import Steward
from spyre_build.workshop import check_shared, reach_broker
from spyre_cache.cache import Cache
from spyre_workers.opening import open_claims

if TYPE_CHECKING:
    from spyre_workers.queues import SizeClass
    from spyre_workers.serve import Ending

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def work(  # noqa: PLR0913  the words users type, all by name
    broker: str | None,
    cache: str,
    *,
    slots: int | None = None,
    targets: str | None = None,
    classes: str | None = None,
    health: str = "",
    name: str = "",
    imports: tuple[str, ...] = (),
    drain_seconds: float = 600.0,
) -> Ending:
    """Serves until a signal ends it.

    Args:
        broker: URL of the Redis.
        cache: URL of the cache; its tiers must reach those who submit.
        slots: compilations at once; by default one a core.
        targets: names with commas; by default all this architecture compiles for.
        classes: size classes with commas; by default all.
        health: HOST:PORT of the health endpoint, or empty.
        name: of this worker.
        imports: modules, or Python files, that define custom operators.
        drain_seconds: how long what runs may go on after the first signal.

    Raises:
        UsageError: no broker, or a word that is none, or a cache that others cannot see.
        InfrastructureError: the broker cannot be reached.
        CacheUnavailableError: the cache cannot.
        WorkerError: this machine cannot compile, or the health endpoint cannot be opened.
    """
    if broker is None:
        raise UsageError("a worker needs the broker it works for", hint="--broker redis://host:6379/0")
    if name and not _NAME.fullmatch(name):
        raise UsageError(f"a worker's name is letters, digits and '._-', at most 100, not {name[:80]!r}")
    chosen = tuple(choose_targets([word.strip() for word in targets.split(",")])) if targets else ()
    sizes = _classes(classes)
    from spyre_workers.serve import Duties, replace_process, serve

    given: dict[str, Any] = {} if slots is None else {"slots": slots}
    with Cache.open(cache) as opened:
        opened.on_note(lambda text: logging.getLogger("spyre_workers").warning("%s", text))
        check_shared(opened, broker)
        claims = open_claims(broker, opened)
        reach_broker(claims)
        duties = Duties(
            targets=chosen,
            classes=sizes,
            health=health,
            name=name,
            imports=imports,
            drain_seconds=drain_seconds,
            **given,
        )
        with closing(Steward(opened, claims, url=cache, broker=broker)) as steward:
            ending = serve(broker, opened, claims, duties, steward=steward)
    if ending == "restart":
        replace_process()
    return ending


def _classes(words: str | None) -> tuple[SizeClass, ...]:
    from spyre_workers.queues import CLASSES

    if words is None:
        return CLASSES
    wanted = [word.strip() for word in words.split(",")]
    unknown = [word for word in wanted if word not in CLASSES]
    if unknown:
        raise UsageError(f"the size classes are {' and '.join(CLASSES)}, not {unknown[0][:80]!r}")
    return tuple(size for size in CLASSES if size in wanted)
