"""`logs`: what the compiler said."""

from typing import Annotated

import typer

from spyre_build.cli.options import CacheOption, JsonOption
from spyre_build.cli.output import Result


def logs(
    build: Annotated[str, typer.Argument(metavar="BUILD", help="A build's id, its beginning, or `last`.")],
    fragment: Annotated[
        str, typer.Argument(metavar="[FRAGMENT]", help="One fragment's digest, or its beginning.", show_default=False)
    ] = "",
    cache: CacheOption = None,
    _json: JsonOption = False,
) -> Result:
    """Show the compilers' logs of a build, failed ones first."""
    from spyre_build import builds
    from spyre_build.cli.opening import open_cache
    from spyre_build.cli.present import log_lines

    opened = open_cache(cache)
    record = builds.find(opened, build)
    found = builds.logs(opened, record, fragment)
    return Result(data={"build": record.id, "logs": found}, lines=log_lines(found))


command = logs
