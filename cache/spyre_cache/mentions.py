"""What documents speak of: the digests and keys in a JSON document, whatever record it is. For garbage collection."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from spyre_cache.codec import check_depth
from spyre_cache.digest import Digest
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.release import Envelope

_PRINTED = re.compile(r"blake3:([0-9a-f]{64})")
_BARE = re.compile(r"[0-9a-f]{64}")


class Mentions(NamedTuple):
    """Attributes: `hashes` of everything mentioned; `digests` of what was mentioned with its size."""

    hashes: frozenset[str]
    digests: frozenset[Digest]


NOTHING = Mentions(frozenset(), frozenset())


def mentions(document: bytes) -> Mentions:
    """Every digest, as a record or printed, and every action key in a document; into envelopes as well.

    Anything that is 64 hex digits counts: to keep too much is safe. What is no JSON mentions nothing.
    """
    hashes: set[str] = set()
    digests: set[Digest] = set()
    stack: list[Any] = [parsed(document)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            hashes.update((item,) if _BARE.fullmatch(item) else _PRINTED.findall(item))
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend(item.values())
            if (digest := _digest(item)) is not None:
                digests.add(digest)
            if {"payload", "payloadType"} <= set(item) and isinstance(item["payload"], str):
                try:
                    stack.append(parsed(Envelope(payload=item["payload"], payloadType="").body()))
                except ValueError:
                    continue
    return Mentions(frozenset(hashes), frozenset(digests))


def parsed(document: bytes) -> Any:
    """A JSON document, or None when it is none."""
    try:
        check_depth(document, "document")
        return json.loads(document)
    except (ValueError, InvalidRecordError, RecursionError):
        return None


def digest_in(document: bytes, field: str) -> Digest | None:
    """The digest in a field of a document, or None."""
    content = parsed(document)
    return _digest(content.get(field)) if isinstance(content, dict) else None


def _digest(item: Any) -> Digest | None:
    if not isinstance(item, dict) or set(item) != {"hash", "size"} or not isinstance(item["size"], int):
        return None
    try:
        return Digest(str(item["hash"]), item["size"])
    except InvalidRecordError:
        return None
