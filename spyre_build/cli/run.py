"""`run`: call a precompiled model."""

from pathlib import Path
from typing import Annotated

import typer

from spyre_build.cli.options import CacheOption, DeviceOption, ImportOption, JsonOption, RefArgument
from spyre_build.cli.output import Result


def run(
    ref: RefArgument,
    *,
    device: DeviceOption = "cpu",
    entry: Annotated[
        str | None, typer.Option(metavar="E", help="Which entry; needed where there are several.", show_default=False)
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="F",
            help="safetensors or npz, keyed by argument path (args.0, kwargs.mask). Default: the recorded inputs.",
            show_default=False,
        ),
    ] = None,
    outputs: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Write results here, keyed by result path (out.logits).", show_default=False),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="F", help="safetensors file or folder of shards, for --weights external.", show_default=False
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="strict|fetch|build", help="What to do when something is missing. Default: strict, an error."
        ),
    ] = None,
    imports: ImportOption = None,
    cache: CacheOption = None,
    _json: JsonOption = False,
) -> Result:
    """Run a precompiled model; nothing is compiled by surprise."""
    from spyre_build.cli.opening import open_cache, settings_of
    from spyre_build.cli.present import run_lines
    from spyre_build.inspection import resolve

    settings = settings_of(cache, policy=policy)
    opened = open_cache(cache, wait_for_tiers=False)
    resolve(opened, ref)  # a wrong word is answered before torch is imported
    from spyre_build import calling, importing, progress

    wanted = calling.Wanted(
        device=device,
        policy=settings.policy,
        entry=entry,
        inputs=inputs,
        outputs=outputs,
        weights=weights,
        imports=importing.import_all(imports or ()),
    )
    with progress.display() as events:
        data = calling.run(opened, ref, wanted, events)
    return Result(data=data, lines=run_lines(data))


command = run
