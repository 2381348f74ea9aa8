"""`cache gc`: which tier, how much may stay, and what went, as one JSON object."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from spyre_build.errors import UsageError

if TYPE_CHECKING:
    from spyre_cache.cache import Cache
    from spyre_cache.stores.tiers import Tier

_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?) ?([kKMGT]?)(i?)B?")
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_bytes(text: str) -> int:
    """Bytes: `1500000`, `10GB`, `1.5 GiB`.

    Raises:
        UsageError: anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise UsageError(f"a number of bytes is written 500MB, 10GB or 1.5GiB, not {text[:40]!r}")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].upper()])


def collect(
    cache: Cache,
    *,
    dry_run: bool,
    grace_hours: float | None = None,
    tier: str | None = None,
    max_bytes: int | None = None,
) -> dict[str, Any]:
    """Removes from one tier what nothing needs, then what was used least until the rest fits.

    Args:
        cache: a cache that may be written to.
        dry_run: only count.
        grace_hours: what is younger stays; None for the default.
        tier: its number in the list, 0 for the directory, or its URL; None for the directory.
        max_bytes: what may stay; None for no bound.

    Raises:
        UsageError: no such tier, or one that forgets by itself.
        CacheUnavailableError: the tier cannot be reached, or another collection is under way there.
    """
    grace = {} if grace_hours is None else {"grace": grace_hours * 3600}
    chosen = _chosen(cache, tier)
    if chosen is None:
        return _collect_directory(cache, grace, max_bytes, dry_run=dry_run)
    from spyre_cache.remote_gc import collect_objects
    from spyre_cache.stores.object import ObjectStore
    from spyre_cache.stores.object_documents import ObjectDocuments

    with chosen.asked() as stores:
        if not isinstance(stores.blobs, ObjectStore) or not isinstance(stores.documents, ObjectDocuments):
            raise UsageError(
                f"{chosen.name} forgets by itself what is not used, and needs no collecting",
                hint="`ttl` in its URL and maxmemory of the Redis say how much it keeps",
            )
        found = collect_objects(stores.blobs, stores.documents, max_bytes=max_bytes, dry_run=dry_run, **grace)
    data = dict(msgspec.structs.asdict(found))
    return {"tier": data.pop("url"), **data}


def _collect_directory(
    cache: Cache, grace: dict[str, float], max_bytes: int | None, *, dry_run: bool
) -> dict[str, Any]:
    data: dict[str, Any] = {"tier": str(cache.path)}
    data |= msgspec.structs.asdict(cache.collect(dry_run=dry_run, **grace))
    if max_bytes is None:
        return data
    from spyre_cache.budget import shrink

    durable = next((each for each in cache.tiers if each.durable), None)
    if durable is None:
        found = shrink(cache.local, max_bytes, dry_run=dry_run)
    else:
        with durable.asked() as stores:
            found = shrink(cache.local, max_bytes, durable=(stores.blobs, stores.documents), dry_run=dry_run)
    return data | {
        "evicted": found.blobs,
        "evicted_bytes": found.blob_bytes,
        "kept_bytes": found.kept_bytes,
        "kept_blobs": max(0, data["kept_blobs"] - found.blobs),
    }


def _chosen(cache: Cache, text: str | None) -> Tier | None:
    """The tier that a user's word stands for; None for the directory."""
    from spyre_cache.stores.urls import shown

    names = [str(cache.path), *(tier.name for tier in cache.tiers)]
    if text is None or text in {"0", names[0]}:
        return None
    for number, tier in enumerate(cache.tiers, 1):
        if text == str(number) or shown(text) == tier.name:
            return tier
    given = shown(text) if "://" in text else text
    known = ", ".join(f"{number} {name}" for number, name in enumerate(names))
    raise UsageError(
        f"a tier is named by its number or URL, and {given[:200]!r} is none of this cache: {known}",
        hint="give the list of tiers with --cache",
    )
