"""Golden vectors as they are kept: a verification statement about a manifest, and the tensors it names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import torch

from spyre_cache.codec import decode, encode
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.release import (
    PAYLOAD_TYPE,
    VERIFICATION_TYPE,
    Envelope,
    GoldenTensor,
    Statement,
    Verification,
    statement_bytes,
)
from spyre_runtime.vocabulary import DTYPE_NAMES, DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def put_tensor(cache: Cache, path: str, tensor: torch.Tensor) -> GoldenTensor:
    """Stores a tensor's values, contiguous."""
    digest = cache.blobs.put(tensor_bytes(tensor))
    return GoldenTensor(path=path, dtype=DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape), digest=digest)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """A tensor's values, contiguous, in the machine's order of bytes."""
    # A conjugated or negated view keeps that as a flag beside its memory.
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return bytes(whole.reshape(-1).view(torch.uint8).numpy()) if whole.numel() else b""


def golden_tensor(cache: Cache, recorded: GoldenTensor) -> torch.Tensor:
    """A stored tensor, in memory of its own.

    Raises:
        BlobNotFoundError: its bytes are gone.
        InvalidRecordError: unknown dtype, or the bytes do not fill the shape.
    """
    dtype = DTYPES.get(recorded.dtype)
    if dtype is None or any(d < 0 for d in recorded.shape):
        raise InvalidRecordError(f"the recorded tensor {recorded.path[:80]!r} has no possible dtype or shape")
    if recorded.digest.size != math.prod(recorded.shape) * dtype.itemsize:
        raise InvalidRecordError(f"the recorded tensor {recorded.path[:80]!r} does not fill its shape")
    if not recorded.digest.size:
        return torch.empty(recorded.shape, dtype=dtype)
    return torch.frombuffer(bytearray(cache.blobs.get(recorded.digest)), dtype=dtype).reshape(recorded.shape)


def golden_tensors(cache: Cache, recorded: Iterable[GoldenTensor]) -> dict[str, torch.Tensor]:
    """Stored tensors by path."""
    return {item.path: golden_tensor(cache, item) for item in recorded}
