"""`cache`: what lies in the cache, whether it is sound, and making room."""

from typing import Annotated

import typer

from spyre_build.cli.options import CacheOption, JsonOption, RefArgument
from spyre_build.cli.output import Result

app = typer.Typer(help="Look into the cache, check it, and make room.", rich_markup_mode=None)


@app.command()
def path(cache: CacheOption = None, _json: JsonOption = False) -> Result:
    """Print the cache's directory."""
    from spyre_build.cli.opening import settings_of
    from spyre_cache.stores.urls import parse_tiers

    where = str(parse_tiers(settings_of(cache).cache).directory)
    return Result(data={"path": where}, lines=[where])


@app.command()
def stats(cache: CacheOption = None, _json: JsonOption = False) -> Result:
    """Count what is in the cache."""
    from spyre_build import caching
    from spyre_build.cli.opening import open_cache
    from spyre_build.cli.present import stats_lines

    data = caching.stats(open_cache(cache))
    return Result(data=data, lines=stats_lines(data))


@app.command()
def ls(cache: CacheOption = None, _json: JsonOption = False) -> Result:
    """List the models: manifests with their releases, targets and entries, and which are pinned."""
    from spyre_build import caching
    from spyre_build.cli.opening import open_cache
    from spyre_build.cli.present import listing_lines

    data = caching.listing(open_cache(cache))
    return Result(data=data, lines=listing_lines(data))


@app.command()
def verify(
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Set damaged files aside, so that they count as absent.")
    ] = False,
    cache: CacheOption = None,
    _json: JsonOption = False,
) -> Result:
    """Check every file of the cache."""
    from spyre_build import caching
    from spyre_build.cli.opening import open_cache
    from spyre_build.cli.present import findings_lines

    data = caching.verify(open_cache(cache, writing=repair), repair=repair)
    return Result(data=data, lines=findings_lines(data), code=0 if data["ok"] else 1)


@app.command()
def gc(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    grace: Annotated[
        float | None, typer.Option(metavar="HOURS", help="Keep what is younger than this.", min=0, show_default=False)
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(
            metavar="N|URL",
            help="The tier to collect, by its place in the list or its URL.  [default: 0, the directory]",
            show_default=False,
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Then drop what was used least until this much is left: 500MB, 10GB.",
            show_default=False,
        ),
    ] = None,
    cache: CacheOption = None,
    _json: JsonOption = False,
) -> Result:
    """Remove what no release, pin, running build or young result needs."""
    from spyre_build import collecting
    from spyre_build.cli.opening import open_cache
    from spyre_build.cli.present import collection_lines

    bound = None if max_bytes is None else collecting.parse_bytes(max_bytes)
    opened = open_cache(cache, writing=not dry_run)
    data = collecting.collect(opened, dry_run=dry_run, grace_hours=grace, tier=tier, max_bytes=bound)
    return Result(data=data, lines=collection_lines(data))


@app.command()
def pin(ref: RefArgument, cache: CacheOption = None, _json: JsonOption = False) -> Result:
    """Keep a model from being collected."""
    from spyre_build import caching
    from spyre_build.cli.opening import open_cache

    data = caching.pin(open_cache(cache, writing=True), ref)
    return Result(data=data, lines=[f"{data['manifest']} {'is pinned' if data['changed'] else 'was pinned already'}"])


@app.command()
def unpin(ref: RefArgument, cache: CacheOption = None, _json: JsonOption = False) -> Result:
    """Let a model be collected again."""
    from spyre_build import caching
    from spyre_build.cli.opening import open_cache

    data = caching.unpin(open_cache(cache, writing=True), ref)
    return Result(data=data, lines=[f"{data['manifest']} {'is unpinned' if data['changed'] else 'was not pinned'}"])
