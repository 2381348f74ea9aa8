"""Reads the documents that `explain` compares: the actions of a cache, and the fragments they are about."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from spyre_build.builds import BuildAction, BuildRecord, find, recent
from spyre_build.errors import BuildError, BuildNotFoundError, UsageError
from spyre_build.explain import Difference, diff_actions, features, nearest
from spyre_build.inspection import resolve
from spyre_cache.codec import decode
from spyre_cache.errors import CacheError
from spyre_cache.objects.fragment import Fragment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest
    from spyre_cache.objects.action import Action
    from spyre_cache.objects.manifest import Manifest

MAX_CANDIDATES = 2000
_PART = 500


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why one action hit or missed.

    Attributes:
        action: what was asked for.
        near: key of the nearest action that was in the cache, or empty.
        differences: what the wanted one has otherwise.
        same: the nearest is about the same fragment.
        compared: False when other fragments were not looked at, so that a nearer one may exist.
    """

    action: BuildAction
    near: str = ""
    differences: tuple[Difference, ...] = ()
    same: bool = False
    compared: bool = True

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
        self._digests: dict[str, Digest] = {}
        self.action = lru_cache(maxsize=MAX_CANDIDATES)(self._action)
        self.fragment = lru_cache(maxsize=256)(self._fragment)
        self.features = lru_cache(maxsize=MAX_CANDIDATES)(self._features)

    def candidates(self, without: Collection[str]) -> list[Action]:
        """Actions that have a good result here and whose document is known, but for some keys."""
        found: list[Action] = []
        keys = (key for key in self._cache.actions.described() if key not in without)
        while len(found) < MAX_CANDIDATES and (part := list(islice(keys, _PART))):
            found += (action for key in self._built(part) if (action := self.action(key)) is not None)
        return found[:MAX_CANDIDATES]

    def _built(self, keys: list[str]) -> list[str]:
        """Those that have a good result with all its outputs, in few round trips."""
        good = {key: result for key, result in self._cache.actions.peek_many(keys).items() if result.status == "ok"}
        absent = self._cache.blobs.missing({output.digest for result in good.values() for output in result.outputs})
        return [key for key in keys if key in good and absent.isdisjoint(o.digest for o in good[key].outputs)]

    def _action(self, key: str) -> Action | None:
        try:
            action = self._cache.actions.document(key)
        except CacheError:
            return None
        if action is not None:
            self._digests[action.fragment.hash] = action.fragment
        return action

    def _fragment(self, key: str) -> Fragment:
        return decode(self._cache.blobs.get(self._digests[key]), Fragment)

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
        wanted: digest of one fragment, or its beginning; empty for all.

    Raises:
        UsageError: no fragment of the build begins so.
    """
    chosen = [a for a in build.actions if a.fragment.hash.startswith(wanted.removeprefix("blake3:"))]
    if wanted and not chosen:
        raise UsageError(f"build {build.id} has no fragment {wanted[:80]!r}")
    return explain_actions(cache, build, chosen)


def explain_actions(
    cache: Cache, build: BuildRecord, chosen: Sequence[BuildAction], *, most: int | None = None
) -> list[Explanation]:
    """Why these actions of a build hit or missed, in their order.

    Args:
        cache: where the documents are.
        build: the build.
        chosen: actions of it.
        most: how many may be compared with the cache's other fragments, which takes long where there are many of both;
            None for all. Those beyond, first come first served, are `compared` with the same fragment only.
    """
    if all(entry.outcome == "hit" for entry in chosen):
        return [Explanation(action=entry) for entry in chosen]
    library = Library(cache)
    # What this build or a later one brought was not there when it looked, so it is not what the miss was near to.
    new = {a.key for b in recent(cache) if b.started >= build.started for a in b.actions if a.outcome != "hit"}
    others = _Others(library.candidates(new | {entry.key for entry in chosen if entry.outcome != "hit"}))
    names = argument_names()
    found, left = [], len(chosen) if most is None else most
    for entry in chosen:
        if entry.outcome == "hit":
            found.append(Explanation(action=entry))
            continue
        deep = left > 0
        explanation = _explain(library, entry, others, names, deep=deep)
        left -= not explanation.same
        found.append(explanation)
    return found


def explain_miss(cache: Cache, fragment: Digest, target: str, key: str) -> Explanation:
    """Compares one missing action with all that the cache knows."""
    library = Library(cache)
    entry = BuildAction(fragment=fragment, target=target, key=key)
    return _explain(library, entry, _Others(library.candidates({key})), argument_names())


def nearest_to_missing(cache: Cache, manifest: Manifest, fragment: str, target: str) -> str:
    """Words to end the error about a missing piece with: what there is that is nearest, and what differs; or none."""
    for artifact in manifest.artifacts:
        digest = manifest.fragments[artifact.fragment]
        if str(digest) == fragment and artifact.target == target:
            found = explain_miss(cache, digest, target, artifact.action)
            if found.differences:
                said = "; ".join(difference.text for difference in found.differences[:3])
                more = len(found.differences) - 3
                return f"; the nearest in the cache is action {found.near[:12]}: {said}" + f"; {more} more" * (more > 0)
            return "; nothing in the cache is near it"
    return ""


class _Others:
    """What a miss is compared with, by fragment too."""

    def __init__(self, actions: list[Action]) -> None:
        self.all = actions
        self.same: defaultdict[str, list[Action]] = defaultdict(list)
        for action in actions:
            self.same[action.fragment.hash].append(action)


def _explain(
    library: Library, entry: BuildAction, others: _Others, names: Callable[[str, int], str], *, deep: bool = True
) -> Explanation:
    wanted = library.action(entry.key)
    if wanted is None:
        return Explanation(action=entry)
    # The same fragment first: where there is one, the other fragments need not be read.
    near = nearest(wanted, others.same.get(entry.fragment.hash, ()), library.features)
    if near is not None:
        return Explanation(action=entry, near=near.key(), differences=diff_actions(near, wanted), same=True)
    if not deep:
        return Explanation(action=entry, compared=not others.all)
    near = nearest(wanted, others.all, library.features)
    if near is None:
        return Explanation(action=entry)
    try:
        found = diff_actions(near, wanted, library.fragment, names)
    except CacheError:
        found = diff_actions(near, wanted)
    return Explanation(action=entry, near=near.key(), differences=found)


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
