"""`submit`: compile a model."""

import time
from typing import Annotated, Any

import typer

from spyre_build.cli.options import BrokerOption, CacheOption, JsonOption, TargetOption
from spyre_build.cli.output import Result

PLAN = "plan:"


def submit(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC",
            help="path/to/file.py:factory, package.module:factory, a directory with a Hugging Face config.json, or "
            "plan:BUILD to build once more from the plan of an earlier build.",
        ),
    ],
    *,
    target: TargetOption = None,
    tag: Annotated[
        str | None, typer.Option(metavar="NAME[:VERSION]", help="Release the result under this name.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="store|external|none",
            help="Keep tensors in the cache, or only their names (given at load), or nothing. Default: store.",
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="PASS", help="Where to cut: blocks(max-nodes=600,min-nodes=3) is the default.", show_default=False
        ),
    ] = None,
    seq: Annotated[int, typer.Option(help="Sequence length, for a config.json.", min=1)] = 64,
    batch: Annotated[int, typer.Option(help="Batch size, for a config.json.", min=1)] = 1,
    jobs: Annotated[int | None, typer.Option(help="Parallel compilations. Default: one a core.")] = None,
    audit: Annotated[float | None, typer.Option(metavar="PCT", help="Compile this share twice and compare.")] = None,
    cache: CacheOption = None,
    broker: BrokerOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Come back once all is handed out; the workers finish the build.")
    ] = False,
    replay: Annotated[
        bool, typer.Option(help="Replay golden vectors of a plan:BUILD; without, nothing is released.")
    ] = True,
    _json: JsonOption = False,
) -> Result:
    """Compile a model without a device."""
    from spyre_build import progress
    from spyre_build.cli.opening import settings_of

    started = time.time()
    settings = settings_of(cache, targets=target, weights=weights, jobs=jobs, audit=audit, broker=broker)
    with progress.display() as events:
        if spec.startswith(PLAN):
            return _again(spec.removeprefix(PLAN), settings, events, detach=detach, replay=replay)
        events.phase("import")
        from spyre_build.submission import submit as build_model

        build = build_model(
            spec,
            targets=settings.targets or None,
            tag=tag,
            weights=settings.weights,
            cache=settings.cache,
            jobs=settings.jobs,
            audit=settings.audit,
            partition=partition,
            events=events,
            seq=seq,
            batch=batch,
            broker=settings.broker,
            detach=detach,
            started=started,
        )
    return _result(build.to_json())


def _again(name: str, settings: Any, events: Any, *, detach: bool, replay: bool) -> Result:
    from spyre_build.following import rebuild
    from spyre_cache.cache import Cache

    with Cache.open(settings.cache, write=settings.write) as opened:
        opened.on_note(events.note)
        build = rebuild(
            name, cache=opened, broker=settings.broker, jobs=settings.jobs, events=events, detach=detach, replay=replay
        )
    return _result(build.to_json())


def _result(data: dict[str, Any]) -> Result:
    from spyre_build.cli.present import build_lines

    return Result(data=data, lines=build_lines(data), code=0 if data["status"] in {"ok", "running"} else 1)


command = submit
