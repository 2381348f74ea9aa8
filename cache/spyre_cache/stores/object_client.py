"""The one place where object stores are opened (through `obstore`), and where their errors become sentences.

    s3://bucket/prefix        AWS_* environment: credentials, region, AWS_ENDPOINT_URL for other servers
    gs://bucket/prefix        GOOGLE_* environment
    az://container/prefix     AZURE_* environment
    file:///dir               a directory, which machines may share

S3 and directories are tested; Google's and Azure's come with the library and have never been run by this project.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from spyre_cache.errors import CacheUnavailableError, LimitExceededError, ReadOnlyCacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from obstore.store import ObjectStore as AnyStore

    from spyre_cache.stores.base import Buffer

SCHEMES = ("s3", "gs", "az", "file")
PARALLEL = 16  # requests under way at once
CONNECT_SECONDS = 3
REQUEST_SECONDS = 10  # for one request with at most a chunk of 2 MiB, or a document
RETRIES = 5
RETRY_SECONDS = 15  # after so long no other try is begun
MAX_OBJECT_BYTES = 256 << 20
_CLOCK = "clock"
_CLOCK_SECONDS = 600.0  # how long a measured difference of clocks is believed
_PAGE = 1000

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


# --- opening ---


def open_objects(url: str) -> Objects:
    """The objects at a URL; nothing is asked of the store yet.

    Raises:
        CacheUnavailableError: no URL of an object store, or settings that the store does not understand.
    """
    from obstore.exceptions import BaseError

    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    sane = parts.scheme in SCHEMES and not parts.query and not parts.fragment and "@" not in parts.netloc
    if parts.scheme == "file":
        sane = sane and parts.netloc in {"", "localhost"} and parts.path.startswith("/") and "%00" not in parts.path
    else:
        sane = sane and bool(parts.netloc)
    if not sane or ".." in parts.path.split("/"):
        raise CacheUnavailableError(
            f"an object store is given as s3://bucket/prefix, gs://…, az://… or file:///dir, not as {shown!r}; "
            "credentials come from the environment"
        )
    try:
        if parts.scheme == "file":
            directory = Path(unquote(parts.path))
            return Objects(_local(directory), shown, directory)
        return Objects(_bucket(parts.scheme, parts.netloc, parts.path.strip("/")), shown)
    except (BaseError, OSError, ValueError) as error:
        raise translated(error, shown, "opening it") from None


def _local(directory: Path) -> AnyStore:
    from obstore.store import LocalStore

    return LocalStore(directory, mkdir=True)


def _bucket(scheme: str, bucket: str, prefix: str) -> AnyStore:
    from obstore.store import AzureStore, GCSStore, S3Store

    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    return kinds[scheme](  # type: ignore[no-any-return]
        bucket,
        prefix=prefix or None,
        client_options={
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            # Without TLS only where somebody wrote http:// on purpose.
            "allow_http": _endpoint(scheme).startswith("http://"),
        },
        retry_config={
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        },
        **_settings(scheme),
    )


def _endpoint(scheme: str) -> str:
    if scheme != "s3":
        return ""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def _settings(scheme: str) -> dict[str, Any]:
    """What the library does not take from the environment as the AWS tools do."""
    if scheme != "s3":
        return {}
    settings = {}
    if endpoint := _endpoint(scheme):
        settings["endpoint"] = endpoint
    if not os.environ.get("AWS_REGION") and not os.environ.get("AWS_DEFAULT_REGION"):
        settings["region"] = "us-east-1"
    return settings


# --- errors ---

_METADATA = "169.254.169.254"  # where clouds give credentials to their machines: asked when there are no others
_FAILED = re.compile(r"Error performing ([A-Z]+ [^ ]+) in [0-9.]+[mµ]?s(?:, after ([0-9]+) retries[^-]*)? ?- (.*)")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{0,300})</Message>")
_STATUS = re.compile(r"status code: ([0-9]{3} [A-Za-z ]{2,40})")
_SECRET = re.compile(r"(Signature|Credential|AWSAccessKeyId|X-Amz-[A-Za-z-]+|SecurityToken)([=>][^&<\s\"]*)")


def translated(error: Exception, shown: str, doing: str) -> CacheUnavailableError:
    """The sentence for what a store raised; never with credentials in it."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text = str(error).partition("\n\nDebug source:")[0]
    code = _CODE.search(text)
    name = code[1] if code else ""
    if name == "NoSuchBucket":
        return CacheUnavailableError(f"{shown}: there is no such bucket; make it, or correct the URL")
    said = _said(text)
    if name in {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "RequestTimeTooSkewed"}:
        return CacheUnavailableError(
            f"{shown} refuses the credentials ({said}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or whatever your provider uses"
        )
    if isinstance(error, UnauthenticatedError) or _METADATA in text:
        return CacheUnavailableError(
            f"{shown} was asked without credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or whatever your provider uses"
        )
    if isinstance(error, (PermissionDeniedError, PermissionError)):
        kind = ReadOnlyCacheError if doing.startswith(("writing", "removing", "locking", "touching")) else None
        return (kind or CacheUnavailableError)(f"{shown} does not permit {doing} with these credentials ({said})")
    return CacheUnavailableError(f"{shown} cannot be used: {doing} failed: {said}")


def _said(text: str) -> str:
    """What a store answered, short and without secrets."""
    text = " ".join(text.split())
    failed = _FAILED.search(text)
    tries = f" after {failed[2]} retries" if failed and failed[2] else ""
    code, message, status = _CODE.search(text), _MESSAGE.search(text), _STATUS.search(text)
    if code or status:
        parts = [status[1].strip() if status else "", code[1] if code else "", message[1] if message else ""]
        said = ": ".join(part for part in parts if part) + tries
    else:
        said = f"{failed[1]}{tries}: {failed[3]}" if failed else text
    return _SECRET.sub(r"\1=…", said)[:400]
