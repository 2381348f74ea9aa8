"""`watch`: follow a build, and bring it to its end when nobody else does."""

from typing import Annotated

import typer

from spyre_build.cli.options import BrokerOption, BuildArgument, CacheOption, JsonOption
from spyre_build.cli.output import Result


def watch(
    build: BuildArgument,
    *,
    jobs: Annotated[
        int | None, typer.Option(help="Parallel compilations, where no broker is. Default: one a core.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Watch no longer than this. Default: to the end.", min=0.0, show_default=False)
    ] = None,
    adopt: Annotated[bool, typer.Option("--adopt", hidden=True)] = False,
    cache: CacheOption = None,
    broker: BrokerOption = None,
    _json: JsonOption = False,
) -> Result:
    """Follow a build to its end; if its submitter has gone, go on in its place."""
    from spyre_build import progress
    from spyre_build.cli.opening import settings_of
    from spyre_build.cli.present import build_lines
    from spyre_build.following import watch as follow
    from spyre_cache.cache import Cache

    settings = settings_of(cache, jobs=jobs, broker=broker)
    with Cache.open(settings.cache, write=settings.write) as opened, progress.display() as events:
        opened.on_note(events.note)
        data = follow(
            build, cache=opened, broker=settings.broker, jobs=settings.jobs, events=events, seconds=seconds, adopt=adopt
        )
    return Result(data=data, lines=build_lines(data), code=0 if data["status"] in {"ok", "running"} else 1)


command = watch
