"""`explain`: why each fragment hit or missed."""

from typing import Annotated

import typer

from spyre_build.cli.options import CacheOption, JsonOption
from spyre_build.cli.output import Result


def explain(
    what: Annotated[str, typer.Argument(metavar="BUILD|REF", help="A build (its id, or `last`), or a model.")],
    fragment: Annotated[
        str, typer.Argument(metavar="[FRAGMENT]", help="One fragment's digest, or its beginning.", show_default=False)
    ] = "",
    cache: CacheOption = None,
    _json: JsonOption = False,
) -> Result:
    """Say why each fragment hit or missed, and what differs from the nearest."""
    from spyre_build import misses
    from spyre_build.cli.opening import open_cache
    from spyre_build.cli.present import explanation_lines

    opened = open_cache(cache)
    build = misses.build_of(opened, what)
    found = misses.explain_build(opened, build, fragment)
    data = {"build": build.id, "manifest": build.manifest or None, "fragments": [e.as_json() for e in found]}
    return Result(data=data, lines=explanation_lines(build, found))


command = explain
