"""Claims among the processes of one machine, in a cache's directory.

    claims/ab/<key>    the claim; not flushed to disk, for it means nothing after a power cut
    tokens/<token>     locked by the process that holds it, modified "at" the time it dies

A token lives until that time, and no longer than the process that locked its file, unless it is detached. Whoever finds
it dead removes it, so that it stays dead whatever the clock does.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from spyre_cache.claims import CLAIM_SECONDS, MAX_CLAIM_BYTES, TOKEN_SECONDS, Claim, Claims, Standing
from spyre_cache.codec import decode, encode
from spyre_cache.errors import CacheUnavailableError, InvalidRecordError
from spyre_cache.fs import translated
from spyre_cache.leases import check_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from spyre_cache.root import Root

_KEY = re.compile(r"[0-9a-f]{64}")
_LOCK = "claims"
_HELD, _DETACHED = b"held", b"detached"


class DiskClaims(Claims):
    """Claims in a cache directory; all that is read or decided happens under one lock."""

    def __init__(self, root: Root) -> None:
        """Touches nothing yet."""
        self._root = root
        self._tokens = root.path / "tokens"
        self._mine: dict[str, int] = {}

    def now(self) -> float:
        """This machine's clock."""
        return time.time()

    def read(self, keys: Iterable[str]) -> Mapping[str, Standing]:
        """As `Claims.read`."""
        with self._exclusive():
            found = {key: self._claim(key) for key in keys}
            return {
                key: Standing(
                    claim,
                    frozenset(
                        token
                        for token in ((claim.owner, claim.hedge) if claim is not None else ())
                        if token and self._lives(token)
                    ),
                )
                for key, claim in found.items()
            }

    def swap(self, key: str, old: Claim | None, new: Claim | None) -> bool:
        """As `Claims.swap`."""
        with self._exclusive():
            return self._swap(key, old, new)

    def swap_many(self, swaps: Iterable[tuple[str, Claim | None, Claim | None]]) -> set[str]:
        """As `Claims.swap_many`."""
        with self._exclusive():
            return {key for key, old, new in swaps if self._swap(key, old, new)}

    def begin(self, token: str, seconds: float = TOKEN_SECONDS, *, detached: bool = False) -> None:
        """As `Claims.begin`."""
        with self._exclusive():
            self._drop(token)
            self._root.ensure(self._tokens)
            self._sweep()
            path = self._token_path(token)
            self._root.fs.unlink(path)
            descriptor = self._root.fs.append(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                self._root.fs.write(descriptor, _DETACHED if detached else _HELD)
                self._prolong(path, seconds)
            except BaseException:
                self._root.fs.close(descriptor)
                raise
            if detached:
                self._root.fs.close(descriptor)
            else:
                self._mine[token] = descriptor

    def renew(self, tokens: Iterable[str], seconds: float = TOKEN_SECONDS) -> set[str]:
        """As `Claims.renew`."""
        dead = set()
        with self._exclusive():
            for token in tokens:
                if self._lives(token):
                    self._prolong(self._token_path(token), seconds)
                else:
                    dead.add(token)
        return dead

    def end(self, token: str) -> None:
        """As `Claims.end`."""
        with self._exclusive():
            self._bury(token)

    def alive(self, tokens: Iterable[str]) -> set[str]:
        """As `Claims.alive`."""
        with self._exclusive():
            return {token for token in tokens if self._lives(token)}

    def epoch(self) -> str:
        """Never changes: a directory forgets nothing."""
        return "disk"

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with self._root.lock(_LOCK), translated("claiming", self._root.path):
            yield

    # --- claims ---

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise InvalidRecordError(f"an action key is 64 lowercase hex digits, not {key[:80]!r}")
        return self._root.path / "claims" / key[:2] / key

    def _claim(self, key: str) -> Claim | None:
        path = self._path(key)
        try:
            if time.time() - path.stat().st_mtime > CLAIM_SECONDS:
                self._root.fs.unlink(path)
                return None
            claim = decode(self._root.read(path, MAX_CLAIM_BYTES) or b"", Claim, limit=MAX_CLAIM_BYTES)
        except FileNotFoundError:
            return None
        except InvalidRecordError:
            self._root.fs.unlink(path)
            return None
        return claim if claim.action == key else None

    def _swap(self, key: str, old: Claim | None, new: Claim | None) -> bool:
        if self._claim(key) != old:
            return False
        path = self._path(key)
        if new is None:
            self._root.fs.unlink(path)
            return True
        self._root.ensure(path.parent)
        descriptor, temporary = self._root.temporary()
        try:
            self._root.fs.write(descriptor, encode(new))
            self._root.fs.rename(temporary, path)
        finally:
            self._root.fs.close(descriptor)
            self._root.fs.unlink(temporary)
        return True

    # --- tokens ---

    def _token_path(self, token: str) -> Path:
        return self._tokens / check_id(token)

    def _prolong(self, path: Path, seconds: float) -> None:
        dies = time.time() + seconds
        os.utime(path, (dies, dies))

    def _lives(self, token: str) -> bool:
        """Whether a token lives; one that does not is gone afterwards."""
        path = self._token_path(token)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            lives = time.time() < os.fstat(descriptor).st_mtime
            if lives and os.pread(descriptor, len(_DETACHED) + 1, 0) != _DETACHED:
                lives = not _lockable(descriptor)
        finally:
            os.close(descriptor)
        if not lives:
            self._bury(token)
        return lives

    def _bury(self, token: str) -> None:
        self._root.fs.unlink(self._token_path(token))
        self._drop(token)

    def _drop(self, token: str) -> None:
        descriptor = self._mine.pop(token, None)
        if descriptor is not None:
            self._root.fs.close(descriptor)

    def _sweep(self) -> None:
        """Removes what dead processes left; there are never more than a few."""
        for name in self._root.names(self._tokens):
            with suppress(CacheUnavailableError, InvalidRecordError):
                self._lives(name)


def _lockable(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
