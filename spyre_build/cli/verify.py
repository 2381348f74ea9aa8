"""`verify`: check a precompiled model."""

from pathlib import Path
from typing import Annotated

import typer

from spyre_build.cli.options import CacheOption, DeviceOption, ImportOption, JsonOption, RefArgument
from spyre_build.cli.output import Result


def verify(
    ref: RefArgument,
    *,
    device: DeviceOption = "cpu",
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="F", help="safetensors file or folder of shards, for --weights external.", show_default=False
        ),
    ] = None,
    imports: ImportOption = None,
    cache: CacheOption = None,
    _json: JsonOption = False,
) -> Result:
    """Check a model: complete, every blob sound, results as eager's."""
    from spyre_build import importing
    from spyre_build import verify as checks
    from spyre_build.cli.opening import open_cache
    from spyre_build.cli.present import verification_lines

    importing.import_all(imports or ())
    report = checks.verify(open_cache(cache), ref, device=device, weights=weights)
    data = report.as_json()
    return Result(data=data, lines=verification_lines(data), code=0 if report.ok else 1)


command = verify
