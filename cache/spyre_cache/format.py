"""The mark that makes a directory a cache, and what is done to one that has none."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from spyre_cache.errors import CacheUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from spyre_cache.fs import FileSystem

FORMAT_NAME = "FORMAT"
_FORMAT = b"spyre-build cache, format 1\n"
_FORMAT_WORDS = b"spyre-build cache, format "


def open_format(path: Path, fs: FileSystem, *, create: bool) -> None:
    """Checks the mark of a directory; makes both when there is none and `create` says so.

    Raises:
        CacheUnavailableError: not a cache, of a newer format, or absent and not to be made.
        OSError: as the system says.
    """
    try:
        _check(path, (path / FORMAT_NAME).read_bytes())
    except FileNotFoundError:
        if not create:
            raise CacheUnavailableError(f"there is no cache in {path}, and a read-only one is not made") from None
        _create(path, fs)
    except NotADirectoryError:
        raise CacheUnavailableError(f"a cache is a directory, but {path} is not one") from None


def _check(path: Path, found: bytes) -> None:
    if found == _FORMAT:
        return
    if found.startswith(_FORMAT_WORDS):
        version = found.removeprefix(_FORMAT_WORDS).strip()[:20].decode("ascii", "replace")
        raise CacheUnavailableError(
            f"the cache {path} has format {version}, this version knows format 1; use another directory with --cache, "
            "or a newer spyre-build"
        )
    raise CacheUnavailableError(f"{path / FORMAT_NAME} is not the mark of a cache; choose another directory")


def _create(path: Path, fs: FileSystem) -> None:
    for directory in reversed([each for each in (path, *path.parents) if not each.exists()]):
        fs.mkdir(directory)
        fs.fsync_dir(directory.parent)
    # A crash while a cache is made leaves at most our own marker's temporary file.
    strangers = [name for name in os.listdir(path) if not name.startswith(f".{FORMAT_NAME}-")]  # noqa: PTH208
    if strangers and FORMAT_NAME not in strangers:
        raise CacheUnavailableError(
            f"{path} is not a cache: it holds {min(strangers)!r} and no {FORMAT_NAME} file; choose an empty or new "
            "directory"
        )
    temporary = path / f".{FORMAT_NAME}-{os.urandom(8).hex()}"
    fd = fs.create(temporary)
    try:
        fs.write(fd, _FORMAT)
        fs.fsync(fd)
        with suppress(FileExistsError):
            fs.link(temporary, path / FORMAT_NAME)
    finally:
        fs.close(fd)
        fs.unlink(temporary)
    fs.fsync_dir(path)
