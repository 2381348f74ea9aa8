"""`spyre_build.load`: the runtime's loader with the client's settings, references and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spyre_build.config import load_settings
from spyre_build.errors import MissingPieceError, UsageError
from spyre_build.inspection import resolve
from spyre_cache.cache import Cache
from spyre_cache.digest import Digest
from spyre_runtime.errors import MissingPieceError as RuntimeMissingPieceError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from spyre_runtime.load import LoadedModel

POLICIES = ("strict", "fetch", "build")


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
        policy: `strict`; `fetch` interprets what is missing, with one warning; `build` compiles it. By default the
            settings'.
        cache: a cache or its path; by default the one a Build was made in, else the settings'.

    Raises:
        MissingPieceError: something is absent; names it and what differs from the nearest piece there is.
        RefError: nothing has this name.
        SpyreRuntimeError: it cannot be loaded here.
        CacheError: the cache cannot be read.
    """
    from spyre_runtime.load import load as load_from

    settings = load_settings()
    chosen = policy or settings.policy
    if chosen not in POLICIES:
        raise UsageError(f"policy is one of {', '.join(POLICIES)}, not {chosen[:40]!r}")
    manifest = getattr(ref, "manifest", ref)
    if cache is None and manifest is not ref:
        cache = ref.cache
    if not isinstance(manifest, (str, Digest)):
        raise UsageError(
            f"a reference is a string, a Digest or a Build that has a manifest, but {type(ref).__name__} came",
            hint="build.failures says why a build has none",
        )
    opened = cache if isinstance(cache, Cache) else Cache.open(cache or settings.cache, wait_for_tiers=False)
    digest = resolve(opened, manifest) if isinstance(manifest, str) else manifest
    if chosen == "build":
        digest = _completed(opened, digest, device)
    try:
        return load_from(
            opened,
            digest,
            device=device,
            weights=weights,
            entry=entry,
            types=types,
            policy="strict" if chosen == "build" else chosen,
        )
    except RuntimeMissingPieceError as error:
        from spyre_build.misses import nearest_to_missing

        near = nearest_to_missing(opened, opened.manifest(digest), error.fragment, error.target)
        raise MissingPieceError(f"{error}{near}") from None


def _completed(cache: Cache, digest: Digest, device: str) -> Digest:
    if device != "cpu":
        return digest
    from spyre_build.completing import complete
    from spyre_build.frontend.custom import declare

    manifest = cache.manifest(digest)
    return complete(cache, digest, manifest, imports=declare(manifest.custom_ops).imports)
