"""Builds whose submitter has gone are brought to their end by the workers' machines: a steward in every worker adopts
them, each in a process of its own, for the end of a build needs torch and a worker's main process has none.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from spyre_build import builds
from spyre_build.taking import is_driven
from spyre_cache.errors import CacheError

if TYPE_CHECKING:
    from spyre_build.builds import BuildRecord
    from spyre_cache.cache import Cache
    from spyre_cache.claims import Claims

_log = logging.getLogger(__name__)
OK, FAILED = 0, 1  # exit codes of `watch`
_LOOKS = 2  # a submitter that leaves lets its token die; one look may fall between two drivers
_AT_ONCE = 2
_OLD_SECONDS = 24 * 3600.0
_TRIES = 3
_AGAIN_SECONDS = 30.0  # after an adoption in vain; doubled after each


class Steward:
    """Looks for builds that nobody drives; call it every few seconds."""

    def __init__(self, cache: Cache, claims: Claims, *, url: str, broker: str) -> None:
        self._cache, self._claims, self._url, self._broker = cache, claims, url, broker
        self._ended: set[str] = set()
        self._alone: dict[str, int] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._vain: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def __call__(self) -> None:
        """One look; what cannot be reached now is looked at the next time."""
        for build, child in list(self._children.items()):
            if child.poll() is not None:
                del self._children[build]
                self._ended_in(build, child.returncode)
        with suppress(CacheError):
            for build in self._cache.builds.list():
                if build not in self._ended and build not in self._children:
                    self._look(build)

    def _look(self, build: str) -> None:
        record = self._record(build)
        # A start that lies ahead is of another clock, or made up: as good as old.
        if record is None or record.status != "running" or abs(time.time() - record.started) > _OLD_SECONDS:
            self._ended.add(build)
            self._alone.pop(build, None)
        elif record.plan is None or is_driven(self._claims, build) or builds.is_held_here(self._cache, build):
            self._alone.pop(build, None)
        else:
            self._alone[build] = self._alone.get(build, 0) + 1
            rested = time.monotonic() >= self._not_before.get(build, 0.0)
            if self._alone[build] >= _LOOKS and rested and len(self._children) < _AT_ONCE:
                self._adopt(build)

    def _ended_in(self, build: str, code: int) -> None:
        """After an adoption: one that came to nothing is tried again later, a few times."""
        if code in {OK, FAILED}:  # it ended well, or the build has failed and its record says so
            self._vain.pop(build, None)
            return
        tries = self._vain[build] = self._vain.get(build, 0) + 1
        _log.warning("build %s could not be brought to its end (exit %d, %d times so far)", build, code, tries)
        self._not_before[build] = time.monotonic() + _AGAIN_SECONDS * 2 ** (tries - 1)
        if tries >= _TRIES:
            # Another machine may have more luck, and a person with `watch`; this one has done what it can.
            self._ended.add(build)

    def _record(self, build: str) -> BuildRecord | None:
        try:
            return builds.read(self._cache, build)
        except CacheError:
            return None

    def _adopt(self, build: str) -> None:
        _log.info("nobody drives build %s any more; adopting it", build)
        # By the environment, which others cannot see: the URLs may hold passwords.
        urls = {"SPYRE_BUILD_CACHE": self._url, "SPYRE_BUILD_BROKER": self._broker}
        self._children[build] = subprocess.Popen(
            [sys.executable, "-m", "spyre_build.cli.main", "watch", build, "--adopt", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **urls, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._alone.pop(build, None)

    def close(self) -> None:
        """Lets go of what was adopted: another steward takes it up."""
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(5)
