"""Who is at work in a cache, and what they count on being there.

A lease is a file that its holders keep locked and append digests to. Garbage collection reads the leases *after* it has
set a blob aside and before it removes it, and a holder appends *before* it looks whether a blob is there: whichever
comes first, a blob that someone found is not removed.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Self

from spyre_cache.errors import CacheUnavailableError, InvalidRecordError
from spyre_cache.fs import translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from spyre_cache.fs import FileSystem

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HASH_BYTES = 32
_ATTEMPTS = 100


def check_id(text: str) -> str:
    """A name that is safe as one path component.

    Raises:
        InvalidRecordError: it is not.
    """
    if not _ID.fullmatch(text):
        raise InvalidRecordError(f"an id is letters, digits, '.', '_' and '-', at most 128, not {text[:80]!r}")
    return text


class Lease:
    """Held from construction to `close`, and by the kernel's doing no longer than the process lives.

    Several processes may hold the same lease; what any of them holds, it holds.
    """

    def __init__(self, fs: FileSystem, directory: Path, lease_id: str) -> None:
        self._fs = fs
        self.path = directory / check_id(lease_id)
        self.pid = os.getpid()
        self._held: set[str] = set()
        self._lock = threading.Lock()
        with translated("taking a lease", directory):
            self._fd = self._open()

    @property
    def id(self) -> str:
        """Name of its file."""
        return self.path.name

    def _open(self) -> int:
        for _ in range(_ATTEMPTS):
            fd = self._fs.append(self.path)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if _same_file(fd, self.path):
                return fd
            # Its last holder removed it between our open and our lock: take the next one.
            self._fs.close(fd)
        raise CacheUnavailableError(f"the lease {self.path} is removed as fast as it is made; try again")

    def hold(self, hashes: Iterable[str]) -> None:
        """Keeps blobs, by hex hash, from garbage collection while this lease lasts."""
        with self._lock:
            new = [item for item in dict.fromkeys(hashes) if item not in self._held]
            if new:
                with translated("holding blobs", self.path):
                    self._fs.write(self._fd, b"".join(bytes.fromhex(item) for item in new))
                self._held.update(new)

    def heartbeat(self) -> None:
        """Shows life where locks do not reach (a directory shared by machines)."""
        self._fs.touch(self.path)

    def close(self) -> None:
        """Lets go; the file goes with its last holder."""
        with self._lock:
            if self._fd < 0:
                return
            fd, self._fd = self._fd, -1
            # A forked child shares the lock with its parent, whose lease this is.
            if self.pid == os.getpid():
                _remove_if_unheld(self._fs, self.path, fd)
            self._fs.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_if_unheld(fs: FileSystem, path: Path) -> bool:
    """Removes a lease's file when nobody holds it; True when removed."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _remove_if_unheld(fs, path, fd)
    finally:
        os.close(fd)


def _remove_if_unheld(fs: FileSystem, path: Path, fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    try:
        return _same_file(fd, path) and fs.unlink(path)
    except OSError:
        return False


def is_live(path: Path, grace: float) -> bool:
    """Whether a lease is locked by anyone, or showed life in the last `grace` seconds."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if time.time() - os.fstat(fd).st_mtime < grace:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False
    finally:
        os.close(fd)


def held_by(path: Path) -> Iterator[str]:
    """Hashes that a lease holds; a last entry cut short by a crash is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for start in range(0, len(data) - _HASH_BYTES + 1, _HASH_BYTES):
        yield data[start : start + _HASH_BYTES].hex()


def _same_file(fd: int, path: Path) -> bool:
    mine = os.fstat(fd)
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
