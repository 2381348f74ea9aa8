"""Blobs as files: one each, raw or in an envelope, published whole and verified when read."""

# ruff: noqa: D102  the methods' contract is BlobStore's

from __future__ import annotations

import io
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, cast

from blake3 import blake3

from spyre_cache.digest import Digest, hash_threads
from spyre_cache.errors import BlobNotFoundError, CorruptBlobError, InvalidRecordError
from spyre_cache.fs import translated
from spyre_cache.root import GC_LOCK
from spyre_cache.stores.base import Buffer, LocalBlobStore, Source
from spyre_cache.stores.envelope import EnvelopeReader, Packer, shrinks
from spyre_cache.stores.files import (
    BLOCK,
    OVERLAP_BYTES,
    PACKED,
    blocks_of,
    hash_file,
    is_at,
    open_if_there,
    plain_size,
    read_verified,
    restore,
)
from spyre_cache.stores.memo import Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from spyre_cache.root import Root


class DiskStore(LocalBlobStore):
    """Blobs under `blobs/` of a cache directory."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._base = f"{root.path}/blobs"
        self._verdicts = Verdicts(root)

    # --- where a blob lies ---

    def _raw(self, digest: Digest) -> Path:
        return self._root.path / f"blobs/{digest.hash[:2]}/{digest.hash}"

    def _packed(self, digest: Digest) -> Path:
        return self._raw(digest).with_name(digest.hash + PACKED)

    def _candidates(self, digest: Digest) -> Iterator[tuple[Path, int, os.stat_result]]:
        """Open files that may hold the blob, raw first; the caller closes each.

        What a collection has set aside can still be read: it may be put back yet.
        """
        for path in (self._raw(digest), self._packed(digest)):
            if self._root.is_pending(path):
                self._root.flush()
            for place in (path, self._aside(path), path):
                with translated("reading", place, writes=False):
                    fd = open_if_there(place)
                if fd is not None:
                    yield place, fd, os.fstat(fd)
                    break

    def _aside(self, path: Path) -> Path:
        return self._root.path / "trash" / path.name

    def missing(self, digests: Iterable[Digest]) -> set[Digest]:
        wanted = set(digests)
        # Held first, looked for second: see `spyre_cache.leases`.
        self._root.hold(digest.hash for digest in wanted)
        with translated("looking for blobs", self._root.path, writes=False):
            return {digest for digest in wanted if not self.present(digest)}

    def present(self, digest: Digest) -> bool:
        """Whether a blob is here, without keeping it from collection: an answer for reports only."""
        # The usual answer first, without a Path: of ten thousand blobs, making those takes longer than looking.
        place = f"{self._base}/{digest.hash[:2]}/{digest.hash}"
        if is_at(place, place + PACKED, digest.size):
            return True
        raw, packed = self._raw(digest), self._packed(digest)
        if self._root.is_pending(raw) or self._root.is_pending(packed):
            return True
        if not (self._aside(raw).exists() or self._aside(packed).exists()):
            # A collection may have put it back between the two looks.
            return is_at(raw, packed, digest.size)
        if self._root.read_only:
            return is_at(self._aside(raw), self._aside(packed), digest.size)
        self._settle([raw, packed])
        return is_at(raw, packed, digest.size)

    def _settle(self, paths: Iterable[Path]) -> None:
        """Waits for the collection that set blobs aside; puts back what a dead one left."""
        with self._root.lock(GC_LOCK):
            for path in paths:
                restore(self._root, path)

    # --- reading ---

    def _sound(self, digest: Digest) -> tuple[Path, int, os.stat_result]:
        """A verified file of the blob, open; the caller closes it.

        Raises:
            BlobNotFoundError: no file.
            CorruptBlobError: files, but none of them sound.
        """
        damaged = False
        for path, fd, status in self._candidates(digest):
            try:
                if self._verdicts.is_sound(path, status) and (path.suffix or status.st_size == digest.size):
                    return path, fd, status
                found = hash_file(path, fd, status.st_size)
            except BaseException:
                os.close(fd)
                raise
            if found == digest:
                self._verdicts.record(path, status)
                return path, fd, status
            os.close(fd)
            if found is None or found.hash != digest.hash:
                damaged = True
                self._root.quarantine(path, status.st_ino)
        if damaged:
            raise CorruptBlobError(
                f"the blob {digest} was damaged on disk and has been set aside; build or fetch it again"
            )
        raise BlobNotFoundError(f"the blob {digest} of {digest.size} bytes is not in {self._root.path}")

    def get(self, digest: Digest) -> bytes:
        for path, fd, status in self._candidates(digest):
            try:
                data = read_verified(path, fd, status.st_size, digest)
            finally:
                os.close(fd)
            if data is not None:
                return data
        # Neither form gave the bytes: let the one place that judges files say why, and set them aside.
        with self.open(digest) as reader:
            return reader.read()

    def open(self, digest: Digest) -> BinaryIO:
        path, fd, _ = self._sound(digest)
        if path.suffix == PACKED:
            return cast("BinaryIO", io.BufferedReader(EnvelopeReader(fd), 1 << 20))
        return os.fdopen(fd, "rb")

    def map(self, digest: Digest) -> memoryview:
        path, fd, _ = self._sound(digest)
        if path.suffix == PACKED:
            # The envelope was verified just now, by content; unpacking it once more is the price of a memo hit.
            memory = bytearray(digest.size)
            with EnvelopeReader(fd) as reader:
                position = 0
                for block in reader.blocks():
                    memory[position : position + len(block)] = block
                    position += len(block)
            return memoryview(memory)
        from spyre_cache.stores.memory import map_private

        try:
            with translated("mapping", path, writes=False):
                return map_private(fd, digest.size)
        finally:
            os.close(fd)

    def path(self, digest: Digest) -> Path:
        path, fd, _ = self._sound(digest)
        if path.suffix != PACKED:
            os.close(fd)
            if path == self._aside(path) and not self._root.read_only:
                self._settle([self._raw(digest)])
                return self.path(digest)
            return path
        with EnvelopeReader(fd) as reader:
            self._root.writable(f"unpacking {digest}")
            self._store_stream(reader.blocks(), raw=True)
        self._root.flush()
        return self._raw(digest)

    def iter(self) -> Iterator[Digest]:
        self._root.flush()
        blobs = self._root.path / "blobs"
        for fan in self._root.names(blobs):
            seen = ""
            for name in self._root.names(blobs / fan):
                hash_ = name.removesuffix(PACKED)
                if hash_ == seen:
                    continue
                with suppress(OSError, InvalidRecordError):
                    yield Digest(hash_, plain_size(blobs / fan / name))
                    seen = hash_

    # --- writing ---

    def put(self, data: Buffer, *, raw: bool = False) -> Digest:
        self._root.writable("storing a blob")
        view = memoryview(data).cast("B")
        packed = not raw and shrinks(view)
        if not packed and len(view) >= OVERLAP_BYTES:
            return self._put_large(view, raw=raw)
        digest = Digest.of(view)
        if not self._have(digest, raw=raw):
            self._publish(digest, view, packed=packed)
        return digest

    def _put_large(self, view: memoryview, *, raw: bool) -> Digest:
        """Writes while another thread hashes; gives up writing once the blob turns out to be here."""
        from concurrent.futures import ThreadPoolExecutor  # slow to import

        have = threading.Event()

        def judge() -> Digest:
            digest = Digest.of(view)
            if self._have(digest, raw=raw):
                have.set()
            return digest

        fd, temporary = self._root.temporary(0o444)
        try:
            with ThreadPoolExecutor(1, "spyre-cache-hash") as hashing:
                judged = hashing.submit(judge)
                for start in range(0, len(view), BLOCK):
                    if have.is_set():
                        break
                    self._write(fd, view[start : start + BLOCK])
                digest = judged.result()
        except BaseException:
            self._discard(fd, temporary)
            raise
        if have.is_set():
            self._discard(fd, temporary)
            return digest
        self._link(fd, temporary, self._raw(digest))
        return digest

    def put_stream(self, source: Source, *, raw: bool = False) -> Digest:
        self._root.writable("storing a blob")
        return self._store_stream(blocks_of(source), raw=raw)

    def _store_stream(self, blocks: Iterator[Buffer], *, raw: bool) -> Digest:
        head = bytearray()
        for first in blocks:
            head += first
            if len(head) >= OVERLAP_BYTES:
                break
        else:
            return self.put(head, raw=raw)
        packer = None if raw or not shrinks(memoryview(head)) else Packer()
        hasher = blake3(max_threads=hash_threads(BLOCK))
        size = 0
        fd, temporary = self._root.temporary(0o444)
        try:
            if packer:
                self._write(fd, packer.start())
            block: Buffer = head
            while True:
                hasher.update(block)
                size += memoryview(block).nbytes
                for piece in packer.feed(block) if packer else (memoryview(block),):
                    self._write(fd, piece)
                following = next(blocks, None)
                if following is None:
                    break
                block = following
            for piece in packer.finish() if packer else ():
                self._write(fd, piece)
            digest = Digest(hasher.hexdigest(), size)
            have = self._have(digest, raw=raw)
        except BaseException:
            self._discard(fd, temporary)
            raise
        if have:
            self._discard(fd, temporary)
        else:
            self._link(fd, temporary, self._packed(digest) if packer else self._raw(digest))
        return digest

    def _have(self, digest: Digest, *, raw: bool) -> bool:
        """Whether a sound copy is here, in the form asked for; holds it either way."""
        self._root.hold([digest.hash])
        if self._root.is_pending(self._raw(digest)) or (not raw and self._root.is_pending(self._packed(digest))):
            return True
        try:
            path, fd, _ = self._sound(digest)
        except BlobNotFoundError:
            return False
        os.close(fd)
        # What a collection has set aside does not count: a fresh copy settles the matter.
        return path != self._aside(path) and not (raw and path.suffix == PACKED)

    def _publish(self, digest: Digest, data: memoryview, *, packed: bool) -> None:
        fd, temporary = self._root.temporary(0o444)
        try:
            if packed:
                packer = Packer()
                self._write(fd, packer.start())
                for piece in (*packer.feed(data), *packer.finish()):
                    self._write(fd, piece)
            else:
                self._write(fd, data)
        except BaseException:
            self._discard(fd, temporary)
            raise
        self._link(fd, temporary, self._packed(digest) if packed else self._raw(digest))

    def _write(self, fd: int, data: bytes | memoryview) -> None:
        # Only our own writing is translated: what a caller's stream raises is the caller's to see.
        with translated("storing a blob", self._root.path):
            self._root.fs.write(fd, data)

    def _link(self, fd: int, temporary: Path, final: Path) -> None:
        self._root.publish(fd, temporary, final, self._remember(final))

    def _remember(self, final: Path) -> Callable[[], None]:
        def record() -> None:
            with suppress(OSError):
                self._verdicts.record(final, final.stat())

        return record

    def _discard(self, fd: int, temporary: Path) -> None:
        self._root.fs.close(fd)
        self._root.fs.unlink(temporary)

    def delete(self, digest: Digest) -> bool:
        self._root.writable("deleting a blob")
        self._root.flush()
        found = False
        for path in (self._raw(digest), self._packed(digest)):
            found |= self._root.remove(path)
            self._verdicts.forget(path)
        self._root.flush()
        return found

    def flush(self) -> None:
        if not self._root.read_only:
            self._root.flush()

    @contextmanager
    def batch(self) -> Iterator[None]:
        with self._root.batch():
            yield
