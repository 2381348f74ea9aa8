"""A hot tier: small blobs and action results in a Redis (or Valkey) that may evict them, restart empty, or be away.

    <prefix>:b:<hash>:<size>      tag byte (`r` raw, `z` envelope), then the bytes; expires `ttl` after its last use
    <prefix>:d:<kind>:<key>       a document (see `spyre_cache.stores.redis_documents`)

Keys carry the size, so that presence of a digest is presence of a key. A Redis that is full refuses; for a tier that
may forget at any time that is no error: it is counted in `refused`.
"""

# ruff: noqa: D102  the methods' contract is BlobStore's

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from blake3 import blake3

from spyre_cache.digest import Digest, hash_threads
from spyre_cache.errors import BlobNotFoundError, CacheUnavailableError, CorruptBlobError, InvalidRecordError
from spyre_cache.stores.base import BlobStore, Buffer, Source
from spyre_cache.stores.envelope import pack, shrinks, unpack
from spyre_cache.stores.files import blocks_of
from spyre_cache.stores.redis_client import RedisAddress, connect, redis_address, unavailable
from spyre_cache.stores.redis_documents import RedisDocuments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from redis import Redis

LIMIT_BYTES = 128 << 10
TTL_SECONDS = 7 * 24 * 3600
CONNECT_SECONDS = ANSWER_SECONDS = 1.0  # what may be done without is not waited for as long as a broker is
_RAW, _ENVELOPE = b"r", b"z"
_BATCH = 2000  # keys a script touches in one go: about a millisecond of the server's time
_SCAN = 1000

# Presence, and another lease of life for what is there: one answer of a byte a key.
_TOUCH_ALL = """
local found = {}
for i, key in ipairs(KEYS) do found[i] = redis.call('EXPIRE', key, ARGV[1]) end
return table.concat(found)
"""
_DELETE_IF = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('UNLINK', KEYS[1]) end
return 0
"""


def open_redis(url: str) -> tuple[RedisStore, RedisDocuments]:
    """The hot tier at a URL: its blobs and its documents, over one client.

    Raises:
        CacheUnavailableError: the URL is wrong, or nothing answers there.
    """
    address = redis_address(url)
    limit = _number(address, "limit", LIMIT_BYTES)
    ttl = _number(address, "ttl", TTL_SECONDS)
    client = connect(address, answer_seconds=ANSWER_SECONDS, connect_seconds=CONNECT_SECONDS)
    with unavailable(address.shown):
        client.ping()
    return (
        RedisStore(client, address, limit=limit, ttl=ttl),
        RedisDocuments(client, address, ttl=ttl),
    )


def _number(address: RedisAddress, name: str, default: int) -> int:
    text = address.options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:12]) < 1 << 31:
        raise CacheUnavailableError(f"{name} of the Redis URL {address.shown} is a whole number above 0, not {text!r}")
    return int(text)


class RedisStore(BlobStore):
    """Blobs in a Redis.

    Attributes:
        url: where, fit for messages.
        limit: bytes of the largest blob it takes; larger ones are passed over, not refused with an error.
        refused: blobs not stored because they are too large or Redis is full.
        corrupt: damaged blobs met, and removed.
    """

    def __init__(
        self, client: Redis, address: RedisAddress, *, limit: int = LIMIT_BYTES, ttl: int = TTL_SECONDS
    ) -> None:
        self.url = address.shown
        self.limit = limit
        self.refused = 0
        self.corrupt = 0
        self._client = client
        self._prefix = address.prefix
        self._ttl = ttl
        self._touch_all = client.register_script(_TOUCH_ALL)
        self._delete_if = client.register_script(_DELETE_IF)

    def accepts(self, size: int) -> bool:
        """Whether a blob of so many bytes belongs here."""
        return size <= self.limit

    def _key(self, digest: Digest) -> str:
        return f"{self._prefix}:b:{digest.hash}:{digest.size}"

    def missing(self, digests: Iterable[Digest]) -> set[Digest]:
        wanted = list(dict.fromkeys(digests))
        absent: set[Digest] = set()
        with unavailable(self.url):
            for start in range(0, len(wanted), _BATCH):
                part = wanted[start : start + _BATCH]
                found = bytes(self._touch_all(keys=[self._key(digest) for digest in part], args=[self._ttl]))
                absent.update(digest for digest, there in zip(part, found, strict=True) if there != ord("1"))
        return absent

    def get(self, digest: Digest) -> bytes:
        key = self._key(digest)
        with unavailable(self.url):
            stored = self._client.getex(key, ex=self._ttl)
        if stored is None:
            raise BlobNotFoundError(f"the blob {digest} of {digest.size} bytes is not in {self.url}")
        assert isinstance(stored, bytes)  # the client does not decode
        data = _plain(stored, digest)
        if data is None:
            self.corrupt += 1
            with unavailable(self.url):
                self._delete_if(keys=[key], args=[stored])
            raise CorruptBlobError(f"the blob {digest} was damaged in {self.url} and has been removed there")
        return data

    def open(self, digest: Digest) -> BinaryIO:
        return io.BytesIO(self.get(digest))

    def put(self, data: Buffer, *, raw: bool = False) -> Digest:
        view = memoryview(data).cast("B")
        digest = Digest.of(view)
        if not self.accepts(digest.size):
            self.refused += 1
            return digest
        packed = not raw and shrinks(view)
        # Written whether it is there or not: the same bytes cross the network, and a damaged copy is healed.
        self._set(digest, _ENVELOPE + pack(view) if packed else _RAW + bytes(view))
        return digest

    def _set(self, digest: Digest, value: bytes) -> None:
        from redis.exceptions import OutOfMemoryError

        with unavailable(self.url):
            try:
                self._client.set(self._key(digest), value, ex=self._ttl)
            except OutOfMemoryError:
                self.refused += 1

    def put_stream(self, source: Source, *, raw: bool = False) -> Digest:
        kept = bytearray()
        hasher = blake3(max_threads=hash_threads(self.limit))
        size = 0
        for block in blocks_of(source):
            hasher.update(block)
            size += memoryview(block).nbytes
            if self.accepts(size):
                kept += block
            else:
                kept.clear()
        if self.accepts(size):
            return self.put(kept, raw=raw)
        self.refused += 1
        return Digest(hasher.hexdigest(), size)

    def delete(self, digest: Digest) -> bool:
        with unavailable(self.url):
            return self._client.unlink(self._key(digest)) == 1

    def iter(self) -> Iterator[Digest]:
        seen: set[bytes] = set()  # a scan may give a key twice
        start = len(f"{self._prefix}:b:")
        with unavailable(self.url):
            for key in self._client.scan_iter(match=f"{self._prefix}:b:*", count=_SCAN):
                if key in seen:
                    continue
                seen.add(key)
                hash_, _, size = key[start:].decode("ascii", "replace").partition(":")
                with suppress(InvalidRecordError, ValueError):
                    yield Digest(hash_, int(size))

    def close(self) -> None:
        """Closes the connections, which the documents share."""
        self._client.close()


def _plain(stored: bytes, digest: Digest) -> bytes | None:
    """The bytes under a key if they are those of the digest."""
    if stored[:1] == _ENVELOPE:
        try:
            data = unpack(memoryview(stored)[1:], digest.size)
        except InvalidRecordError:
            return None
    elif stored[:1] == _RAW:
        data = stored[1:]
    else:
        return None
    return data if Digest.of(data) == digest else None
