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
from urllib.parse import parse_qsl, unquote, urlsplit

from spyre_cache.errors import CacheUnavailableError

TierKind = Literal["redis", "object"]

_KINDS: Final[dict[str, TierKind]] = {
    "redis": "redis", "rediss": "redis", "valkey": "redis", "valkeys": "redis",
    "s3": "object", "gs": "object", "az": "object", "file": "object",
}  # fmt: skip
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")
_MEANT = re.compile(rf"({'|'.join(_KINDS)})(:|//)", re.IGNORECASE)
_SHOWABLE = re.compile(
    r"([a-z][a-z0-9+.-]*)://(?:[^/?#]*@)?((?:\[[0-9a-f:.]*\]?|[^\s/?#@:\[\]]*)(?::[0-9]*)?)(/[^?#@]*)?(?:[?#][^@]*)?",
    re.IGNORECASE,
)
_PATH = re.compile(r"(file://)?(/|\./|\.\./|~)[^:@]*@.*", re.IGNORECASE)
_BUCKET = re.compile(r"(s3|gs|az)://[^:@]+@.*", re.IGNORECASE)
_LISTING = re.compile(r"\b(?:rediss?|valkeys?|s3|gs|az|https?|amqps?)(?::/{0,2}|//)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
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
    paths = [part for part in parts if not is_meant_as_url(part) and not _SCHEME.match(part)]
    if len(paths) > 1:
        raise CacheUnavailableError(
            f"one tier of a cache is a directory of this machine, but {shown(paths[0])!r} and {shown(paths[1])!r} "
            "came; give a directory that machines share as file:///dir"
        )
    if paths and parts[0] != paths[0]:
        raise CacheUnavailableError(f"tiers are given nearest first, so the directory {shown(paths[0])!r} comes first")
    directory = _directory(Path(paths[0])) if paths else default_directory()
    _check_apart(directory, remotes)
    return Tiers(directory, remotes)


def _check_apart(directory: Path, remotes: tuple[Remote, ...]) -> None:
    """Refuses tiers that are one place by two names: a copy in the second would be none."""
    seen: dict[tuple[str, ...], str] = {}
    folders = [(str(directory), Path(os.path.realpath(directory)))]
    for remote in remotes:
        place = _place(remote)
        if place in seen:
            raise CacheUnavailableError(f"every tier is given once, but {remote.shown} came twice")
        seen[place] = remote.shown
        if place[0] == "file":
            folders.append((remote.shown, Path(place[1])))
    for index, (name, folder) in enumerate(folders):
        for other, second in folders[:index]:
            if folder.is_relative_to(second) or second.is_relative_to(folder):
                raise CacheUnavailableError(
                    f"each tier has a directory of its own, but {name[:200]} and {other[:200]} are one within the other"
                )


def _place(remote: Remote) -> tuple[str, ...]:
    """What is the same for two spellings of one place; of a URL that is none, the URL."""
    try:
        parts = urlsplit(remote.url)
        if parts.scheme == "file":
            return ("file", os.path.realpath(unquote(parts.path)))
        if remote.kind == "object":
            return (parts.scheme, parts.netloc, "/".join(filter(None, parts.path.split("/"))))
        options = dict(parse_qsl(parts.query))
        database = options.get("db") or parts.path.strip("/") or "0"
        host, port = parts.hostname or "", str(parts.port or 6379)
        return ("redis", host, port, str(int(database)), options.get("prefix", "spyre"))
    except ValueError:
        return ("", remote.url)


def parse_remote(text: str) -> Remote | None:
    """A tier beyond the directory, or None for a path.

    Raises:
        CacheUnavailableError: a URL of something else.
    """
    match = _SCHEME.match(text)
    meant = match or _MEANT.match(text)
    if meant is None:
        return None
    kind = _KINDS.get(meant[1].lower())
    if match is None or kind is None or not match[2]:
        raise CacheUnavailableError(
            f"a tier is a directory's path or one of redis://, rediss://, s3://, gs://, az:// and file:///, and "
            f"{meant[0]}… is none"
        )
    # What takes URLs apart takes some of these out silently; a bucket's names and folders would have them.
    if _CONTROL.search(text if kind == "redis" else unquote(text)):
        raise CacheUnavailableError(f"the URL of a tier has no control characters, but {shown(text)!r} has one")
    url = _VALKEY.sub(r"redis\1://", match[1].lower() + text[len(match[1]) :])
    return Remote(kind, url, shown(url))


def is_meant_as_url(text: str) -> bool:
    """Whether a tier is no path, though it may lack a slash or a colon to be a URL."""
    return "://" in text or _MEANT.match(text) is not None


def shown(url: str) -> str:
    """A URL, or what was given for one, fit for messages: no user, password or options.

    A password's own `/`, `?`, `#` or `@` hide where it ends unless they are escaped: then all but the scheme is left
    out.
    """
    match = _SHOWABLE.fullmatch(url)
    if match is not None:
        return f"{match[1].lower()}://{match[2]}{match[3] or ''}"[:200]
    scheme = _SCHEME.match(url)
    kind = None if scheme is None else _KINDS.get(scheme[1].lower())
    if _PATH.fullmatch(url) or _BUCKET.fullmatch(url) or ("@" not in url and kind != "redis"):
        return re.split("[?#]", url, maxsplit=1)[0][:200]
    return "…" if scheme is None or kind is None else f"{scheme[0].lower()}…"


def hide_passwords(text: str) -> str:
    """A text of somebody else's making, with what stands between a scheme and the last `@` of its line left out."""
    return "\n".join(_without_password(line) for line in text.split("\n"))


def _without_password(line: str) -> str:
    scheme, at = _LISTING.search(line), line.rfind("@")
    return line if scheme is None or at < scheme.end() else f"{line[: scheme.end()]}…{line[at:]}"


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
