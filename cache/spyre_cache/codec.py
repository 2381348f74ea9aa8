"""Deterministic bytes for records, and a decoder that refuses what it does not know."""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from spyre_cache.errors import InvalidRecordError, LimitExceededError

MAX_RECORD_BYTES = 256 << 20
MAX_DEPTH = 200

_encoder = msgspec.json.Encoder(order="sorted")
R = TypeVar("R", bound=msgspec.Struct)


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what is hashed, stored or sent: frozen, keyword-only, of tuples and scalars."""


def encode(record: msgspec.Struct) -> bytes:
    """Canonical JSON of a record: keys sorted, no white space, UTF-8. The same record gives the same bytes anywhere."""
    return _encoder.encode(record)


def decode(data: bytes, kind: type[R], *, limit: int = MAX_RECORD_BYTES) -> R:
    """Parses a record and checks that its schema is the one this version knows.

    Raises:
        LimitExceededError: more than `limit` bytes, or nested deeper than `MAX_DEPTH`.
        InvalidRecordError: not JSON, not this record, or another schema version.
    """
    name = kind.__name__
    if len(data) > limit:
        raise LimitExceededError(f"a {name} has at most {limit} bytes, but {len(data)} came")
    check_depth(data, name)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRecordError(f"these {len(data)} bytes are not a {name} this version knows: {error}") from None
    except RecursionError:
        raise LimitExceededError(f"a {name} is nested too deeply to be read") from None


def check_depth(data: bytes, name: str, limit: int = MAX_DEPTH) -> None:
    """Refuses JSON nested deeper than `limit` before anything recursive sees it.

    Strings are skipped; anything malformed is left for the real parser to report.
    """
    if data.count(b"[") + data.count(b"{") <= limit:
        return  # as most are: not even one inside the other would they be too deep
    import re

    depth = deepest = 0
    # Strings out first, so that only structural brackets are counted. Possessive, and an unterminated string is one to
    # the end: whatever the bytes are, each is looked at once.
    for bracket in re.findall(rb"[\[\]{}]", re.sub(rb'(?s)"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', b"", data)):
        if bracket in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    if deepest > limit:
        raise LimitExceededError(f"a {name} is nested at most {limit} deep, but {deepest} came")


def float_bits(value: float) -> str:
    """IEEE 754 binary64 as 16 hex digits, big-endian: the only spelling of a float in anything hashed."""
    return struct.pack(">d", value).hex()


def bits_float(bits: str) -> float:
    """Inverse of `float_bits`.

    Raises:
        InvalidRecordError: not 16 hex digits.
    """
    try:
        raw = bytes.fromhex(bits)
        if len(raw) != 8:
            raise ValueError(bits)  # noqa: TRY301  both ways to be wrong end in one sentence
        return float(struct.unpack(">d", raw)[0])
    except ValueError:
        raise InvalidRecordError(f"a float is 16 hex digits of its bits, not {bits[:40]!r}") from None
