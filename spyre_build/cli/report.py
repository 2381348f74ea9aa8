"""`report`: a build as a page to look at and to send around, and as a trace."""

from typing import Annotated

import typer

from spyre_build.cli.options import BrokerOption, BuildArgument, CacheOption, JsonOption
from spyre_build.cli.output import Result


def report(
    build: BuildArgument,
    *,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="The HTML page. Default: report.html.", show_default=False),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Also the trace, for ui.perfetto.dev or chrome://tracing.", show_default=False
        ),
    ] = None,
    cache: CacheOption = None,
    broker: BrokerOption = None,
    _json: JsonOption = False,
) -> Result:
    """Write a self-contained page about a build: what hit, why the rest missed, what took the time."""
    from spyre_build.cli.opening import claims_of, open_cache
    from spyre_build.report.writing import write_report

    opened = open_cache(cache)
    data = write_report(opened, build, "report.html" if output is None else output, trace, claims_of(opened, broker))
    lines = [f"{data['report']}: build {data['build']}, {data['status']}"]
    if data["trace"]:
        lines.append(f"{data['trace']}: open it at https://ui.perfetto.dev")
    return Result(data=data, lines=lines)


command = report
