"""Calls a loaded model with tensors out of files or records, and names what comes back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from spyre_build.errors import MissingPieceError, TensorFileError, UsageError
from spyre_build.golden import golden_tensors
from spyre_build.inspection import read_manifest, slot_spec
from spyre_build.statements import verification_of
from spyre_build.tensorfile import read_tensors, write_tensors
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.fragment import SymSpec, TensorSpec
from spyre_cache.objects.program import Leaf, Plain, Tree
from spyre_runtime import trees
from spyre_runtime.errors import MissingPieceError as RuntimeMissingPieceError
from spyre_runtime.load import LoadedModel, load
from spyre_runtime.plain import from_plain, show, to_plain
from spyre_runtime.vocabulary import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from spyre_build.events import Events
    from spyre_cache.cache import Cache
    from spyre_cache.digest import Digest
    from spyre_cache.objects.manifest import Manifest
    from spyre_cache.objects.program import Argument, Program
    from spyre_cache.objects.release import GoldenCall

SHOWN_VALUES = 4


@dataclass(frozen=True, kw_only=True)
class Named:
    """A nested value with its leaves named by path.

    Attributes:
        tensors: by path: `out`, `out.0`, `out.logits`.
        plain: everything else that is not a container; None as a leaf is there too.
    """

    tensors: dict[str, torch.Tensor]
    plain: dict[str, Any]


def named(value: object, path: str = "out") -> Named:
    """Names the leaves of a value.

    Raises:
        UnsupportedValueError: a container of an unknown class.
    """
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, Any] = {}

    def leaf(where: str, item: object) -> Tree:
        if isinstance(item, torch.Tensor):
            tensors[where] = item
        else:
            plain[where] = item
        return Leaf(v=0)

    trees.flatten(value, leaf, path=path)
    return Named(tensors=tensors, plain=plain)


def call_arguments(program: Program, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The (args, kwargs) of a call from tensors keyed by argument path or label.

    Plain arguments take the value they were built with; a tensor argument that the model ignores may be left out.

    Raises:
        TensorFileError: a tensor is missing, or one has a name that no argument has.
        InvalidRecordError: the program's argument trees contradict its arguments.
    """
    known = {name for a in program.arguments if a.value is None for name in (a.path, a.label)}
    stray = sorted(set(tensors) - known)
    paths = [a.path for a in program.arguments if a.value is None]
    if stray:
        hint = f"{program.name} takes {', '.join(paths) or 'no tensors'}"
        raise TensorFileError(f"no argument is called {stray[0]!r}", hint=hint)
    leaves = [_leaf(program, argument, tensors) for argument in program.arguments]
    try:
        args = trees.build(program.input_args, leaves)
        kwargs = trees.build(program.input_kwargs, leaves)
        return tuple(args), dict(kwargs)
    except (IndexError, TypeError, ValueError):
        raise InvalidRecordError(f"the program {program.name[:80]} has arguments that no call can have") from None


def _leaf(program: Program, argument: Argument, tensors: Mapping[str, torch.Tensor]) -> Any:
    if argument.value is not None:
        return from_plain(argument.value)
    given = tensors.get(argument.path, tensors.get(argument.label))
    spec = argument.unused if argument.slot is None else slot_spec(program, argument.slot)
    if isinstance(spec, SymSpec):
        if given is None or given.numel() != 1:
            raise TensorFileError(
                f"{argument.path} is one whole number, and the file holds none", hint="store a scalar"
            )
        return int(given.item())
    if given is not None:
        return given
    if argument.slot is None and isinstance(spec, TensorSpec):
        # The model does not read it, but the call must have it.
        return torch.zeros([d if isinstance(d, int) else 2 for d in spec.shape], dtype=DTYPES[spec.dtype])
    raise TensorFileError(
        f"the argument {argument.path} is not in the file", hint=f"it is a tensor called {argument.label} in the model"
    )


def choose_program(manifest: Manifest, entry: str | None, tensors: Mapping[str, torch.Tensor]) -> Program:
    """The program of an entry whose arguments have the shapes of `tensors`, or the entry's first.

    Raises:
        UsageError: no such entry, or none was named and there are several.
    """
    names = list(dict.fromkeys(program.name for program in manifest.programs))
    if entry is None and len(names) > 1:
        raise UsageError(f"this model has the entries {', '.join(names)}", hint="choose one with --entry")
    found = [program for program in manifest.programs if entry in (None, program.name)]
    if not names:
        raise InvalidRecordError("this manifest has no programs")
    if not found:
        raise UsageError(f"no entry is called {entry!r}", hint=f"there are {', '.join(names)}")
    return next((program for program in found if _fits(program, tensors)), found[0])


def _fits(program: Program, tensors: Mapping[str, torch.Tensor]) -> bool:
    for argument in program.arguments:
        given = tensors.get(argument.path, tensors.get(argument.label))
        spec = slot_spec(program, argument.slot)
        if given is None or not isinstance(spec, TensorSpec):
            continue
        if len(spec.shape) != given.dim():
            return False
        if any(isinstance(d, int) and d != extent for d, extent in zip(spec.shape, given.shape, strict=True)):
            return False
    return True


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What `run` was asked for.

    Attributes:
        device: `cpu` or `eager`.
        policy: what happens when something precompiled is missing: `strict`, `fetch` or `build`.
        entry: which entry; None for the only one.
        inputs: a file of tensors; None for the recorded ones.
        outputs: where results are written; None for nowhere.
        weights: tensors of a model that does not store its own.
        imports: modules, or Python files, that define custom operators, for compiling processes.
    """

    device: str = "cpu"
    policy: str = "strict"
    entry: str | None = None
    inputs: Path | None = None
    outputs: Path | None = None
    weights: Path | None = None
    imports: tuple[str, ...] = ()


def run(cache: Cache, ref: str, wanted: Wanted, events: Events | None = None) -> dict[str, Any]:
    """Loads a model, calls it once, and describes the results.

    Raises:
        UsageError: no such entry; or neither inputs nor recorded ones.
        TensorFileError: the file of inputs does not fit, or outputs cannot be written.
        MissingPieceError: something precompiled is absent under policy `strict`.
    """
    digest, manifest = read_manifest(cache, ref)
    notes: list[str] = []
    entry = wanted.entry
    before: tuple[GoldenCall, ...] = ()
    if wanted.inputs is None:
        entry, before, tensors = _recorded(cache, digest, manifest, entry)
        earlier = f", after the {len(before)} calls recorded before it" if before else ""
        notes.append(f"no --inputs: taking the inputs recorded at submit for {entry}{earlier}")
    else:
        tensors = read_tensors(wanted.inputs)
    program = choose_program(manifest, entry, tensors)
    args, kwargs = call_arguments(program, tensors)
    start = time.perf_counter()
    model = loaded_model(cache, digest, manifest, wanted, events)
    loaded = time.perf_counter()
    for call in before:
        golden_call(cache, manifest, model, call)
    began = time.perf_counter()
    result = model.entry(program.name)(*args, **kwargs)
    ended = time.perf_counter()
    found = named(result)
    if wanted.outputs is not None:
        write_tensors(wanted.outputs, found.tensors)
    return {
        "manifest": str(digest),
        "entry": program.name,
        "device": wanted.device,
        "inputs": "recorded" if wanted.inputs is None else str(wanted.inputs),
        "outputs": [{"path": path, **describe_tensor(tensor)} for path, tensor in found.tensors.items()],
        "plain": {path: _jsonable(value) for path, value in found.plain.items()},
        "written": None if wanted.outputs is None else str(wanted.outputs),
        "seconds": {"load": loaded - start, "run": ended - began},
        "notes": [*notes, *model.notes],
    }


def loaded_model(
    cache: Cache, digest: Digest, manifest: Manifest, wanted: Wanted, events: Events | None = None
) -> LoadedModel:
    """A model ready to run, its results in plain containers.

    Raises:
        MissingPieceError: under `strict`; says which ingredient differs from the nearest piece in the cache.
        SpyreRuntimeError: it cannot be loaded here.
    """
    policy = wanted.policy
    if policy == "build":
        from spyre_build.completing import complete

        policy = "strict"
        if wanted.device == "cpu":
            digest = complete(cache, digest, manifest, imports=wanted.imports, events=events)
    try:
        return load(cache, digest, device=wanted.device, weights=wanted.weights, policy=policy, plain=True)
    except RuntimeMissingPieceError as error:
        from spyre_build.misses import nearest_to_missing

        near = nearest_to_missing(cache, manifest, error.fragment, error.target)
        raise MissingPieceError(f"{error}{near}") from None


def _recorded(
    cache: Cache, digest: Digest, manifest: Manifest, entry: str | None
) -> tuple[str, tuple[GoldenCall, ...], dict[str, torch.Tensor]]:
    """The entry, the calls that came before in its recorded sequence, and the inputs of its first recorded call."""
    verification = verification_of(cache, digest)
    if verification is None:
        raise UsageError(
            "this model has no recorded inputs (it was submitted without weights)", hint="pass some with --inputs"
        )
    first = manifest.programs[0].name if manifest.programs else None
    wanted = choose_program(manifest, entry if entry is not None else first, {}).name
    for sequence in verification.sequences:
        for position, call in enumerate(sequence):
            if call.entry == wanted:
                return wanted, sequence[:position], golden_tensors(cache, call.inputs)
    raise UsageError(f"no call of the entry {wanted!r} was recorded", hint="pass inputs with --inputs")


def golden_call(
    cache: Cache, manifest: Manifest, model: LoadedModel, call: GoldenCall
) -> tuple[Named, dict[str, torch.Tensor]]:
    """Makes one recorded call on a loaded model.

    Returns:
        The named results, and the inputs as they are after the call.
    """
    tensors = golden_tensors(cache, call.inputs)
    program = choose_program(manifest, call.entry, tensors)
    args, kwargs = call_arguments(program, tensors)
    return named(model.entry(call.entry)(*args, **kwargs)), tensors


def describe_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """Dtype, shape and the first few values, for people."""
    flat = tensor.detach().reshape(-1)[: SHOWN_VALUES + 1].tolist()
    shown = ", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in flat[:SHOWN_VALUES])
    more = ", …" if len(flat) > SHOWN_VALUES else ""
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "values": f"[{shown}{more}]",
    }


def _jsonable(value: object) -> Any:
    plain: Plain | None = to_plain(value)
    if plain is None or plain.type in {"none", "bool", "int", "str"}:
        return None if value is None else (value if plain is not None else show(value))
    return show(value)
