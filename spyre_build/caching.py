"""What the `cache` commands do: counting, listing, checking, collecting and pinning, as JSON objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from spyre_build.inspection import resolve
from spyre_cache.errors import CacheError

if TYPE_CHECKING:
    from spyre_cache.cache import Cache


def stats(cache: Cache) -> dict[str, Any]:
    """Counts of things, and bytes as they lie on disk; and how each tier does."""
    tiers = [msgspec.structs.asdict(state) for state in cache.tier_states()]
    return dict(msgspec.structs.asdict(cache.stats())) | {"tiers": tiers}


def listing(cache: Cache) -> dict[str, Any]:
    """Every manifest, released ones first and of those the newest first."""
    labels: dict[str, list[str]] = {}
    for release in cache.refs.releases():
        labels.setdefault(release.manifest.hash, []).append(release.label)
    rank = {key: index for index, key in enumerate(labels)}
    manifests = sorted(cache.refs.manifests(), key=lambda d: (rank.get(d.hash, len(rank)), d.hash))
    pinned = {digest.hash for digest in cache.pins.list()}
    found = []
    for digest in manifests:
        entry: dict[str, Any] = {
            "manifest": str(digest),
            "releases": labels.get(digest.hash, []),
            "pinned": digest.hash in pinned,
        }
        try:
            manifest = cache.manifest(digest)
        except CacheError as error:
            found.append(entry | {"targets": [], "entries": [], "weight_mode": None, "error": str(error)})
            continue
        names = list(dict.fromkeys(program.name for program in manifest.programs))
        more = {"targets": list(manifest.targets), "entries": names, "weight_mode": manifest.weight_mode}
        found.append(entry | more | {"error": None})
    return {"path": str(cache.path), "manifests": found}


def pin(cache: Cache, ref: str) -> dict[str, Any]:
    """Keeps a model; `changed` is False when it was kept already."""
    digest = resolve(cache, ref)
    return {"manifest": str(digest), "changed": cache.pins.add(digest)}


def unpin(cache: Cache, ref: str) -> dict[str, Any]:
    """Lets a model go; `changed` is False when it was not kept."""
    digest = resolve(cache, ref)
    return {"manifest": str(digest), "changed": cache.pins.remove(digest)}


def verify(cache: Cache, *, repair: bool) -> dict[str, Any]:
    """Checks every file; `ok` is False while there is a fault that was not repaired."""
    findings = cache.verify(repair=repair)
    return {
        "path": str(cache.path),
        "ok": all(f.repaired or not f.is_error for f in findings),
        "findings": [{"path": f.path, "kind": f.kind, "text": f.message, "repaired": f.repaired} for f in findings],
    }
