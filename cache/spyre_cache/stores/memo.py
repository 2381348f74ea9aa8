"""Remembered verdicts: this very file was hashed and found sound, so that gigabytes are not hashed at every load.

A verdict names the inode and its times. Any write, truncation or replacement changes one of them; a verdict that does
not fit, or cannot be read, is none. Bits that rot on the disk change neither: `cache verify` reads everything.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from spyre_cache.errors import CacheError

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from spyre_cache.root import Root

WORTH_BYTES = 1 << 20  # below, hashing is as fast as reading the verdict


def _identity(status: os.stat_result) -> bytes:
    return (
        f"sound/1 {status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n"
    ).encode("ascii")


class Verdicts:
    """Files of a cache known to be sound."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def path(self, blob: Path) -> Path:
        """Where the verdict on a blob's file lies."""
        return self._root.path / "memo" / blob.name[:2] / blob.name

    def is_sound(self, blob: Path, status: os.stat_result) -> bool:
        """Whether the file with this status was verified as it is."""
        if status.st_size < WORTH_BYTES:
            return False
        try:
            return self.path(blob).read_bytes() == _identity(status)
        except OSError:
            return False

    def record(self, blob: Path, status: os.stat_result) -> None:
        """Remembers a verified file; failing to is no failure."""
        if status.st_size < WORTH_BYTES or self._root.read_only:
            return
        with suppress(OSError, CacheError):
            memo = self.path(blob)
            self._root.ensure(memo.parent)
            fd, temporary = self._root.temporary()
            try:
                # Not flushed: what a crash leaves of it does not fit, and is none.
                self._root.fs.write(fd, _identity(status))
                self._root.fs.rename(temporary, memo)
            finally:
                self._root.fs.close(fd)
                self._root.fs.unlink(temporary)

    def forget(self, blob: Path) -> None:
        """Removes the verdict on a blob's file."""
        with suppress(OSError):
            self._root.fs.unlink(self.path(blob))
