"""Objects in a bucket or directory, one by one and many at a time, through `obstore`."""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from spyre_cache.errors import LimitExceededError, ReadOnlyCacheError
from spyre_cache.stores.object_errors import translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from obstore.store import ObjectStore as AnyStore

    from spyre_cache.stores.base import Buffer

PARALLEL = 16  # requests under way at once
MAX_OBJECT_BYTES = 256 << 20
_CLOCK = "clock"
_CLOCK_SECONDS = 600.0  # how long a measured difference of clocks is believed
_PAGE = 1000

_UNFINISHED = re.compile(r"#[0-9]+$")  # what the library calls a file before it is whole

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Meta(NamedTuple):
    """What a listing says of an object: its path below the prefix, when it was written, its bytes, its etag."""

    path: str
    modified: float
    size: int
    etag: str


class Stored(NamedTuple):
    """An object as it was read."""

    data: bytes
    meta: Meta


class Objects:
    """Objects below the prefix of one bucket, or files below one directory; every method translates errors.

    Threads share it. A forked child gets threads of its own, but the library's runtime does not survive a fork: open
    stores after it.

    Attributes:
        shown: the URL, fit for messages.
        directory: where the files are when this is a directory.
    """

    def __init__(self, store: AnyStore, shown: str, directory: Path | None = None) -> None:
        self.shown = shown
        self.directory = directory
        self._store = store
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pool_pid = 0
        self._skew: tuple[float, float] | None = None  # of the store's clock, and when it was measured

    # --- one object ---

    def get(self, path: str, limit: int = MAX_OBJECT_BYTES) -> Stored | None:
        """An object, whole, or None.

        Raises:
            LimitExceededError: it has more bytes than `limit`.
        """
        import obstore

        with self._translated(f"reading {path}"):
            try:
                result = obstore.get(self._store, path)
                meta = _meta(result.meta)
                if meta.size > limit:
                    raise LimitExceededError(
                        f"{path} in {self.shown} should have at most {limit} bytes, and has {meta.size}"
                    )
                return Stored(bytes(result.bytes()), meta)
            except FileNotFoundError:
                return None
        raise AssertionError

    def head(self, path: str) -> Meta | None:
        """What there is to know of an object without reading it, or None."""
        import obstore

        with self._translated(f"looking for {path}"):
            try:
                return _meta(obstore.head(self._store, path))
            except FileNotFoundError:
                return None
        raise AssertionError

    def put(self, path: str, data: Buffer) -> None:
        """Stores an object in place of any other."""
        import obstore

        with self._translated(f"writing {path}"):
            obstore.put(self._store, path, data, mode="overwrite", use_multipart=False)
            self._synced(path)

    def create(self, path: str, data: Buffer) -> bool:
        """Stores an object unless there is one; True when this call did.

        An answer that got lost makes the library ask again and find its own object: False then, though it is ours.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._translated(f"writing {path}"):
            try:
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            self._synced(path)
            return True
        raise AssertionError

    def update(self, path: str, data: Buffer, etag: str) -> bool:
        """Stores an object in place of the one with this etag; False when there is another or none. Not for files."""
        import obstore
        from obstore.exceptions import PreconditionError

        with self._translated(f"writing {path}"):
            try:
                obstore.put(self._store, path, data, mode={"e_tag": etag}, use_multipart=False)
            except (PreconditionError, FileNotFoundError):
                return False
            return True
        raise AssertionError

    def delete(self, paths: Iterable[str]) -> None:
        """Removes objects, many in one request; those that are not there are no error."""
        import obstore

        several = list(paths)
        # One by one in a directory, where the first that is not there would end the request.
        step = 1 if self.directory is not None else _PAGE
        for start in range(0, len(several), step):
            part = several[start : start + step]
            with self._translated(f"removing {part[0]}"), suppress(FileNotFoundError):
                obstore.delete(self._store, part)

    # --- many ---

    def list(self, prefix: str) -> Iterator[Meta]:
        """Every object below a path (which ends between two slashes), in no order."""
        import obstore

        with self._translated(f"listing {prefix}"):
            for page in obstore.list(self._store, prefix, chunk_size=_PAGE):
                yield from map(_meta, page)

    def each(self, function: Callable[[_In], _Out], items: Iterable[_In]) -> Iterator[_Out]:
        """Results of a function in the items' order, several at work at a time and few waiting.

        Not from within such a function: it would wait for its own kind.
        """
        from collections import deque

        waiting: deque[Any] = deque()
        try:
            for item in items:
                waiting.append(self._threads().submit(function, item))
                if len(waiting) >= 2 * PARALLEL:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            for future in waiting:
                if not future.cancelled():
                    future.exception()

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None or self._pool_pid != os.getpid():
                self._pool = ThreadPoolExecutor(PARALLEL, "spyre-objects")
                self._pool_pid = os.getpid()
            return self._pool

    # --- time ---

    def now(self) -> float:
        """Seconds since the epoch by the store's own clock, to about a second.

        Measured by writing an object and looking when that was; where it cannot be written, this machine's clock.
        """
        skew = self._skew
        if skew is None or time.monotonic() - skew[1] > _CLOCK_SECONDS:
            skew = (self._measured(), time.monotonic())
            self._skew = skew
        return time.time() + skew[0]

    def _measured(self) -> float:
        before = time.time()
        try:
            self.put(_CLOCK, b"what time is it\n")
            meta = self.head(_CLOCK)
        except ReadOnlyCacheError:
            return 0.0
        if meta is None:
            return 0.0
        # A bucket counts whole seconds: a difference that they explain is none.
        after = time.time()
        if before - 1 <= meta.modified <= after:
            return 0.0
        return meta.modified - before

    # --- directories ---

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """One at a time among all who use this directory: what etags are for in a bucket, where this does nothing."""
        if self.directory is None:
            yield
            return
        path = self.directory / "locks" / name
        with self._translated(f"locking {name}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def touch_file(self, path: str) -> None:
        """Sets a file's time to now; nothing when it is not there."""
        assert self.directory is not None
        with self._translated(f"touching {path}"), suppress(FileNotFoundError):
            os.utime(self.directory / path)

    def remove_unfinished(self, seconds: float) -> None:
        """Removes what writers that died have left half-written in a directory, when it is that old."""
        for path in self.directory.rglob("*#*") if self.directory is not None else ():
            with suppress(OSError):
                if _UNFINISHED.search(path.name) and time.time() - path.stat().st_mtime >= seconds:
                    path.unlink()

    def _synced(self, path: str) -> None:
        """A file and its name survive a power cut; buckets see to that themselves."""
        if self.directory is None:
            return
        for place in (self.directory / path, (self.directory / path).parent):
            with suppress(FileNotFoundError):
                fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

    def close(self) -> None:
        """Ends its threads."""
        with self._lock:
            if self._pool is not None and self._pool_pid == os.getpid():
                self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, NotImplementedError, ValueError) as error:
            raise translated(error, self.shown, doing) from None


def _meta(found: Any) -> Meta:
    return Meta(found["path"], found["last_modified"].timestamp(), found["size"], found["e_tag"] or "")
