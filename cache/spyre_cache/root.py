"""The directory of a cache: its format, how files come into it, and who is at work in it.

    FORMAT                 what this directory is; without it, it is not touched
    blobs/ab/<hash>[.z]    plain bytes, or an envelope
    actions/ab/<key>       action results in DSSE envelopes
    documents/ab/<key>     which blob is the action of a key
    events/<key>/<hash>    second, differing results
    manifests/ab/<hash>    which blobs are manifests
    refs/<name>/<version>  releases
    statements/<hash>/<hash>   what is said about a manifest or fragment
    pins/<hash>            manifests that are kept
    builds/<id>            documents about builds
    leases/<id>            who is at work, and what they count on
    claims/ab/<key>        who compiles what
    tokens/<token>         which of them live
    locks/<name>           advisory locks, empty
    memo/ab/<file>         verdicts: checked before use, worthless when lost
    tmp/                   files being written; a dead writer's are removed when the cache is opened
    trash/                 tombstones of a collection under way
    quarantine/            what turned out damaged

A file is written in `tmp/`, flushed, then linked to its name, and the directory is flushed: no reader ever sees part of
one, and after a crash it is whole or absent.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import stat
import threading
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from spyre_cache.errors import CacheUnavailableError, LimitExceededError, ReadOnlyCacheError
from spyre_cache.format import open_format
from spyre_cache.fs import FileSystem, translated
from spyre_cache.leases import Lease, check_id, is_live, remove_if_unheld
from spyre_cache.stores.documents import MAX_DOCUMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    _Finished = tuple[int, Path, Callable[[], None]]
    """A file in `tmp/`: its descriptor, where it is, and what to do once it has its name."""

SESSION = "session-"
GC_LOCK = "gc"  # held by a collection, and by whoever must not meet one half-way
_MAX_PENDING = 128  # files of a batch whose flush waits; each keeps a descriptor open
_FLUSHERS = 16  # concurrent fsyncs share a journal commit

TOP_LEVEL = (
    "blobs", "actions", "documents", "events", "manifests", "refs", "statements", "pins", "builds", "leases", "claims",
    "tokens", "locks", "memo", "tmp", "trash", "quarantine",
)  # fmt: skip


class Root:
    """An opened cache directory. Threads share it; a process that forks keeps it in the child.

    Raises:
        CacheUnavailableError: not a cache directory, or of a newer format.
        ReadOnlyCacheError: it would have to be made, and may not be.
    """

    def __init__(self, path: Path, *, read_only: bool = False, fs: FileSystem | None = None) -> None:
        self.path = path.absolute()
        self.read_only = read_only
        self.fs = fs or FileSystem()
        self.corrupt = 0  # damaged objects met by this process
        self._counter = itertools.count()
        self._lock = threading.RLock()
        self._locked = threading.local()
        self._depth = 0
        self._dirty: dict[Path, None] = {}
        self._pending: dict[Path, _Finished] = {}
        self._pending_documents: dict[Path, _Finished] = {}  # what they refer to is durable before them
        self._lease: Lease | None = None
        self._made: set[Path] = set()
        self._open()

    # --- opening ---

    def _open(self) -> None:
        with translated("opening the cache", self.path):
            open_format(self.path, self.fs, create=not self.read_only)
        if not os.access(self.path, os.W_OK | os.X_OK):
            self.read_only = True
        if not self.read_only:
            self._wipe_stale()

    def _wipe_stale(self) -> None:
        """Removes temporary files whose writers are gone; a cache that may only be read stays as it is."""
        with suppress(OSError):
            for name in self.names(self.path / "leases"):
                if name.startswith(SESSION):
                    remove_if_unheld(self.fs, self.path / "leases" / name)
            for name in self.names(self.path / "tmp"):
                # A name starts with the lease of its writer, taken before the file was made.
                if not is_live(self.path / "leases" / name.partition("~")[0], grace=0):
                    self.fs.unlink(self.path / "tmp" / name)

    # --- being at work ---

    def lease(self) -> Lease:
        """This process's own lease, taken at its first write."""
        with self._lock:
            # A forked child takes its own: its parent's goes when the parent does.
            if self._lease is None or self._lease.pid != os.getpid():
                self.writable("a lease")
                self.ensure(self.path / "leases")
                name = f"{SESSION}{os.getpid()}-{os.urandom(6).hex()}"
                self._lease = Lease(self.fs, self.path / "leases", name)
                weakref.finalize(self, self._lease.close)
            return self._lease

    def hold(self, hashes: Iterable[str]) -> None:
        """Keeps blobs from collection while this process lives, as far as this cache may be written to.

        Where it may not, or where there is no room, looking at what is there still works; the grace of the collection
        then stands in for the hold.
        """
        if not self.read_only:
            with suppress(CacheUnavailableError):
                self.lease().hold(hashes)

    def writable(self, what: str) -> None:
        """Raises ReadOnlyCacheError when this cache was opened for reading only."""
        if self.read_only:
            raise ReadOnlyCacheError(
                f"{what} needs a cache that may be written to, and {self.path} may only be read; "
                "choose another one with --cache"
            )

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Excludes other processes and threads from what `name` stands for; the same thread may enter again."""
        self.writable("a lock")
        mine: set[str] = self._locked.__dict__.setdefault("names", set())
        if name in mine:
            yield
            return
        self.ensure(self.path / "locks")
        with translated("locking", self.path):
            fd = self.fs.append(self.path / "locks" / check_id(name))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            mine.add(name)
            yield
        finally:
            mine.discard(name)
            self.fs.close(fd)

    def close(self) -> None:
        """Makes everything durable and lets go of the lease. Using the root again takes a new one."""
        with self._lock:
            if not self.read_only:
                self.flush()
            if self._lease is not None:
                self._lease.close()
                self._lease = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- directories and temporary files ---

    def ensure(self, directory: Path) -> None:
        """Makes a directory below the root; its name is durable at the next flush."""
        if directory in self._made:
            return
        with translated("making a directory", directory):
            if directory.parent != self.path:
                self.ensure(directory.parent)
            self.fs.mkdir(directory)
            # Also when another process made it: that one may not have flushed the name yet.
            with self._lock:
                self._dirty[directory.parent] = None
        self._made.add(directory)

    def temporary(self, mode: int = 0o644) -> tuple[int, Path]:
        """A new file in `tmp/`, open for writing; whoever asks closes and removes it."""
        self.writable("storing")
        self.ensure(self.path / "tmp")
        name = f"{self.lease().id}~{os.getpid()}.{next(self._counter)}"
        path = self.path / "tmp" / name
        with translated("storing", self.path):
            return self.fs.create(path, mode), path

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Within, `publish` may wait for the end to flush."""
        with self._lock:
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    self.flush()

    def publish(self, fd: int, temporary: Path, final: Path, then: Callable[[], None]) -> None:
        """Gives a finished temporary file its name, now or at the end of the batch; takes over the descriptor.

        A name that is taken is left alone: under one name there is ever one content. `then` runs once it is there.
        """
        with self._lock:
            if final in self._pending:
                self.fs.close(fd)
                self.fs.unlink(temporary)
                return
            self.ensure(final.parent)
            self._pending[final] = (fd, temporary, then)
            self._flush_when_due()

    def _flush_when_due(self) -> None:
        if self._depth == 0 or len(self._pending) + len(self._pending_documents) >= _MAX_PENDING:
            self.flush()

    def is_pending(self, final: Path) -> bool:
        """Whether a file waits for the end of a batch to get its name."""
        return final in self._pending or final in self._pending_documents

    @property
    def has_pending_documents(self) -> bool:
        """Whether documents wait for the end of a batch."""
        return bool(self._pending_documents)

    def flush(self) -> None:
        """All that was published becomes durable, and so visible, in the order contents, names, directories; then,
        likewise, the documents of a batch.
        """
        with self._lock:
            try:
                pending, self._pending = self._pending, {}
                self._name(pending)
            finally:
                documents, self._pending_documents = self._pending_documents, {}
                self._name(documents)

    def _name(self, pending: dict[Path, _Finished]) -> None:
        """Gives finished files their names, durably."""
        try:
            with translated("storing", self.path):
                self._sync_files([fd for fd, _, _ in pending.values()])
                for final, (_, temporary, _) in pending.items():
                    self._link(temporary, final)
                    self._dirty[final.parent] = None
        finally:
            for fd, temporary, _ in pending.values():
                self.fs.close(fd)
                self.fs.unlink(temporary)
        with translated("storing", self.path):
            for directory in list(self._dirty):
                self.fs.fsync_dir(directory)
                del self._dirty[directory]
        for _, _, then in pending.values():
            then()

    def _link(self, temporary: Path, final: Path) -> bool:
        """Gives a file its name; False when another has it."""
        with suppress(FileExistsError):
            self.fs.link(temporary, final)
            return True
        with suppress(FileExistsError):
            if self._clear(final):
                self.fs.link(temporary, final)
                return True
        return False

    def _clear(self, path: Path) -> bool:
        """Sets aside a folder that lies where a file belongs; True when there was one."""
        with suppress(FileNotFoundError):
            status = path.lstat()
            return stat.S_ISDIR(status.st_mode) and self.quarantine(path, status.st_ino)
        return False

    def _sync_files(self, descriptors: list[int]) -> None:
        if len(descriptors) < 4:
            for fd in descriptors:
                self.fs.fsync(fd)
            return
        from concurrent.futures import ThreadPoolExecutor  # slow to import, and most processes never come here

        with ThreadPoolExecutor(_FLUSHERS) as pool:
            for _ in pool.map(self.fs.fsync, descriptors):
                pass

    # --- small documents ---

    def read(self, path: Path, limit: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        """A document, or None when there is none.

        Raises:
            LimitExceededError: it is larger than `limit` bytes.
        """
        with translated("reading", path, writes=False):
            try:
                if not path.is_file():  # a pipe of that name would make us wait
                    return None
                with path.open("rb") as file:
                    data = file.read(limit + 1)
            except (FileNotFoundError, NotADirectoryError):
                return None
        if len(data) > limit:
            raise LimitExceededError(f"{path} has more than the {limit} bytes that a document of its kind may have")
        return data

    def create(self, path: Path, data: bytes, *, age: float = 0.0, batched: bool = False) -> bool:
        """Writes a document unless there is one; True when this call did. Blobs put before are durable before it.

        Args:
            path: of a file below the root.
            data: its bytes.
            age: how many seconds ago it is to have been stored.
            batched: whether it may wait for the end of a batch, for a document that is the same whoever writes it:
                of several who do so at once each may be told that it did.
        """
        if self.is_pending(path) or (not self.read_only and path.is_file()):
            return False
        if batched and self._depth:
            return self._batch_document(path, data)
        return self._document(path, data, age, replace=False)

    def replace(self, path: Path, data: bytes, *, age: float = 0.0) -> None:
        """Writes a document in place of any other; readers see the old one or the new one."""
        self._document(path, data, age, replace=True)

    def _batch_document(self, path: Path, data: bytes) -> bool:
        _check_size(data)
        with self._lock, translated("storing", self.path):
            if self.is_pending(path):
                return False
            self.ensure(path.parent)
            fd, temporary = self.temporary()
            try:
                self.fs.write(fd, data)
            except BaseException:
                self.fs.close(fd)
                self.fs.unlink(temporary)
                raise
            self._pending_documents[path] = (fd, temporary, _nothing)
            self._flush_when_due()
            return True

    def _document(self, path: Path, data: bytes, age: float, *, replace: bool) -> bool:
        self.writable("storing")
        _check_size(data)
        with self._lock:
            self.flush()
            with translated("storing", self.path):
                self.ensure(path.parent)
                fd, temporary = self.temporary()
                try:
                    self.fs.write(fd, data)
                    self.fs.touch(temporary, age)
                    self.fs.fsync(fd)
                    if replace:
                        self._clear(path)
                        self.fs.rename(temporary, path)
                    elif not self._link(temporary, path):
                        return False
                finally:
                    self.fs.close(fd)
                    self.fs.unlink(temporary)
                self._dirty[path.parent] = None
            self.flush()
            return True

    def remove(self, path: Path) -> bool:
        """Removes a document; True when there was one. Durable at the next flush."""
        self.writable("removing")
        if self.is_pending(path):
            self.flush()
        with self._lock, translated("removing", path):
            try:
                if not self.fs.unlink(path):
                    return False
            except IsADirectoryError:
                return False  # a folder of that name is none of ours
            self._dirty[path.parent] = None
            return True

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted; none when it is absent."""
        try:
            return sorted(os.listdir(directory))  # noqa: PTH208  names are all that is wanted
        except (FileNotFoundError, NotADirectoryError):
            return []

    # --- damage ---

    def quarantine(self, path: Path, inode: int) -> bool:
        """Sets a damaged file aside, unless it was replaced by another since it was read; True when set aside."""
        self.corrupt += 1
        if self.read_only:
            return False
        with suppress(OSError, CacheUnavailableError):
            if path.stat().st_ino != inode:
                return False
            self.ensure(self.path / "quarantine")
            aside = self.path / "quarantine" / f"{path.name}~{os.getpid()}.{next(self._counter)}"
            self.fs.rename(path, aside)
            if aside.stat().st_ino != inode:
                # Replaced between the look and the rename: the newcomer goes back.
                with suppress(FileExistsError):
                    self.fs.link(aside, path)
                self.fs.unlink(aside)
                return False
            return True
        return False


def _check_size(data: bytes) -> None:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise LimitExceededError(f"a document has at most {MAX_DOCUMENT_BYTES} bytes, but {len(data)} came")


def _nothing() -> None:
    return
