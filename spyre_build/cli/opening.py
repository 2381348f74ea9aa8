"""From flags to settings and an opened cache."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from spyre_build import config
from spyre_build.cli.output import visible

if TYPE_CHECKING:
    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims


def settings_of(cache: str | None, **flags: object) -> config.Settings:
    """Settings with the flags of a command over them.

    The toolchain folder goes on as a variable, because compiling processes read it from there.
    """
    settings = config.load_settings({"cache": cache, **flags})
    if "toolchain_dir" in settings.origins:
        os.environ["SPYRE_BUILD_TOOLCHAIN_DIR"] = str(settings.toolchain_dir)
    return settings


def open_cache(cache: str | None, *, writing: bool = False, wait_for_tiers: bool = True) -> Cache:
    """The cache that the settings name; one that may not be written to serves whoever only reads.

    Without `wait_for_tiers`, tiers that are away are done without for as long as that is possible.

    Raises:
        SettingsError: no such setting.
        CacheUnavailableError: it cannot be used, or cannot be written to and `writing` is asked for.
    """
    from spyre_cache.cache import Cache
    from spyre_cache.stores.urls import parse_tiers

    settings = settings_of(cache)
    path = parse_tiers(settings.cache).directory
    locked = os.access(path, os.F_OK) and not os.access(path, os.W_OK)
    opened = Cache.open(
        settings.cache, read_only=locked and not writing, write=settings.write, wait_for_tiers=wait_for_tiers
    )
    opened.on_note(_say)
    return opened


def _say(text: str) -> None:
    print(f"note: {visible(text)}", file=sys.stderr)


def claims_of(cache: Cache, broker: str | None) -> Claims | None:
    """The broker's claims, which tell what builds are driven elsewhere; None without a broker.

    Raises:
        CacheUnavailableError: the broker cannot be reached.
    """
    from spyre_workers.opening import open_claims

    url = settings_of(None, broker=broker).broker
    return None if url is None else open_claims(url, cache)
