"""`inspect`: what is in a precompiled model."""

from spyre_build.cli.options import CacheOption, JsonOption, RefArgument
from spyre_build.cli.output import Result


def inspect(ref: RefArgument, cache: CacheOption = None, _json: JsonOption = False) -> Result:
    """Show entries, fragments, targets, sizes and weights of a model."""
    from spyre_build import inspection
    from spyre_build.cli.opening import open_cache
    from spyre_build.cli.present import inspection_lines

    data = inspection.describe(open_cache(cache), ref)
    return Result(data=data, lines=inspection_lines(data))


command = inspect
