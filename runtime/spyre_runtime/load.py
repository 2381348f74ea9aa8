"""From a manifest to a callable: verifies, checks the host, maps weights, loads each unique fragment once."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import torch

from spyre_cache.codec import decode
from spyre_cache.errors import BlobNotFoundError, InvalidRecordError
from spyre_cache.objects.manifest import Artifact, Manifest
from spyre_cache.objects.target import TARGETS
from spyre_runtime.drivers.cpu import CpuDriver
from spyre_runtime.drivers.eager import EagerDriver
from spyre_runtime.errors import (
    ArgumentError,
    EntryError,
    IncompatibleHostError,
    InvalidProgramError,
    MissingPieceError,
    PolicyError,
)
from spyre_runtime.program import NAMED, Executable, written_names
from spyre_runtime.trees import Classes
from spyre_runtime.weights import Source, load_weights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spyre_cache.digest import Digest
    from spyre_cache.objects.program import Program
    from spyre_cache.stores.base import LocalBlobStore
    from spyre_runtime.drivers.base import Call, Driver

DEVICES: Final = ("cpu", "eager")
Policy = Literal["strict", "fetch"]


class References(Protocol):
    """What `load` needs of a cache's references."""

    def resolve(self, ref: str) -> Digest:
        """The manifest that a release, channel or digest prefix names."""


class CacheFace(Protocol):
    """What `load` needs of a cache."""

    @property
    def blobs(self) -> LocalBlobStore:
        """The local blobs."""

    @property
    def refs(self) -> References:
        """The references."""


class Entry:
    """One entry of a loaded model, with its buckets: the first that a call fits runs it.

    Attributes:
        name: what the entry is called.
        buckets: the named sizes of each bucket, in order; `()` for an entry without.
    """

    def __init__(self, name: str, executables: list[Executable]) -> None:
        self.name = name
        self._executables = executables
        self._last = executables[0]

    def __repr__(self) -> str:
        programs = [executable.program for executable in self._executables]
        names = [argument.label for argument in programs[0].arguments if argument.value is None]
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        sizes = f" in {len(programs)} buckets" if len(programs) > 1 else ""
        return f"{self.name}({shown}){sizes}"

    @property
    def buckets(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Sizes by name of every bucket."""
        return tuple(executable.program.bucket for executable in self._executables)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Takes and returns what the original module did.

        Raises:
            ArgumentError: the call does not fit (any bucket of) the entry.
        """
        last = self._last
        try:
            bound = last.bind(args, kwargs)
        except ArgumentError as error:
            if len(self._executables) == 1:
                raise
            last, bound = self._other(args, kwargs, last, error)
            self._last = last
        return last.run(*bound)

    def _other(self, args: Any, kwargs: Any, tried: Executable, first: ArgumentError) -> tuple[Executable, Any]:
        for executable in self._executables:
            if executable is not tried:
                try:
                    return executable, executable.bind(args, kwargs)
                except ArgumentError:
                    continue
        buckets = "; ".join(_spell(bucket) for bucket in self.buckets)
        raise ArgumentError(
            f"the entry {self.name!r} has the buckets {buckets}, and the call fits none ({first}):"
            " pad to a bucket, or build one of this size"
        )


class LoadedModel:
    """A model that is ready to run. Thread-safe; copies loaded separately share no state.

    Attributes:
        manifest: the record it was made of.
        digest: its digest.
        device: `cpu` or `eager`.
        notes: remarks made while loading, for people.
    """

    def __init__(
        self,
        manifest: Manifest,
        digest: Digest,
        device: str,
        entries: dict[str, Entry],
        notes: tuple[str, ...],
    ) -> None:
        self.manifest, self.digest, self.device, self.notes = manifest, digest, device, notes
        self._entries = entries
        self._only = next(iter(entries.values())) if len(entries) == 1 else None

    def __repr__(self) -> str:
        calls = ", ".join(map(repr, self._entries.values()))
        return f"<LoadedModel blake3:{self.digest.short} on {self.device}: {calls}>"

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries."""
        return tuple(self._entries)

    def entry(self, name: str) -> Entry:
        """One entry, callable; all entries of a loaded model share weights and state.

        Raises:
            EntryError: no entry has this name.
        """
        try:
            return self._entries[name]
        except KeyError:
            raise _unknown_entry(name, self._entries) from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the only entry.

        Raises:
            EntryError: there are several; name one with `.entry(name)`.
            ArgumentError: the call does not fit the entry.
        """
        if self._only is None:
            raise EntryError(f"this model has the entries {', '.join(self._entries)}: call .entry(name)(…)")
        return self._only(*args, **kwargs)


def load(
    cache: CacheFace,
    manifest: Digest | str,
    *,
    device: str = "cpu",
    weights: Source | None = None,
    entry: str | None = None,
    types: Iterable[type] = (),
    policy: str = "strict",
    plain: bool = False,
) -> LoadedModel:
    """Loads a precompiled model; compiles nothing.

    Args:
        cache: where its pieces are.
        manifest: the digest, or a reference that the cache resolves.
        device: `cpu` runs compiled fragments, `eager` interprets them.
        weights: a safetensors file, a directory of them, or a state dict; wins over stored weights.
        entry: load only this entry.
        types: classes of results that need not be imported by name.
        policy: `strict` refuses a model that lacks a piece; `fetch` interprets fragments without artifact, with one
            warning.
        plain: results with dicts instead of dataclasses and named tuples.

    Raises:
        MissingPieceError: a piece is not in the cache; names it.
        IncompatibleHostError: this host provides none of the model's targets.
        WeightsError: weights are missing or do not fit.
        InvalidProgramError: the manifest is malformed.
        TypeUnknownError: a result's class is neither imported nor passed.
        EntryError: no such entry.
        PolicyError: an unknown device or policy.
    """
    if device not in DEVICES:
        raise PolicyError(f"a device is one of {', '.join(DEVICES)}, not {device[:40]!r}")
    if policy not in {"strict", "fetch"}:
        raise PolicyError(
            f"the runtime knows the policies strict and fetch, not {policy[:40]!r}: only a build compiles"
        )
    digest = cache.refs.resolve(manifest) if isinstance(manifest, str) else manifest
    record = read_manifest(cache, digest)
    programs = _chosen(record, entry)
    eager = EagerDriver(cache.blobs, frozenset(record.custom_ops))
    driver: Driver = eager if device == "eager" else CpuDriver(cache.blobs)
    loader = _Loader(record, driver, eager if policy == "fetch" else None)
    calls = {index: loader.load(index) for index in dict.fromkeys(step.fragment for p in programs for step in p.steps)}
    used = {slot.name for program in programs for slot in program.slots if slot.kind in NAMED}
    with torch.inference_mode(mode=False):  # state made inside inference mode could not be written to outside it
        loaded = load_weights((w for w in record.weights if w.name in used), cache.blobs, weights)
        written = written_names(record.programs) & loaded.tensors.keys()
        tensors = loaded.tensors | {name: loaded.tensors[name].clone() for name in written}
    lock = threading.Lock()
    entries: dict[str, list[Executable]] = {}
    classes = Classes(types)
    for program in programs:
        stateful = any(slot.name in written for slot in program.slots if slot.kind in NAMED)
        entries.setdefault(program.name, []).append(
            Executable(program, calls, tensors, lock=lock if stateful else None, classes=classes, plain=plain)
        )
    others = weights is not None and record.weight_mode == "store"
    replaced = ("the weights that the model stores are not used: others were given",) if others else ()
    notes = (*replaced, *loaded.notes, *loader.notes())
    return LoadedModel(record, digest, device, {name: Entry(name, group) for name, group in entries.items()}, notes)


def read_manifest(cache: CacheFace, digest: Digest) -> Manifest:
    """The manifest of a digest.

    Raises:
        MissingPieceError: not in the cache.
        InvalidProgramError: these bytes are no manifest this version knows.
    """
    try:
        return decode(cache.blobs.get(digest), Manifest)
    except BlobNotFoundError as error:
        raise MissingPieceError(f"the manifest {digest.short} is not in this cache ({error}): pull it") from None
    except InvalidRecordError as error:
        raise InvalidProgramError(str(error)) from None


def _chosen(manifest: Manifest, entry: str | None) -> list[Program]:
    programs = [program for program in manifest.programs if entry in {None, program.name}]
    if not programs:
        raise _unknown_entry(entry or "", dict.fromkeys(program.name for program in manifest.programs))
    return programs


class _Loader:
    """Chooses each fragment's artifact and has it loaded."""

    def __init__(self, manifest: Manifest, driver: Driver, fallback: Driver | None) -> None:
        self._manifest, self._driver, self._fallback = manifest, driver, fallback
        self._interpreted = 0
        self._targets: list[str] = []
        if driver.needs_artifacts:
            self._targets = self._provided()
        self._artifacts: dict[tuple[int, str], Artifact] = {(a.fragment, a.target): a for a in manifest.artifacts}

    def _provided(self) -> list[str]:
        """Targets of the manifest that the host provides, the most demanding first."""
        known = [TARGETS[name] for name in self._manifest.targets if name in TARGETS]
        lacks = {target.name: self._driver.provides(target) for target in known}
        fit = [target for target in known if lacks[target.name] is None]
        if not fit and self._fallback is None:
            why = "; ".join(lack for lack in lacks.values() if lack) or "none is for this device"
            raise IncompatibleHostError(
                f"this model is built for {', '.join(self._manifest.targets) or 'nothing'}, and this host runs none of"
                f" them ({why}): build it for a target of this host, or load it with device='eager'"
            )
        return [target.name for target in sorted(fit, key=lambda target: -len(target.features))]

    def load(self, index: int) -> Call:
        if not 0 <= index < len(self._manifest.fragments):
            raise InvalidProgramError(f"a step calls fragment {index}, but there are {len(self._manifest.fragments)}")
        digest = self._manifest.fragments[index]
        if not self._driver.needs_artifacts:
            return self._driver.load(digest, None)
        try:
            return self._driver.load(digest, self._artifact(index, digest))
        except MissingPieceError:
            if self._fallback is None:
                raise
        if not self._interpreted:
            warnings.warn(
                "compiled pieces of this model are missing; those fragments are interpreted, which is slow (build the "
                "model for this host's target to avoid it)",
                RuntimeWarning,
                stacklevel=3,
            )
        self._interpreted += 1
        return self._fallback.load(digest, None)

    def _artifact(self, index: int, digest: Digest) -> Artifact:
        for target in self._targets:
            artifact = self._artifacts.get((index, target))
            if artifact is not None:
                return artifact
        target = self._targets[0] if self._targets else "this host"
        raise MissingPieceError(
            f"fragment {digest.short} has no artifact for {target}: build the model for it, or use policy='fetch'",
            fragment=str(digest),
            target=target,
        )

    def notes(self) -> tuple[str, ...]:
        if not self._interpreted:
            return ()
        return (f"{self._interpreted} of the fragments are interpreted, because their artifacts are missing",)


def _unknown_entry(name: str, entries: Iterable[str]) -> EntryError:
    return EntryError(f"no entry is called {name[:80]!r}; there are {', '.join(entries)}")


def _spell(bucket: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{name}={size}" for name, size in bucket) or "(unnamed)"
