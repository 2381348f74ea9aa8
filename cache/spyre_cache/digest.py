"""BLAKE3 digests: the address of every blob, and the keys derived from records."""

from __future__ import annotations

import os
import re
from typing import Self

import msgspec
from blake3 import blake3

from spyre_cache.errors import InvalidRecordError

_HEX = re.compile(r"[0-9a-f]{64}")
_PRINTED = re.compile(r"blake3:([0-9a-f]{64})")


_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def hash_threads(size: int) -> int:
    """What to give `blake3` as `max_threads` for so many bytes.

    One thread in a forked child: it inherits the library's pool without the pool's threads, and would wait for them
    for ever.
    """
    return 1 if _forked or size <= 1 << 20 else blake3.AUTO


class Digest(msgspec.Struct, frozen=True, order=True):
    """BLAKE3-256 of plain bytes, with their number.

    Attributes:
        hash: 64 lowercase hex digits.
        size: length of the plain bytes.
    """

    hash: str
    size: int

    def __post_init__(self) -> None:
        if not _HEX.fullmatch(self.hash):
            raise InvalidRecordError(f"a digest is 64 lowercase hex digits, not {self.hash[:80]!r}")
        if self.size < 0:
            raise InvalidRecordError(f"a digest's size is not negative, but {self.size} came")

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Self:
        """Digest of bytes in memory; above 1 MiB all cores hash."""
        size = len(data) if isinstance(data, (bytes, bytearray)) else data.nbytes
        return cls(blake3(data, max_threads=hash_threads(size)).hexdigest(), size)

    def __str__(self) -> str:
        return f"blake3:{self.hash}"

    @property
    def short(self) -> str:
        """First twelve hex digits, for people."""
        return self.hash[:12]


def parse_hash(text: str) -> str:
    """Takes `blake3:<64 hex>` and gives the hex digits.

    Raises:
        InvalidRecordError: the text is anything else.
    """
    match = _PRINTED.fullmatch(text)
    if match is None:
        raise InvalidRecordError(f"a printed digest is blake3:<64 hex digits>, not {text[:80]!r}")
    return match[1]


def derive_key(context: str, *parts: bytes) -> str:
    """BLAKE3 in derive-key mode over length-prefixed parts, as 64 hex digits.

    Each part is preceded by its length in eight little-endian bytes, so that no two splits of the same
    concatenation agree.
    """
    hasher = blake3(derive_key_context=context)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()
