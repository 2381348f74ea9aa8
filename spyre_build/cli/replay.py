"""`replay`: compile a failed fragment again."""

from typing import Annotated

import typer

from spyre_build.cli.options import CacheOption, ImportOption, JsonOption
from spyre_build.cli.output import Result


def replay(
    failure: Annotated[
        str, typer.Argument(metavar="FAILURE", help="Action key of a failure, or its beginning, as `status` shows it.")
    ],
    imports: ImportOption = None,
    cache: CacheOption = None,
    _json: JsonOption = False,
) -> Result:
    """Compile a kept failed fragment again and show its log."""
    from spyre_build import builds, importing
    from spyre_build.cli.opening import open_cache
    from spyre_build.cli.present import replay_lines

    data = builds.replay_failure(open_cache(cache), failure, importing.import_all(imports or ()))
    return Result(data=data, lines=replay_lines(data), code=0 if data["status"] == "ok" else 1)


command = replay
