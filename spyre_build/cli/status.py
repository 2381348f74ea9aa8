"""`status`: the builds that a cache knows."""

from typing import Annotated

import typer

from spyre_build.cli.options import BrokerOption, CacheOption, JsonOption
from spyre_build.cli.output import Result


def status(
    build: Annotated[
        str | None, typer.Argument(metavar="[BUILD]", help="One build, or `last`; without it, all.", show_default=False)
    ] = None,
    cache: CacheOption = None,
    broker: BrokerOption = None,
    _json: JsonOption = False,
) -> Result:
    """List builds, newest first, or show one."""
    from spyre_build import builds
    from spyre_build.cli.opening import claims_of, open_cache
    from spyre_build.cli.present import build_record_lines, builds_lines

    opened = open_cache(cache)
    claims = claims_of(opened, broker)
    if build is not None:
        record = builds.find(opened, build)
        one = builds.as_json(opened, record, claims)
        return Result(data=one, lines=build_record_lines(one))
    unreadable: list[str] = []
    found = [builds.as_json(opened, record, claims) for record in builds.recent(opened, unreadable)]
    return Result(data={"builds": found, "unreadable": unreadable}, lines=builds_lines(found, unreadable))


command = status
