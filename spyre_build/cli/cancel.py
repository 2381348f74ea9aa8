"""`cancel`: end a build."""

from spyre_build.cli.options import BrokerOption, BuildArgument, CacheOption, JsonOption
from spyre_build.cli.output import Result


def cancel(
    build: BuildArgument, *, cache: CacheOption = None, broker: BrokerOption = None, _json: JsonOption = False
) -> Result:
    """Cancel a build; what it has compiled is kept."""
    from spyre_build import following
    from spyre_build.cli.opening import settings_of
    from spyre_cache.cache import Cache

    settings = settings_of(cache, broker=broker)
    with Cache.open(settings.cache) as opened:
        data = following.cancel(build, cache=opened, broker=settings.broker)
    how = "whoever drives it ends it" if data["driven"] else "nobody drove it"
    return Result(data=data, lines=[f"cancelled build {data['build']}: {how}"])


command = cancel
