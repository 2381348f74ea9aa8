"""What is said about a manifest with golden vectors, as stored statements; torch is not needed to pass them on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from spyre_cache.codec import decode, encode
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.release import (
    PAYLOAD_TYPE,
    VERIFICATION_TYPE,
    Envelope,
    Statement,
    Verification,
    statement_bytes,
)

if TYPE_CHECKING:
    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest

MAX_STATEMENT_BYTES = 64 << 20


def attach_verification(cache: Cache, manifest: Digest, verification: Verification) -> Digest:
    """Stores golden vectors as a statement about a manifest; gives the digest of the statement's envelope."""
    payload = statement_bytes(manifest, VERIFICATION_TYPE, verification)
    blob = cache.blobs.put(encode(Envelope.wrap(payload)))
    cache.statements.attach(manifest, VERIFICATION_TYPE, blob)
    return blob


def verification_of(cache: Cache, manifest: Digest) -> Verification | None:
    """The newest golden vectors of a manifest, or None when none were recorded.

    Raises:
        InvalidRecordError: the statement is malformed or about something else.
        BlobNotFoundError: it is filed but gone.
    """
    for said in cache.statements.list(manifest):
        if said.predicate_type == VERIFICATION_TYPE:
            return read_verification(cache.blobs.get(said.blob), manifest)
    return None


def read_verification(data: bytes, manifest: Digest) -> Verification:
    """The golden vectors in an envelope's bytes.

    Raises:
        InvalidRecordError: not an envelope of a verification of this manifest.
    """
    envelope = decode(data, Envelope, limit=MAX_STATEMENT_BYTES)
    try:
        body = envelope.body()
    except ValueError:
        raise InvalidRecordError("the payload of an envelope is not base64") from None
    if envelope.payloadType != PAYLOAD_TYPE:
        raise InvalidRecordError(f"a statement has type {PAYLOAD_TYPE}, not {envelope.payloadType[:80]!r}")
    statement = decode(body, Statement, limit=MAX_STATEMENT_BYTES)
    subjects = [subject.digest.get("blake3") for subject in statement.subject]
    if statement.predicateType != VERIFICATION_TYPE or manifest.hash not in subjects:
        raise InvalidRecordError(f"a statement filed under {manifest} is not a verification of it")
    # Decoded as a dict, raw when it was made here: encoding gives the same JSON either way.
    return decode(msgspec.json.encode(statement.predicate), Verification, limit=MAX_STATEMENT_BYTES)
