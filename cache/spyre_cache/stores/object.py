"""A durable tier that machines share: blobs in a bucket (S3, Google, Azure) or in a directory, through `obstore`.

    FORMAT                       what this prefix is
    blobs/ab/<hash>-<size>       tag byte, then: `r` the bytes, `z` an envelope, `c` a list of chunks
    chunks/ab/<hash>-<size>      tag byte `r` or `z`, then likewise
    <kind>/…                     documents (see `spyre_cache.stores.object_documents`)
    holds/… gc/… clock locks/…   see `spyre_cache.stores.object_holds`

Blobs above 2 MiB lie as content-defined chunks, so that they go in and out in pieces, and equal parts of different
blobs once. The first writer of an object wins; objects found damaged are removed.
"""

# ruff: noqa: D102  the methods' contract is BlobStore's

from __future__ import annotations

import hashlib
import io
import itertools
import re
import tempfile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from blake3 import blake3

from spyre_cache.chunks import THRESHOLD_BYTES, ChunkList, cut_stream, is_chunked
from spyre_cache.codec import decode, encode
from spyre_cache.digest import Digest, hash_threads
from spyre_cache.errors import (
    BlobNotFoundError,
    CacheUnavailableError,
    CorruptBlobError,
    InvalidRecordError,
    ReadOnlyCacheError,
)
from spyre_cache.stores.base import BlobStore, Buffer, Source
from spyre_cache.stores.envelope import pack, shrinks, unpack
from spyre_cache.stores.files import blocks_of
from spyre_cache.stores.object_documents import ObjectDocuments
from spyre_cache.stores.object_holds import REFRESH_SECONDS, Holds
from spyre_cache.stores.object_opening import open_objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spyre_cache.stores.object_client import Meta, Objects, Stored

_RAW, _ENVELOPE, _CHUNKS = b"r", b"z", b"c"
_FORMAT = b"spyre-cache-objects 1\n"
_WINDOW = 8  # pieces of a large blob in memory at a time
_LISTED = 8  # digests of a fan-out folder from which on listing is cheaper than asking for each
_PER_PAGE = 16  # digests worth a further page of a listing
_PAGE = 1000
_PLACE = re.compile(r"(?:blobs|chunks)/[0-9a-f]{2}/([0-9a-f]{64})-([0-9]{1,15})")
_MD5 = re.compile(r'"([0-9a-f]{32})"')


def open_object(url: str) -> tuple[ObjectStore, ObjectDocuments]:
    """The durable tier at a URL: its blobs and its documents.

    Raises:
        CacheUnavailableError: the URL is wrong, there is no such bucket, the credentials are refused, nothing answers,
            or what lies there is not a cache that this version knows.
    """
    objects = open_objects(url)
    there = objects.get("FORMAT")
    if there is None:
        try:
            objects.create("FORMAT", _FORMAT)
        except ReadOnlyCacheError:
            # Nobody has written here yet, and we may not either; whether it can be read at all, this shows.
            next(objects.list("blobs"), None)
    elif there.data != _FORMAT:
        raise CacheUnavailableError(
            f"{objects.shown} holds no cache that this version knows (its FORMAT is {there.data[:40]!r}); give another"
            " prefix, or use the version that made it"
        )
    return ObjectStore(objects), ObjectDocuments(objects)


class _Damaged(NamedTuple):
    """An object that is not what its path says."""

    meta: Meta


class ObjectStore(BlobStore):
    """Blobs as objects.

    Attributes:
        url: where, fit for messages.
        objects: the objects themselves, for collection.
        corrupt: damaged objects met, and removed.
    """

    def __init__(self, objects: Objects, *, refresh: float = REFRESH_SECONDS) -> None:
        self.url = objects.shown
        self.objects = objects
        self.corrupt = 0
        self._holds = Holds(objects, refresh=refresh)

    def accepts(self, size: int) -> bool:  # noqa: ARG002  as other tiers say it
        """Whether a blob of so many bytes belongs here: any does."""
        return True

    # --- presence ---

    def missing(self, digests: Iterable[Digest]) -> set[Digest]:
        wanted = {blob_path(digest): digest for digest in digests}
        found = self._present(wanted)
        lost = self._holds.secure(found.values())
        return {digest for path, digest in wanted.items() if path not in found or path in lost}

    def _present(self, paths: Iterable[str]) -> dict[str, Meta]:
        """Those of the paths that are there: few are asked for one by one, many are listed by folder."""
        folders: dict[str, set[str]] = {}
        for path in paths:
            folders.setdefault(path.rpartition("/")[0], set()).add(path)
        single = [path for some in folders.values() if len(some) < _LISTED for path in some]
        many = [(folder, some) for folder, some in folders.items() if len(some) >= _LISTED]
        found: dict[str, Meta] = {}
        for listed, unknown in self.objects.each(self._list, many):
            found.update(listed)
            single += unknown
        found.update((meta.path, meta) for meta in self.objects.each(self.objects.head, single) if meta is not None)
        return found

    def _list(self, folder_and_paths: tuple[str, set[str]]) -> tuple[dict[str, Meta], set[str]]:
        """What a folder has of some paths, and those that a listing of sensible length did not get to."""
        folder, paths = folder_and_paths
        found: dict[str, Meta] = {}
        budget = _PAGE * (1 + len(paths) // _PER_PAGE)
        for meta in itertools.islice(self.objects.list(folder), budget):
            budget -= 1
            if meta.path in paths:
                found[meta.path] = meta
        return found, set() if budget else paths - found.keys()

    # --- reading ---

    def get(self, digest: Digest) -> bytes:
        return b"".join(self.blocks(digest)) if is_chunked(digest.size) else self._small(digest)

    def get_alone(self, digest: Digest) -> bytes:
        """As `get`, with one request at a time: for use within `Objects.each`, whose threads must not wait for it."""
        if not is_chunked(digest.size):
            return self._small(digest)
        stored = self._stored(digest)
        pieces = map(self._chunk, chunks_of(stored.data, digest))
        data = b"".join(piece for piece in pieces if isinstance(piece, bytes))
        if Digest.of(data) != digest:
            raise self._corrupt(digest, [stored.meta])
        return data

    def _small(self, digest: Digest) -> bytes:
        stored = self._stored(digest)
        data = _plain(stored.data, digest)
        if data is None:
            raise self._corrupt(digest, [stored.meta])
        return data

    def _stored(self, digest: Digest) -> Stored:
        stored = self.objects.get(blob_path(digest))
        if stored is None:
            raise BlobNotFoundError(f"the blob {digest} of {digest.size} bytes is not in {self.url}")
        return stored

    def blocks(self, digest: Digest) -> Iterator[bytes]:
        """The plain bytes, piece by piece; not to be believed before the last one came.

        Raises:
            BlobNotFoundError: not here.
            CorruptBlobError: here, but damaged; perhaps only after some pieces.
        """
        if not is_chunked(digest.size):
            yield self._small(digest)
            return
        stored = self._stored(digest)
        chunks = _chunk_list(stored.data, digest)
        if chunks is None:
            raise self._corrupt(digest, [stored.meta])
        whole = blake3(max_threads=hash_threads(digest.size))
        for piece in self.objects.each(self._chunk, chunks.chunks):
            if isinstance(piece, _Damaged):
                raise self._corrupt(digest, [piece.meta, stored.meta])
            if piece is None:
                raise self._corrupt(digest, [stored.meta])
            whole.update(piece)
            yield piece
        if whole.hexdigest() != digest.hash:
            raise self._corrupt(digest, [stored.meta])

    def _chunk(self, digest: Digest) -> bytes | _Damaged | None:
        stored = self.objects.get(chunk_path(digest))
        if stored is None:
            return None
        data = _plain(stored.data, digest)
        return _Damaged(stored.meta) if data is None else data

    def _corrupt(self, digest: Digest, damaged: list[Meta]) -> CorruptBlobError:
        """Removes damaged objects, unless somebody has replaced them meanwhile."""
        self.corrupt += 1
        for meta in damaged:
            now = self.objects.head(meta.path)
            if now is not None and (now.etag, now.size) == (meta.etag, meta.size):
                self.objects.delete([meta.path])
        return CorruptBlobError(f"the blob {digest} was damaged in {self.url} and has been removed there")

    def open(self, digest: Digest) -> BinaryIO:
        if not is_chunked(digest.size):
            return io.BytesIO(self._small(digest))
        file = tempfile.TemporaryFile(prefix="spyre-blob-")  # noqa: SIM115  the caller closes it
        try:
            for block in self.blocks(digest):
                file.write(block)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return cast("BinaryIO", file)

    def iter(self) -> Iterator[Digest]:
        for meta in self.objects.list("blobs"):
            if (digest := digest_of(meta.path)) is not None:
                yield digest

    # --- writing ---

    def put(self, data: Buffer, *, raw: bool = False) -> Digest:
        view = memoryview(data).cast("B")
        digest = Digest.of(view)
        if not is_chunked(digest.size):
            self._store(blob_path(digest), digest, _encoded(view, raw=raw))
            return digest
        there = self.objects.head(blob_path(digest))
        if there is None or self._holds.secure([there]):
            self._put_chunks(iter((view,)), raw=raw)
        return digest

    def put_stream(self, source: Source, *, raw: bool = False) -> Digest:
        blocks = blocks_of(source)
        head = bytearray()
        for block in blocks:
            head += block
            if len(head) > THRESHOLD_BYTES:
                return self._put_chunks(itertools.chain((head,), blocks), raw=raw)
        return self.put(head, raw=raw)

    def _put_chunks(self, blocks: Iterator[Buffer], *, raw: bool) -> Digest:
        hasher = blake3(max_threads=hash_threads(THRESHOLD_BYTES))
        chunks: list[Digest] = []
        pieces = cut_stream(blocks)
        while window := list(itertools.islice(pieces, _WINDOW)):
            for piece in window:
                hasher.update(piece)
            chunks += self._put_window(window, raw=raw)
        digest = Digest(hasher.hexdigest(), sum(chunk.size for chunk in chunks))
        self._store(blob_path(digest), digest, _CHUNKS + encode(ChunkList(blob=digest, chunks=tuple(chunks))))
        return digest

    def _put_window(self, pieces: list[bytes], *, raw: bool) -> list[Digest]:
        """Stores the pieces that are not here yet: asking costs less than sending them."""
        digests = [Digest.of(piece) for piece in pieces]
        paths = [chunk_path(digest) for digest in digests]
        found = {meta.path: meta for meta in self.objects.each(self.objects.head, dict.fromkeys(paths)) if meta}
        lost = self._holds.secure(found.values())
        absent = {
            path: (path, digest, piece)
            for path, digest, piece in zip(paths, digests, pieces, strict=True)
            if path not in found or path in lost
        }
        for _ in self.objects.each(
            lambda item: self._store(item[0], item[1], _encoded(memoryview(item[2]), raw=raw)), absent.values()
        ):
            pass
        return digests

    def _store(self, path: str, digest: Digest, data: bytes) -> None:
        """Creates an object; one that is there already is kept, or replaced if it is damaged."""
        while not self.objects.create(path, data):
            there = self.objects.head(path)
            if there is None:
                continue
            if not self._is_same(there, data) and not self._is_sound(path, digest):
                self.corrupt += 1
                self.objects.put(path, data)
            if not self._holds.secure([there]):
                return

    def _is_same(self, there: Meta, data: bytes) -> bool:
        """Whether an object is known to have these very bytes; an etag that is no MD5 says nothing."""
        etag = _MD5.fullmatch(there.etag)
        return (
            there.size == len(data)
            and etag is not None
            and etag[1] == hashlib.md5(data, usedforsecurity=False).hexdigest()
        )

    def _is_sound(self, path: str, digest: Digest) -> bool:
        stored = self.objects.get(path)
        if stored is None:
            return False
        if path.startswith("blobs/") and is_chunked(digest.size):
            return _chunk_list(stored.data, digest) is not None
        return _plain(stored.data, digest) is not None

    def delete(self, digest: Digest) -> bool:
        path = blob_path(digest)
        if self.objects.head(path) is None:
            return False
        self.objects.delete([path])
        return True

    def close(self) -> None:
        """Ends the threads, which the documents share."""
        self.objects.close()


def blob_path(digest: Digest) -> str:
    """Where a blob lies."""
    return f"blobs/{digest.hash[:2]}/{digest.hash}-{digest.size}"


def chunk_path(digest: Digest) -> str:
    """Where a chunk of a large blob lies."""
    return f"chunks/{digest.hash[:2]}/{digest.hash}-{digest.size}"


def digest_of(path: str) -> Digest | None:
    """What lies at a path, or None when it is none of ours."""
    match = _PLACE.fullmatch(path)
    return Digest(match[1], int(match[2])) if match else None


def chunks_of(data: bytes, digest: Digest) -> tuple[Digest, ...]:
    """Chunks that an object lists; none when it holds the bytes itself or is damaged."""
    chunks = _chunk_list(data, digest)
    return chunks.chunks if chunks is not None else ()


def _encoded(view: memoryview, *, raw: bool) -> bytes:
    return _ENVELOPE + pack(view) if not raw and shrinks(view) else _RAW + view


def _plain(stored: bytes, digest: Digest) -> bytes | None:
    """The bytes in an object if they are those of the digest."""
    tag, body = stored[:1], memoryview(stored)[1:]
    if tag == _ENVELOPE:
        try:
            data = unpack(body, digest.size)
        except InvalidRecordError:
            return None
    elif tag == _RAW:
        data = bytes(body)
    else:
        return None
    return data if Digest.of(data) == digest else None


def _chunk_list(stored: bytes, digest: Digest) -> ChunkList | None:
    if stored[:1] != _CHUNKS:
        return None
    try:
        chunks = decode(stored[1:], ChunkList)
    except InvalidRecordError:
        return None
    return chunks if chunks.blob == digest else None
