"""Every change the cache makes to a file system goes through here.

One thin layer, so that a test can record the operations of a real run and replay every prefix of them as a crash would
leave it. Reading is not here: it changes nothing.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spyre_cache.errors import CacheError, CacheUnavailableError, ReadOnlyCacheError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EROFS, errno.EACCES, errno.EPERM}
_MAX_WRITE = 16 << 20  # one system call; larger blocks gain nothing and delay an interrupt


class FileSystem:
    """Operations that change a directory tree; each is one system call, or a loop that finishes one."""

    def mkdir(self, path: Path) -> bool:
        """True when this call made the directory."""
        try:
            path.mkdir()
        except FileExistsError:
            return False
        return True

    def create(self, path: Path, mode: int = 0o644) -> int:
        """A descriptor for writing a file that did not exist."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def append(self, path: Path, mode: int = 0o644) -> int:
        """A descriptor for adding to a file, made when absent."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode)

    def write(self, fd: int, data: bytes | memoryview) -> None:
        """All of `data` at the descriptor's position."""
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(fd, view[:_MAX_WRITE]) :]

    def fsync(self, fd: int) -> None:
        """Makes a file's contents durable."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Lets go of a descriptor."""
        os.close(fd)

    def link(self, source: Path, target: Path) -> None:
        """A second name; FileExistsError when the target is taken."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; an existing target is replaced."""
        os.rename(source, target)  # noqa: PTH104  one call, no pathlib return value to carry

    def unlink(self, path: Path) -> bool:
        """True when this call removed the name."""
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def rmdir(self, path: Path) -> None:
        """Removes an empty directory."""
        path.rmdir()

    def remove_tree(self, path: Path) -> None:
        """Removes a folder and what is in it, as far as the system lets us; links in it are not followed."""
        import shutil  # slow to import, and hardly ever needed

        shutil.rmtree(path, ignore_errors=True)

    def fsync_dir(self, path: Path) -> None:
        """Makes the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def touch(self, path: Path, age: float = 0.0) -> None:
        """Modification time becomes `age` seconds ago; a vanished file is no error.

        Said in full: what the kernel takes for now may be milliseconds old, and order is told by these times.
        """
        moment = time.time_ns() - int(age * 1e9)
        try:
            os.utime(path, ns=(moment, moment))
        except PermissionError:
            os.utime(path)  # another user's file: only its owner may say which moment
        except FileNotFoundError:
            return


@contextmanager
def translated(what: str, where: Path, *, writes: bool = True) -> Iterator[None]:
    """Turns an OSError into the cache's own, with the remedy.

    Raises:
        ReadOnlyCacheError: no permission, or a read-only file system.
        CacheUnavailableError: disk full, or anything else the system says.
    """
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.errno in _FULL:
            raise CacheUnavailableError(
                f"{what} needs room in {where}, but: {reason}. Nothing half-written is left; free some space "
                "(`spyre-build cache gc`) or choose another place with --cache"
            ) from error
        if writes and error.errno in _DENIED:
            raise ReadOnlyCacheError(
                f"{what} needs to write in {where}, but: {reason}. Choose a cache you may write with --cache"
            ) from error
        raise CacheUnavailableError(f"{what} failed in {where}: {reason}") from error
