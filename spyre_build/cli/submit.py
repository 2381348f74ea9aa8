"""`submit`: compile a model."""

from typing import Annotated

import typer

from spyre_build.cli.options import CacheOption, JsonOption, TargetOption
from spyre_build.cli.output import Result


def submit(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC",
            help="path/to/file.py:factory, package.module:factory, or a directory with a Hugging Face config.json.",
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
    _json: JsonOption = False,
) -> Result:
    """Compile a model without a device."""
    from spyre_build import progress
    from spyre_build.cli.opening import settings_of
    from spyre_build.cli.present import build_lines

    settings = settings_of(cache, targets=target, weights=weights, jobs=jobs, audit=audit)
    with progress.display() as events:
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
        )
    data = build.to_json()
    return Result(data=data, lines=build_lines(data), code=0 if data["status"] == "ok" else 1)


command = submit
