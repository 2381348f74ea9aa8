"""`spyre_build.load`: the runtime's loader with the client's settings and references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spyre_build.config import load_settings
from spyre_cache.cache import Cache
from spyre_cache.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from spyre_runtime.load import LoadedModel


def load(
    ref: Any,
    *,
    device: str = "cpu",
    weights: Any = None,
    entry: str | None = None,
    types: Iterable[type] = (),
    policy: str | None = None,
    cache: Cache | str | Path | None = None,
) -> LoadedModel:
    """Loads a precompiled model; under `strict`, the default, nothing is ever compiled.

    Args:
        ref: `name:version`, `name@channel`, `blake3:…` or a prefix of it, a Digest, or a Build.
        device: `cpu` runs compiled fragments, `eager` interprets them.
        weights: a safetensors file, a directory of shards or a state dict, for models that do not store theirs.
        entry: load this entry alone.
        types: classes of results that are not imported by name.
        policy: `strict` or `fetch`; by default the settings'.
        cache: a cache or its path; by default the one a Build was made in, else the settings'.

    Raises:
        SpyreRuntimeError: it cannot be loaded; `MissingPieceError` names what is absent.
        CacheError: the cache cannot be read, or the reference is unknown.
    """
    from spyre_runtime.load import load as load_from

    if cache is None:
        cache = getattr(ref, "cache", None) if hasattr(ref, "manifest") else None
    settings = load_settings()
    opened = cache if isinstance(cache, Cache) else Cache.open(cache or settings.cache)
    manifest = getattr(ref, "manifest", ref)
    if not isinstance(manifest, (str, Digest)):
        from spyre_build.errors import UsageError

        raise UsageError(f"a reference is a string, a Digest or a Build with a manifest, not {type(ref).__name__}")
    return load_from(
        opened, manifest, device=device, weights=weights, entry=entry, types=types, policy=policy or settings.policy
    )
