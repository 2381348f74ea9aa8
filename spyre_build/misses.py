"""Reads the documents that `explain` compares: the actions of builds, and the fragments they are about."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from spyre_build.builds import BuildAction, BuildRecord, find, recent
from spyre_build.errors import BuildError, BuildNotFoundError
from spyre_build.explain import Difference, diff_actions, features, nearest
from spyre_build.inspection import resolve
from spyre_cache.codec import decode
from spyre_cache.errors import CacheError
from spyre_cache.objects.action import Action
from spyre_cache.objects.fragment import Fragment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spyre_cache.cache import Cache

MAX_CANDIDATES = 2000


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why one action hit or missed.

    Attributes:
        action: what was asked for.
        near: key of the nearest action that was in the cache, or empty.
        differences: what the wanted one has otherwise.
    """

    action: BuildAction
    near: str = ""
    differences: tuple[Difference, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "fragment": str(self.action.fragment),
            "target": self.action.target,
            "action": self.action.key,
            "outcome": self.action.outcome,
            "error": self.action.error,
            "nearest": self.near or None,
            "differences": [d.as_json() for d in self.differences],
        }


class Library:
    """The action documents and fragments of a cache, each read once."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.fragment = lru_cache(maxsize=256)(self._fragment)
        self.features = lru_cache(maxsize=4096)(self._features)
        self._sizes: dict[str, Any] = {}

    def action(self, entry: BuildAction) -> Action | None:
        """The stored document, or None when it is gone or damaged."""
        self._sizes[entry.fragment.hash] = entry.fragment
        try:
            return decode(self._cache.blobs.get(entry.document), Action)
        except CacheError:
            return None

    def _fragment(self, key: str) -> Fragment:
        return decode(self._cache.blobs.get(self._sizes[key]), Fragment)

    def _features(self, key: str) -> Counter[str]:
        try:
            return features(self.fragment(key))
        except CacheError:
            return Counter()


def explain_build(cache: Cache, build: BuildRecord, wanted: str = "") -> list[Explanation]:
    """Why each action of a build hit or missed; a miss is compared with what earlier builds had left.

    Args:
        cache: where the documents are.
        build: the build.
        wanted: hash of one fragment, or its beginning; empty for all.
    """
    library = Library(cache)
    older = list(_older(cache, build))
    names = argument_names()
    found = []
    for entry in build.actions:
        if not entry.fragment.hash.startswith(wanted.removeprefix("blake3:")):
            continue
        found.append(Explanation(action=entry) if entry.outcome == "hit" else _explain(library, entry, older, names))
    return found


def explain_miss(cache: Cache, entry: BuildAction) -> Explanation:
    """Compares one missing action with all that the cache's builds know."""
    entries = (a for build in recent(cache) for a in build.actions if a.outcome != "failed" and a.key != entry.key)
    return _explain(Library(cache), entry, list(entries), argument_names())


def _older(cache: Cache, build: BuildRecord) -> Iterator[BuildAction]:
    # What this build or a later one compiled was not there when it looked, so it is not what the miss was near to.
    own = {entry.key for entry in build.actions if entry.outcome != "hit"}
    seen: set[str] = set()
    for other in recent(cache):
        if other.id == build.id or other.started > build.started:
            continue
        for entry in other.actions:
            if entry.outcome != "failed" and entry.key not in own and entry.key not in seen:
                seen.add(entry.key)
                yield entry


def _explain(
    library: Library, entry: BuildAction, others: list[BuildAction], names: Callable[[str, int], str]
) -> Explanation:
    wanted = library.action(entry)
    if wanted is None:
        return Explanation(action=entry)
    # The same fragment first: where there is one, the rest need not be read.
    same = [o for o in others if o.fragment == entry.fragment]
    for pool in (same, others[:MAX_CANDIDATES]):
        documents = filter(None, map(library.action, pool))
        if (near := nearest(wanted, documents, library.features)) is not None:
            try:
                found = diff_actions(near, wanted, library.fragment, names)
            except CacheError:
                found = diff_actions(near, wanted)
            return Explanation(action=entry, near=near.key(), differences=found)
    return Explanation(action=entry)


def argument_names() -> Callable[[str, int], str]:
    """Names of operators' positional arguments from torch's schemas; torch is imported at the first question."""

    @lru_cache(maxsize=1024)
    def names(op: str) -> tuple[str, ...]:
        import torch

        name, _, overload = op.partition(".")
        try:
            schema = torch._C._get_schema(name, "" if overload == "default" else overload)  # noqa: SLF001
        except RuntimeError:
            return ()
        return tuple(argument.name for argument in schema.arguments)

    def name(op: str, position: int) -> str:
        known = names(op)
        return known[position] if position < len(known) else ""

    return name


def build_of(cache: Cache, what: str) -> BuildRecord:
    """The build of an id, or the newest one that made the manifest of a REF.

    Raises:
        BuildNotFoundError: neither; or the model's build is not kept any more.
    """
    try:
        return find(cache, what)
    except BuildNotFoundError:
        try:
            digest = resolve(cache, what)
        except BuildError:
            raise BuildNotFoundError(f"{what[:80]!r} is neither a build nor a model in this cache") from None
    for record in recent(cache):
        if record.manifest == str(digest):
            return record
    raise BuildNotFoundError(f"the build that made {digest} is not kept in this cache")
