"""Single files of blobs: what is in them, and where they stand."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from blake3 import blake3

from spyre_cache.digest import Digest, hash_threads
from spyre_cache.errors import InvalidRecordError
from spyre_cache.stores.envelope import EnvelopeReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spyre_cache.root import Root
    from spyre_cache.stores.base import Buffer, Source

BLOCK = 8 << 20
OVERLAP_BYTES = 4 << 20  # from here on hashing runs beside reading and writing
PACKED = ".z"


def restore(root: Root, path: Path) -> bool:
    """Puts a blob's file back that a collection set aside; call it under `GC_LOCK`. True when there was one."""
    aside = root.path / "trash" / path.name
    with suppress(FileExistsError):
        try:
            root.fs.link(aside, path)
        except FileNotFoundError:
            return False
    root.fs.unlink(aside)
    return True


def open_if_there(path: Path) -> int | None:
    """A descriptor for reading, or None when there is no such file (a folder or a pipe of that name is none)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not make anyone wait
    except FileNotFoundError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def is_at(raw: str | Path, packed: str | Path, size: int) -> bool:
    """Whether either form is there; of the raw one the size is known to fit. A folder of that name is none."""
    with suppress(FileNotFoundError, NotADirectoryError):
        status = os.stat(raw)  # noqa: PTH116  a Path is not needed
        if status.st_size == size and stat.S_ISREG(status.st_mode):
            return True
    with suppress(FileNotFoundError, NotADirectoryError):
        return stat.S_ISREG(os.stat(packed).st_mode)  # noqa: PTH116  as above
    return False


def plain_size(path: Path) -> int:
    """Size of the plain bytes of a blob's file.

    Raises:
        OSError: it cannot be read.
        InvalidRecordError: it is no envelope, though its name says so, or no file at all.
    """
    if path.suffix != PACKED:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidRecordError(f"a blob is a file, and {path} is none")
        return status.st_size
    with EnvelopeReader(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as reader:
        return reader.plain_size


def blocks_of(source: Source) -> Iterator[Buffer]:
    """What a binary file or an iterable of buffers yields, as byte buffers."""
    read = getattr(source, "read", None)
    if read is None:
        for item in source:
            yield memoryview(item).cast("B")
        return
    while block := read(BLOCK):
        yield block


def hash_file(path: Path, fd: int, size: int) -> Digest | None:
    """Digest of the plain bytes of an open file, or None when it is no sound envelope."""
    hasher = blake3(max_threads=hash_threads(size))
    if path.suffix == PACKED:
        try:
            with EnvelopeReader(os.dup(fd)) as reader:
                for block in reader.blocks():
                    hasher.update(block)
                return Digest(hasher.hexdigest(), reader.plain_size)
        except InvalidRecordError:
            return None
    if size < BLOCK:
        data = os.pread(fd, size, 0)
        return Digest.of(data)
    # Mapped: all cores hash, and the kernel reads ahead for each.
    hasher.update_mmap(f"/dev/fd/{fd}")
    return Digest(hasher.hexdigest(), size)


def read_verified(path: Path, fd: int, size: int, digest: Digest) -> bytes | None:
    """The plain bytes of an open file when they have the digest, else None."""
    if path.suffix == PACKED:
        try:
            with EnvelopeReader(os.dup(fd)) as reader:
                data = b"".join(reader.blocks()) if reader.plain_size == digest.size else b""
        except InvalidRecordError:
            return None
        return data if Digest.of(data) == digest else None
    if size != digest.size:
        return None
    with os.fdopen(os.dup(fd), "rb", buffering=0) as file:
        if size < OVERLAP_BYTES:
            data = file.read()
            return data if Digest.of(data) == digest else None
        from concurrent.futures import ThreadPoolExecutor  # slow to import

        # Hashed through a mapping while it is copied: the same pages, as long as nobody writes to them meanwhile.
        before = os.fstat(fd).st_mtime_ns
        with ThreadPoolExecutor(1, "spyre-cache-hash") as hashing:
            hashed = hashing.submit(hash_file, path, fd, size)
            data = file.read()
            found = hashed.result()
    untouched = os.fstat(fd).st_mtime_ns == before and len(data) == size
    return data if found == digest and untouched else None
