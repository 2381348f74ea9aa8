"""Names for manifests: releases, channels, digest prefixes, pins, statements."""

from __future__ import annotations

import random
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from msgspec import structs

from spyre_cache.codec import Record, decode, encode
from spyre_cache.digest import Digest  # noqa: TC001  msgspec reads the annotations
from spyre_cache.errors import BlobNotFoundError, CacheUnavailableError, InvalidRecordError, ReferenceError_
from spyre_cache.objects.release import RELEASE_TYPE, Envelope, Release, statement_bytes

if TYPE_CHECKING:
    from spyre_cache.stores.base import BlobStore
    from spyre_cache.stores.documents import Document, DocumentStore

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
_PREFIX = re.compile(r"[0-9a-f]{6,64}")
_MAX_LISTED = 8
_WHOLE = 64
_LIMIT = 64 << 10
_TRIES = 50


class RefEntry(Record, frozen=True, kw_only=True):
    """What a release's document says.

    `order` counts the tags of a cache, so that "newest" needs no clock: a tag has a higher one than every tag that was
    done when it began, and no two that are done share one.

    Attributes:
        statement: the release statement in its envelope, a blob.
    """

    schema: Literal["ref/1"] = "ref/1"
    name: str
    version: str
    manifest: Digest
    statement: Digest
    order: int
    channel: str | None = None

    @property
    def label(self) -> str:
        """`name:version`."""
        return f"{self.name}:{self.version}"


class Known(Record, frozen=True, kw_only=True):
    """That a blob is a manifest; also the contents of a pin."""

    schema: Literal["known/1"] = "known/1"
    manifest: Digest


class Refs:
    """Releases of a cache and the registry of its manifests."""

    def __init__(self, documents: DocumentStore, blobs: BlobStore) -> None:
        self._documents = documents
        self._blobs = blobs

    # --- manifests ---

    def register(self, manifest: Digest) -> None:
        """Notes that a stored blob is a manifest, so that it is listed and found by prefix.

        Raises:
            BlobNotFoundError: no such blob.
        """
        with self._documents.steady():
            _require(self._blobs, manifest)
            self._documents.create("manifests", manifest.hash, encode(Known(manifest=manifest)))

    def manifests(self) -> list[Digest]:
        """Every registered manifest, by digest."""
        return _known(self._documents.get_many("manifests", self._documents.keys("manifests")))

    # --- releases ---

    def tag(
        self,
        name: str,
        version: str,
        manifest: Digest,
        *,
        channel: str | None = None,
        expires: str | None = None,
        force: bool = False,
    ) -> Digest:
        """Makes `name:version` stand for a manifest, and gives the digest of its release statement's envelope.

        Raises:
            ReferenceError_: malformed name, version or channel; or `name:version` stands for another manifest and
                `force` is not given.
            BlobNotFoundError: the manifest is not in the cache.
        """
        check_name(name)
        check_version(version)
        if channel is not None:
            check_name(channel, "a channel")
        release = Release(name=name, version=version, manifest=manifest, channel=channel, expires=expires)
        statement = statement_bytes(manifest, RELEASE_TYPE, release, name)
        envelope = self._blobs.put(encode(Envelope.wrap(statement)))
        self.register(manifest)
        entry = self._place(
            RefEntry(name=name, version=version, manifest=manifest, statement=envelope, order=0, channel=channel),
            force=force,
        )
        self._number(entry)
        return envelope

    def _place(self, entry: RefEntry, *, force: bool) -> RefEntry:
        """Writes a release, with a number above all that there are."""
        key = f"{entry.name}/{entry.version}"
        for _ in range(_TRIES):
            # In a directory this lets one tag at a time; elsewhere the conditional write and `_number` decide.
            with self._documents.steady():
                there = self._documents.get("refs", key)
                known = None if there is None else _entry(key, there)
                if known is not None and known.manifest != entry.manifest and not force:
                    raise ReferenceError_(f"{entry.label} already stands for {known.manifest}; take another version")
                entry = structs.replace(entry, order=1 + max((each.order for each in self.releases()), default=0))
                if self._write(entry, there):
                    return entry
        raise CacheUnavailableError(f"{entry.label} changed {_TRIES} times while it was being tagged; try again")

    def _write(self, entry: RefEntry, there: Document | None) -> bool:
        key = f"{entry.name}/{entry.version}"
        if there is None:
            return self._documents.create("refs", key, encode(entry))
        return self._documents.replace("refs", key, encode(entry), expected=there)

    def _number(self, entry: RefEntry) -> None:
        """Sees to it that no other release has this one's number.

        Two that are tagged at the same time may have taken the same one. Each looks after it has written, so that the
        later of them sees the other; whoever sees one moves on.
        """
        key = f"{entry.name}/{entry.version}"
        for attempt in range(_TRIES):
            taken = {each.order for each in self.releases() if each.label != entry.label}
            there = self._documents.get("refs", key)
            if entry.order not in taken or there is None or _entry(key, there) != entry:
                return  # or it was tagged anew meanwhile, which counts
            moved = structs.replace(entry, order=1 + max(taken))
            if self._documents.replace("refs", key, encode(moved), expected=there):
                entry = moved
            time.sleep(random.uniform(0, 0.005 * min(1 + attempt, 20)))  # noqa: S311  lest all move in step

    def untag(self, name: str, version: str) -> bool:
        """Removes a release; True when there was one. The manifest stays until it is collected."""
        check_name(name)
        check_version(version)
        return self._documents.remove("refs", f"{name}/{version}")

    def releases(self, name: str | None = None) -> list[RefEntry]:
        """Releases, the newest first."""
        keys = self._documents.keys("refs", "" if name is None else check_name(name))
        found = [
            entry
            for key, document in self._documents.get_many("refs", keys).items()
            if (entry := _entry(key, document)) is not None
        ]
        return sorted(found, key=lambda entry: (-entry.order, entry.name, entry.version))

    # --- resolving ---

    def resolve(self, ref: str) -> Digest:
        """The manifest that a user's word stands for.

        `name:version`, `name` (its newest), `name@channel` (the newest in the channel), `blake3:<64 hex>`, or six or
        more leading hex digits of a manifest's digest, with or without `blake3:`. A name goes before a prefix.

        Raises:
            ReferenceError_: malformed, unknown, or a prefix of several; the message lists what there is.
        """
        if ref.startswith("blake3:"):
            return self._by_prefix(ref.removeprefix("blake3:"), ref)
        name, at, channel = ref.partition("@")
        if at:
            check_name(channel, "a channel")
            matching = [e for e in self.releases(name) if e.channel == channel]
            return self._first(matching, ref)
        name, colon, version = ref.partition(":")
        if colon:
            check_version(version)
            return self._first([e for e in self.releases(name) if e.version == version], ref)
        releases = self.releases(name) if _NAME.fullmatch(name) else []
        if not releases and _PREFIX.fullmatch(ref):
            return self._by_prefix(ref, ref)
        check_name(name)
        return self._first(releases, ref)

    def _first(self, entries: list[RefEntry], ref: str) -> Digest:
        if entries:
            return entries[0].manifest
        name = re.split("[:@]", ref)[0]
        known = [e.label for e in self.releases(name)] or [e.label for e in self.releases()]
        raise ReferenceError_(f"there is no release {ref[:200]!r} in this cache; {_listed(known)}")

    def _by_prefix(self, prefix: str, ref: str) -> Digest:
        if not _PREFIX.fullmatch(prefix):
            raise ReferenceError_(f"a digest is named by 6 to 64 lowercase hex digits, not {ref[:80]!r}")
        # A shared cache may have very many: only those in question are read, and all are listed only when it must be.
        whole = self._documents.get_many("manifests", [prefix]) if len(prefix) == _WHOLE else {}
        keys = [] if whole else list(self._documents.keys("manifests"))
        found = _known(whole or self._documents.get_many("manifests", [k for k in keys if k.startswith(prefix)]))
        if len(found) == 1:
            return found[0]
        if found:
            raise ReferenceError_(
                f"{ref} begins the digests of several manifests: {_listed([str(d) for d in found])}; give more digits"
            )
        raise ReferenceError_(
            f"there is no manifest {ref} in this cache; {_listed([f'blake3:{key[:12]}' for key in keys])}"
        )


class Pins:
    """Manifests that garbage collection keeps, released or not."""

    def __init__(self, documents: DocumentStore, blobs: BlobStore) -> None:
        self._documents = documents
        self._blobs = blobs

    def add(self, manifest: Digest) -> bool:
        """True when it was not pinned before.

        Raises:
            BlobNotFoundError: no such blob.
        """
        with self._documents.steady():
            _require(self._blobs, manifest)
            return self._documents.create("pins", manifest.hash, encode(Known(manifest=manifest)))

    def remove(self, manifest: Digest) -> bool:
        """True when it was pinned."""
        return self._documents.remove("pins", manifest.hash)

    def list(self) -> list[Digest]:
        """Pinned manifests, by digest."""
        return _known(self._documents.get_many("pins", self._documents.keys("pins")))


class Attached(Record, frozen=True, kw_only=True):
    """A statement about a manifest: `blob` is its envelope."""

    schema: Literal["attached/1"] = "attached/1"
    manifest: Digest
    predicate_type: str
    blob: Digest


class Statements:
    """What is said about manifests, found by manifest; descriptions of fragments are filed the same way."""

    def __init__(self, documents: DocumentStore, blobs: BlobStore) -> None:
        self._documents = documents
        self._blobs = blobs

    def attach(self, manifest: Digest, predicate_type: str, blob: Digest) -> None:
        """Files a stored envelope under the manifest it is about.

        Raises:
            BlobNotFoundError: the envelope is not in the cache.
        """
        entry = Attached(manifest=manifest, predicate_type=predicate_type, blob=blob)
        with self._documents.steady():
            _require(self._blobs, blob)
            self._documents.create("statements", f"{manifest.hash}/{blob.hash}", encode(entry))

    def list(self, manifest: Digest, predicate_type: str | None = None) -> list[Attached]:
        """Statements about a manifest, the latest attached first."""
        found: list[tuple[float, Attached]] = []
        keys = self._documents.keys("statements", manifest.hash)
        for document in self._documents.get_many("statements", keys).values():
            with suppress(InvalidRecordError):
                entry = decode(document.data, Attached, limit=_LIMIT)
                if entry.manifest == manifest and predicate_type in (None, entry.predicate_type):
                    found.append((document.age, entry))
        return [entry for _, entry in sorted(found, key=lambda item: item[0])]

    def detach_all(self, manifest: Digest) -> None:
        """Forgets every statement about a manifest."""
        for key in list(self._documents.keys("statements", manifest.hash)):
            self._documents.remove("statements", key)


def check_name(text: str, what: str = "a name") -> str:
    """Raises ReferenceError_ unless the text is a release or channel name."""
    if not _NAME.fullmatch(text) or text == "blake3":
        raise ReferenceError_(
            f"{what} is lowercase letters, digits, '.', '_' and '-', begins with a letter or digit, has at most 128 "
            f"characters and is not 'blake3'; {text[:80]!r} is none"
        )
    return text


def check_version(text: str) -> str:
    """Raises ReferenceError_ unless the text is a version."""
    if not _VERSION.fullmatch(text):
        raise ReferenceError_(
            "a version is letters, digits and '._+-', begins with a letter or digit and has at most 128 characters; "
            f"{text[:80]!r} is none"
        )
    return text


def _require(blobs: BlobStore, digest: Digest) -> None:
    blobs.flush()
    if blobs.missing([digest]):
        raise BlobNotFoundError(f"only what is in the cache can be named, and {digest} is not; put it first")


def _entry(key: str, document: Document) -> RefEntry | None:
    """The release in a document, unless it is damaged or another's."""
    with suppress(InvalidRecordError):
        entry = decode(document.data, RefEntry, limit=_LIMIT)
        if f"{entry.name}/{entry.version}" == key:
            return entry
    return None


def _known(documents: dict[str, Document]) -> list[Digest]:
    found = []
    for key, document in documents.items():
        with suppress(InvalidRecordError):
            digest = decode(document.data, Known, limit=_LIMIT).manifest
            if digest.hash == key:
                found.append(digest)
    return found


def _listed(items: list[str]) -> str:
    if not items:
        return "it holds none"
    more = f" and {len(items) - _MAX_LISTED} more" if len(items) > _MAX_LISTED else ""
    return "there are " + ", ".join(items[:_MAX_LISTED]) + more
