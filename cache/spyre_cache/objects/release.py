"""Statements about manifests: in-toto Statement v1 in DSSE envelopes; a release is one of them."""

from __future__ import annotations

import base64
from typing import Any, Literal

import msgspec

from spyre_cache.codec import Record, encode
from spyre_cache.digest import Digest
from spyre_cache.objects.program import Plain

PAYLOAD_TYPE = "application/vnd.in-toto+json"
RELEASE_TYPE = "https://spyre-build.dev/release/v1"
PROVENANCE_TYPE = "https://slsa.dev/provenance/v1"
VERIFICATION_TYPE = "https://spyre-build.dev/verification/v1"


class Subject(Record, frozen=True, kw_only=True):
    """What a statement is about, by name and digests."""

    name: str
    digest: dict[str, str]


class Statement(Record, frozen=True, kw_only=True, rename={"type_": "_type"}):
    """in-toto Statement v1; `predicate` is checked by whoever knows `predicateType`."""

    type_: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
    subject: tuple[Subject, ...]
    predicateType: str  # noqa: N815  in-toto's own spelling
    predicate: msgspec.Raw | dict[str, Any]


class Signature(Record, frozen=True, kw_only=True):
    """One signature over an envelope's payload."""

    keyid: str
    sig: str


class Envelope(Record, frozen=True, kw_only=True):
    """DSSE: the payload's exact bytes (base64) and signatures over them; the slot is empty until signing lands."""

    payload: str
    payloadType: str  # noqa: N815  DSSE's own spelling
    signatures: tuple[Signature, ...] = ()

    @classmethod
    def wrap(cls, payload: bytes, payload_type: str = PAYLOAD_TYPE) -> Envelope:
        """An envelope around exactly these bytes, not signed yet."""
        return cls(payload=base64.b64encode(payload).decode("ascii"), payloadType=payload_type)

    def body(self) -> bytes:
        """The payload's exact bytes.

        Raises:
            ValueError: it is not base64.
        """
        return base64.b64decode(self.payload, validate=True)


class Release(Record, frozen=True, kw_only=True):
    """Predicate of a release: `name:version` points at the manifest that is the statement's subject."""

    schema: Literal["release/1"] = "release/1"
    name: str
    version: str
    manifest: Digest
    expires: str | None = None
    channel: str | None = None


class GoldenTensor(Record, frozen=True, kw_only=True):
    """A recorded tensor: raw bytes under `digest`, contiguous."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    digest: Digest


class GoldenValue(Record, frozen=True, kw_only=True):
    """A recorded result that is no tensor."""

    path: str
    value: Plain


class GoldenCall(Record, frozen=True, kw_only=True):
    """One call of a sequence made on one freshly loaded copy.

    Attributes:
        inputs: tensors by argument path, before the call.
        outputs: eager's tensors by result path.
        plain: eager's other results.
        after: the caller's mutated tensors after the call.
        error: bits of e(E), eager's own error against the higher-precision reference, per output path.
        structure: digest of the output tree's text, so that containers are compared too.
    """

    entry: str
    inputs: tuple[GoldenTensor, ...]
    outputs: tuple[GoldenTensor, ...]
    references: tuple[GoldenTensor, ...] = ()
    plain: tuple[GoldenValue, ...] = ()
    after: tuple[GoldenTensor, ...] = ()
    tolerance: tuple[tuple[str, str], ...] = ()


class Verification(Record, frozen=True, kw_only=True):
    """Predicate: golden vectors of a manifest. Sequences start from a fresh copy; calls in one run in order."""

    schema: Literal["verification/1"] = "verification/1"
    sequences: tuple[tuple[GoldenCall, ...], ...]
    host: str = ""


def statement_bytes(manifest: Digest, predicate_type: str, predicate: msgspec.Struct, name: str = "manifest") -> bytes:
    """The statement's exact bytes, ready to be wrapped (and later signed)."""
    statement = Statement(
        subject=(Subject(name=name, digest={"blake3": manifest.hash}),),
        predicateType=predicate_type,
        predicate=msgspec.Raw(encode(predicate)),
    )
    return encode(statement)
