"""A cache's URL: its tiers, nearest first, separated by commas.

    /home/me/cache,redis://cache:6379/0,s3://bucket/prefix

One directory of this machine, which the default one stands in for, then what machines share: `redis://` and `rediss://`
(hot: small blobs and results, for a while), `s3://`, `gs://`, `az://` and `file:///` (durable: everything).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from spyre_cache.errors import CacheUnavailableError

TierKind = Literal["redis", "object"]

_KINDS: Final[dict[str, TierKind]] = {
    "redis": "redis", "rediss": "redis", "valkey": "redis", "valkeys": "redis",
    "s3": "object", "gs": "object", "az": "object", "file": "object",
}  # fmt: skip
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")
_VALKEY = re.compile(r"valkey(s?)://")
MAX_TIERS = 8


class Remote(NamedTuple):
    """A tier beyond the directory.

    Attributes:
        kind: what it is.
        url: as it was given, perhaps with a password.
        shown: fit for messages.
    """

    kind: TierKind
    url: str
    shown: str


class Tiers(NamedTuple):
    """A URL taken apart."""

    directory: Path
    remotes: tuple[Remote, ...]


def parse_tiers(url: str | Path) -> Tiers:
    """Takes a cache's URL apart; a `Path` is a directory, whatever characters it has.

    Raises:
        CacheUnavailableError: no such URL; nothing has been asked of any tier yet.
    """
    if isinstance(url, Path):
        return Tiers(_directory(url), ())
    parts = [part.strip() for part in url.split(",")]
    if "\0" in url or not all(parts):
        raise CacheUnavailableError(
            "a cache is a directory's path, or a list of tiers separated by commas, but an empty one came"
        )
    if len(parts) > MAX_TIERS:
        raise CacheUnavailableError(f"a cache has at most {MAX_TIERS} tiers, but {len(parts)} came")
    remotes = tuple(remote for part in parts if (remote := parse_remote(part)) is not None)
    paths = [part for part in parts if not _SCHEME.match(part)]
    if len(paths) > 1:
        raise CacheUnavailableError(
            f"one tier of a cache is a directory of this machine, but {paths[0][:200]!r} and {paths[1][:200]!r} came; "
            "give a directory that machines share as file:///dir"
        )
    if paths and parts[0] != paths[0]:
        raise CacheUnavailableError(f"tiers are given nearest first, so the directory {paths[0][:200]!r} comes first")
    if len({remote.url for remote in remotes}) < len(remotes):
        raise CacheUnavailableError("every tier is given once, but one came twice")
    return Tiers(_directory(Path(paths[0])) if paths else default_directory(), remotes)


def parse_remote(text: str) -> Remote | None:
    """A tier beyond the directory, or None for a path.

    Raises:
        CacheUnavailableError: a URL of something else.
    """
    match = _SCHEME.match(text)
    if match is None:
        return None
    kind = _KINDS.get(match[1].lower())
    if kind is None or not match[2]:
        raise CacheUnavailableError(
            f"a tier is a directory's path or one of redis://, rediss://, s3://, gs://, az:// and file:///, and "
            f"{match[0]}… is none"
        )
    url = _VALKEY.sub(r"redis\1://", match[1].lower() + text[len(match[1]) :])
    return Remote(kind, url, shown(url))


def shown(url: str) -> str:
    """A tier's URL fit for messages: no password, no options."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return url.partition("://")[0] + "://…"
    return f"{parts.scheme}://{host}{parts.path}"


def default_directory() -> Path:
    """Where the directory is when none is named: `spyre-build` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say to ignore a relative path here.
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "spyre-build"


def _directory(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise CacheUnavailableError(f"the cache {str(path)[:200]!r} cannot be found: {error}") from None
