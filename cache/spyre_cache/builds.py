"""Documents about builds: bounded, replaced whole, none of the cache's business what they say."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from spyre_cache.errors import LimitExceededError
from spyre_cache.leases import check_id

if TYPE_CHECKING:
    from spyre_cache.root import Root

MAX_BUILDS = 500
MAX_BUILD_BYTES = 16 << 20


class Builds:
    """The last `MAX_BUILDS` builds by id."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._directory = root.path / "builds"

    def put(self, build_id: str, document: bytes) -> None:
        """Stores or replaces a build's document; the oldest beyond the bound go.

        Raises:
            InvalidRecordError: the id is no id.
            LimitExceededError: more than `MAX_BUILD_BYTES`.
        """
        path = self._directory / check_id(build_id)
        if len(document) > MAX_BUILD_BYTES:
            raise LimitExceededError(
                f"a build's document has at most {MAX_BUILD_BYTES} bytes, but {len(document)} came"
            )
        with self._root.lock("builds"):
            before = self._times()
            self._root.replace(path, document)
            # File times have a coarse grain, and the latest put shall come first.
            latest = max((time for name, time in before.items() if name != build_id), default=0)
            if path.stat().st_mtime_ns <= latest:
                os.utime(path, ns=(latest + 1, latest + 1))
            for old in self.list()[MAX_BUILDS:]:
                self._root.remove(self._directory / old)

    def get(self, build_id: str) -> bytes | None:
        """A build's document, or None when there is none.

        Raises:
            InvalidRecordError: the id is no id.
        """
        return self._root.read(self._directory / check_id(build_id), MAX_BUILD_BYTES)

    def list(self) -> list[str]:
        """Ids, the latest put first."""
        times = self._times()
        return sorted(times, key=lambda name: (-times[name], name))

    def _times(self) -> dict[str, int]:
        found = {}
        for name in self._root.names(self._directory):
            with suppress(OSError):
                found[name] = (self._directory / name).stat().st_mtime_ns
        return found
