"""`worker`: compile for a fleet."""

import logging
from typing import Annotated, Any

import typer

from spyre_build.cli.options import (
    BrokerOption,
    CacheOption,
    ImportOption,
    JsonOption,
)
from spyre_build.cli.output import Result, visible


class _OneLine(logging.Formatter):
    """A line a message, whatever is in it; a traceback comes below, line by line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the library's name
        return visible(super().formatMessage(record), keep="\t")

    def formatException(self, ei: Any) -> str:  # noqa: N802  the library's name
        return "\n".join(visible(line, keep="\t") for line in super().formatException(ei).split("\n"))


def worker(
    *,
    broker: BrokerOption = None,
    cache: CacheOption = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Compilations at once. Default: one a core.", min=1, max=1024)
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(metavar="T,T", help="Compile for these only. Default: all that this machine's architecture can."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="small,large", help="Sizes of fragments to take. Default: both.")
    ] = None,
    health: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Answer /healthz, /readyz and /metrics there.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this worker. Default: host and process.")] = None,
    imports: ImportOption = None,
    drain: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long what runs may go on after SIGTERM.", min=0)
    ] = 600.0,
    _json: JsonOption = False,
) -> Result:
    """Compile fragments for whoever submits to this broker, until SIGTERM.

    SIGTERM and Ctrl-C drain: what runs is finished, what has not begun goes to other workers; a second one ends what
    runs. Workers and submitters meet in a tier of the cache that all of them share; a directory alone will do when the
    broker is on this machine too.
    """
    from spyre_build.cli.opening import settings_of
    from spyre_build.working import work

    settings = settings_of(cache, broker=broker)
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for noisy in ("celery", "kombu"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    ending = work(
        settings.broker,
        settings.cache,
        slots=concurrency,
        targets=targets,
        classes=classes,
        health=health or "",
        name=name or "",
        imports=tuple(imports or ()),
        drain_seconds=drain,
    )
    return Result(data={"status": ending}, lines=[f"worker {ending}"])


command = worker
