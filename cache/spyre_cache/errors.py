"""Errors of the cache: one base, one class a condition; each message gives the rule, what came, and the remedy."""

from __future__ import annotations

from typing import Literal


class CacheError(Exception):
    """Base of everything `spyre_cache` raises on purpose."""


class BlobNotFoundError(CacheError):
    """A blob that was asked for by digest is in no tier."""


class CorruptBlobError(BlobNotFoundError):
    """Stored bytes do not have the digest they are filed under; the object was quarantined.

    A kind of absence, so that `except BlobNotFoundError` treats corruption as the miss that it is.
    """


class InvalidRecordError(CacheError):
    """Bytes are not a record of the schema and version expected, or break one of its limits."""


class LimitExceededError(InvalidRecordError):
    """Something parsed is larger or deeper than the limits allow."""


class ReferenceError_(CacheError):  # noqa: N801, N818  the builtin has the plain name
    """A release name or digest prefix is unknown, malformed or ambiguous."""


class CacheUnavailableError(CacheError):
    """The cache itself cannot be used: full disk, no permission, not a cache directory; or the broker beside it.

    Attributes:
        service: what it is that cannot be used.
    """

    service: Literal["cache", "broker"] = "cache"


class ReadOnlyCacheError(CacheUnavailableError):
    """A write was asked of a cache that only reads."""
