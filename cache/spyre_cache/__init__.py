"""Bytes by content and the records made of them: the cache under everything else."""

from spyre_cache.cache import Cache, Stats
from spyre_cache.digest import Digest
from spyre_cache.errors import (
    BlobNotFoundError,
    CacheError,
    CacheUnavailableError,
    CorruptBlobError,
    InvalidRecordError,
    LimitExceededError,
    ReadOnlyCacheError,
    ReferenceError_,
)
from spyre_cache.stores.base import BlobStore, Buffer, LocalBlobStore

__all__ = [
    "BlobNotFoundError",
    "BlobStore",
    "Buffer",
    "Cache",
    "CacheError",
    "CacheUnavailableError",
    "CorruptBlobError",
    "Digest",
    "InvalidRecordError",
    "LimitExceededError",
    "LocalBlobStore",
    "ReadOnlyCacheError",
    "ReferenceError_",
    "Stats",
]
