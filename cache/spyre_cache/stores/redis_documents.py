"""Documents in a Redis that may forget them: action results and what is needed to find them.

    <prefix>:d:<kind>:<key>       tag byte · version (16 random bytes) · time (µs, 8 bytes) · the document

The version makes a write that was answered by a lost connection safe to repeat: what stands there with one's own
version is one's own. Times are the server's.
"""

# ruff: noqa: D102  the methods' contract is DocumentStore's

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from spyre_cache.errors import InvalidRecordError, LimitExceededError
from spyre_cache.stores.documents import MAX_DOCUMENT_BYTES, Document, DocumentStore, Kind, check_key
from spyre_cache.stores.redis_client import RedisAddress, unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from redis import Redis

KINDS: frozenset[Kind] = frozenset({"actions", "documents"})
_TAG = b"1"
_VERSION_BYTES = 16
_TIME = slice(1 + _VERSION_BYTES, 1 + _VERSION_BYTES + 8)
_BATCH = 1000
_SCAN = 1000

# ARGV of all: version expected (empty for any; `-` for none at all), seconds to live, version, document.
# The time is written as eight bytes, most significant first.
_WRITE = """
local there = redis.call('GETRANGE', KEYS[1], 1, 16)
if there == ARGV[3] then return 1 end
if ARGV[1] == '-' then
    if there ~= '' then return 0 end
elseif ARGV[1] ~= '' and there ~= ARGV[1] then
    return 0
end
local now = redis.call('TIME')
local stamp = struct.pack('>I8', now[1] * 1000000 + now[2])
redis.call('SET', KEYS[1], '1' .. ARGV[3] .. stamp .. ARGV[4], 'EX', ARGV[2])
return 1
"""
_TOUCH = """
local now = redis.call('TIME')
local stamp = struct.pack('>I8', now[1] * 1000000 + now[2])
for _, key in ipairs(KEYS) do
    if redis.call('EXPIRE', key, ARGV[1]) == 1 then redis.call('SETRANGE', key, 17, stamp) end
end
return 1
"""
_REMOVE = """
if ARGV[1] ~= '' and redis.call('GETRANGE', KEYS[1], 1, 16) ~= ARGV[1] then return 0 end
return redis.call('UNLINK', KEYS[1])
"""


class RedisDocuments(DocumentStore):
    """Documents of some kinds in a Redis.

    Attributes:
        url: where, fit for messages.
        refused: documents not stored because Redis is full; with `strict` that is an error instead.
    """

    def __init__(
        self,
        client: Redis,
        address: RedisAddress,
        *,
        ttl: int,
        kinds: frozenset[Kind] = KINDS,
        strict: bool = False,
    ) -> None:
        self.url = address.shown
        self.refused = 0
        self._client = client
        self._prefix = address.prefix
        self._ttl = ttl
        self._kinds = kinds
        self._strict = strict
        self._write = client.register_script(_WRITE)
        self._touch = client.register_script(_TOUCH)
        self._remove = client.register_script(_REMOVE)

    def keeps(self, kind: Kind) -> bool:
        return kind in self._kinds

    def _key(self, kind: Kind, key: str) -> str:
        return f"{self._prefix}:d:{kind}:{check_key(key)}"

    def get_many(self, kind: Kind, keys: Iterable[str]) -> dict[str, Document]:
        found: dict[str, Document] = {}
        rest = iter(dict.fromkeys(keys))
        while part := list(islice(rest, _BATCH)):
            with unavailable(self.url):
                pipeline = self._client.pipeline(transaction=False)
                pipeline.mget([self._key(kind, key) for key in part])
                pipeline.time()
                values, (seconds, micros) = pipeline.execute()
            now = seconds * 1_000_000 + micros
            for key, value in zip(part, values, strict=True):
                if value is not None and (document := _document(value, now)) is not None:
                    found[key] = document
        return found

    def create(self, kind: Kind, key: str, data: bytes) -> bool:
        return self._put(kind, key, data, b"-")

    def replace(self, kind: Kind, key: str, data: bytes, *, expected: Document | None = None) -> bool:
        return self._put(kind, key, data, b"" if expected is None else _raw_version(expected))

    def _put(self, kind: Kind, key: str, data: bytes, expected: bytes) -> bool:
        from redis.exceptions import OutOfMemoryError

        if len(data) > MAX_DOCUMENT_BYTES:
            raise LimitExceededError(f"a document has at most {MAX_DOCUMENT_BYTES} bytes, but {len(data)} came")
        arguments: list[bytes | int] = [expected, self._ttl, os.urandom(_VERSION_BYTES), data]
        with unavailable(self.url):
            try:
                return bool(self._write(keys=[self._key(kind, key)], args=arguments))
            except OutOfMemoryError:
                if self._strict:
                    raise
                # As if it had been stored and evicted at once, which it may at any time.
                self.refused += 1
                return True

    def touch(self, kind: Kind, key: str) -> None:
        self.touch_many(kind, [key])

    def touch_many(self, kind: Kind, keys: Iterable[str]) -> None:
        rest = iter(keys)
        while part := list(islice(rest, _BATCH)):
            with unavailable(self.url):
                self._touch(keys=[self._key(kind, key) for key in part], args=[self._ttl])

    def remove(self, kind: Kind, key: str, *, expected: Document | None = None) -> bool:
        version = b"" if expected is None else _raw_version(expected)
        with unavailable(self.url):
            return bool(self._remove(keys=[self._key(kind, key)], args=[version]))

    def keys(self, kind: Kind, prefix: str = "") -> Iterator[str]:
        stem = f"{self._prefix}:d:{kind}:"
        match = stem + (f"{check_key(prefix)}/*" if prefix else "*")
        found = set()
        with unavailable(self.url):
            for key in self._client.scan_iter(match=match, count=_SCAN):
                with suppress(InvalidRecordError):
                    found.add(check_key(key[len(stem) :].decode("ascii", "replace")))
        yield from sorted(found)

    def close(self) -> None:
        """Closes the connections, which the blobs share."""
        self._client.close()


def _document(value: Any, now: int) -> Document | None:
    """What a value holds; None when it is none of ours."""
    head = _TIME.stop
    if len(value) < head or value[:1] != _TAG:
        return None
    age = max(0, now - int.from_bytes(value[_TIME], "big")) / 1e6
    return Document(bytes(value[head:]), age, value[1 : _TIME.start].hex())


def _raw_version(document: Document) -> bytes:
    try:
        return bytes.fromhex(document.version)
    except ValueError:
        return b"\0"  # of another store: equals none here
