"""Who drives a build: one process at a time, and anybody once that one is gone."""

from __future__ import annotations

import secrets
import socket
import threading
from contextlib import suppress
from typing import Self

from msgspec.structs import replace

from spyre_build.errors import BuildTakenError
from spyre_cache.claims import RENEW_SECONDS, Claim, Claims
from spyre_cache.digest import derive_key
from spyre_cache.errors import CacheUnavailableError


def driver_key(build: str) -> str:
    """The claim that says who drives a build: 64 hex digits, like an action's, and never one."""
    return derive_key("spyre-build/driver/v1", build.encode())


def is_driven(claims: Claims, build: str) -> bool:
    """Whether a living process drives a build.

    Raises:
        CacheUnavailableError: the claims cannot be reached.
    """
    standing = claims.read([driver_key(build)])[driver_key(build)]
    return standing.claim is not None and standing.claim.owner in standing.alive


class Driving:
    """That this process drives a build; a context manager.

    Attributes:
        token: lives while this process does and renews it; what the build has queued counts as long.
    """

    def __init__(self, claims: Claims, build: str) -> None:
        self._claims, self._build = claims, build
        self.token = f"driver-{build}-{secrets.token_hex(4)}"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._claim: Claim | None = None

    def __enter__(self) -> Self:
        """Takes the build over, unless somebody is at it; after a failure it may be tried again.

        Raises:
            BuildTakenError: another process drives it.
            CacheUnavailableError: the claims cannot be reached.
        """
        key = driver_key(self._build)
        self._claims.begin(self.token)
        self._claim = Claim(
            action=key, state="running", owner=self.token, build=self._build, worker=socket.gethostname(),
            since=self._claims.now(),
        )  # fmt: skip
        standing = self._claims.read([key])[key]
        owner = standing.claim.owner if standing.claim is not None else self.token  # ours, if only the answer was lost
        busy = owner != self.token and owner in standing.alive
        if busy or not self._claims.swap(key, standing.claim, self._claim):
            self._claims.end(self.token)
            raise BuildTakenError(f"the build {self._build} is driven by another process")
        self._thread = threading.Thread(target=self._beat, name="spyre-driver-heart", daemon=True)
        self._thread.start()
        return self

    def _beat(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            with suppress(CacheUnavailableError):
                if self._claims.renew([self.token]):
                    self._again()

    def _again(self) -> None:
        """Lives on under a new token: ours has lapsed (Redis was lost, or this machine was frozen).

        Should somebody have taken the build over meanwhile, both bring it to the same end.
        """
        self.token = f"driver-{self._build}-{secrets.token_hex(4)}"
        self._claims.begin(self.token)
        key = driver_key(self._build)
        standing = self._claims.read([key])[key]
        if standing.claim is None or standing.claim.owner not in standing.alive:
            assert self._claim is not None  # made when this was entered
            claim = replace(self._claim, owner=self.token)
            if self._claims.swap(key, standing.claim, claim):
                self._claim = claim

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)
        with suppress(CacheUnavailableError):
            self._claims.swap(driver_key(self._build), self._claim, None)
            self._claims.end(self.token)
