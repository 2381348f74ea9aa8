"""Dynamic dimensions of an entry: what a user may write, and what dynamo is told."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spyre_build.errors import SpecError
from spyre_build.frontend.structure import flatten_call, rebuild_call
from spyre_build.spec import Entry


@dataclass(frozen=True)
class DimSpec:
    """A dimension that may vary.

    `name` is empty for `Dim.DYNAMIC`; `max` None means unbounded; `may_be_static` is `Dim.AUTO`'s;
    `narrowed` that the user asked for sizes below 2, which torch treats apart.
    """

    name: str = ""
    min: int = 2
    max: int | None = None
    may_be_static: bool = False
    narrowed: bool = False


def entry_dims(module: torch.nn.Module, entry: Entry, what: str) -> dict[int, dict[int, DimSpec]]:
    """Dynamic dimensions by tensor leaf of `(args, kwargs)`.

    Raises:
        SpecError: `dynamic_shapes` does not fit the arguments.
    """
    if entry.dynamic_shapes is None:
        return {}
    _, _, leaves = flatten_call(entry.args, entry.kwargs)
    numbers: dict[int, int] = {}
    for index, leaf in enumerate(leaves.tensors):
        numbers.setdefault(id(leaf), index)
    bound = _bind(module, entry, what)
    shapes = entry.dynamic_shapes
    if isinstance(shapes, Mapping):
        unknown = [name for name in shapes if name not in bound]
        if unknown:
            raise SpecError(f"dynamic_shapes of {what} names {unknown[0]!r}, which is no argument of this entry")
        pairs = [(bound[name], spec, str(name)) for name, spec in shapes.items()]
    elif isinstance(shapes, Sequence):
        if len(shapes) > len(bound):
            raise SpecError(f"dynamic_shapes of {what} has {len(shapes)} items, but the entry {len(bound)} arguments")
        pairs = [(value, spec, name) for (name, value), spec in zip(bound.items(), shapes, strict=False)]
    else:
        raise SpecError(f"dynamic_shapes of {what} is a dict or a tuple, but {type(shapes).__name__} came")
    found: dict[int, dict[int, DimSpec]] = {}
    for value, spec, name in pairs:
        _walk(value, spec, name, numbers, found, what)
    return found


def _bind(module: torch.nn.Module, entry: Entry, what: str) -> dict[str, Any]:
    """Arguments by parameter name; `*args` and `**kwargs` are spread as torch.export does."""
    try:
        bound = inspect.signature(getattr(module, entry.method)).bind(*entry.args, **entry.kwargs)
    except TypeError as error:
        raise SpecError(f"the example arguments of {what} do not fit its signature: {error}") from error
    flat: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            flat.update(value)
        else:
            flat[name] = value
    return flat


def _walk(
    value: Any, spec: Any, name: str, numbers: dict[int, int], found: dict[int, dict[int, DimSpec]], what: str
) -> None:
    if spec is None:
        return
    if isinstance(value, torch.Tensor):
        items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        dims = {int(dim): _dim(item) for dim, item in items}
        for dim in dims:
            if not -value.dim() <= dim < value.dim():
                raise SpecError(f"dynamic_shapes of {what} marks dim {dim} of {name}, which has {value.dim()} dims")
        marked = {dim % value.dim(): item for dim, item in dims.items() if item is not None}
        if marked:
            found[numbers[id(value)]] = marked
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key, item in spec.items():
            _walk(value[key], item, f"{name}.{key}", numbers, found, what)
    elif isinstance(value, (list, tuple)) and isinstance(spec, (list, tuple)):
        for index, (inner, item) in enumerate(zip(value, spec, strict=False)):
            _walk(inner, item, f"{name}.{index}", numbers, found, what)
    else:
        raise SpecError(f"dynamic_shapes of {what} gives dims for {name}, which is a {type(value).__name__}")


def _dim(item: Any) -> DimSpec | None:
    if item is None or isinstance(item, int):
        return None
    hint = getattr(getattr(item, "type", None), "name", "")
    if hint == "STATIC":
        return None
    if hint in {"DYNAMIC", "AUTO"}:
        lower, upper = getattr(item, "min", None), getattr(item, "max", None)
        return DimSpec(min=max(2, lower or 2), max=upper, may_be_static=hint == "AUTO")
    name = getattr(item, "__name__", "")
    if not name:
        raise SpecError(f"dynamic_shapes marks a dimension with a torch.export.Dim, but {item!r} came")
    if getattr(item, "root", None) is not None:
        raise SpecError(
            f"dynamic_shapes takes plain Dims only, but {name} is derived from another",
            hint="mark it with torch.export.Dim.DYNAMIC: the relation is found while tracing",
        )
    upper = getattr(item, "max", None)
    bounded = isinstance(upper, int) and upper < (1 << 62)
    asked = getattr(item, "min", None) or 2
    return DimSpec(name, max(2, asked), upper if bounded else None, narrowed=asked < 2)


def mark_dynamic(fake: torch.Tensor, dims: dict[int, DimSpec]) -> None:
    """Tells dynamo which dimensions of a fake argument vary.

    Raises:
        SpecError: the example's size is below 2, so that torch would take it for a constant.
    """
    for dim, spec in dims.items():
        size = fake.shape[dim]
        if size < 2:
            raise SpecError(
                f"a dimension in dynamic_shapes has at least 2 elements in the example, but dim {dim} has {size}",
                hint="give a larger example, or a separate entry for this size",
            )
        if spec.may_be_static:
            torch._dynamo.maybe_mark_dynamic(fake, dim)  # noqa: SLF001
        else:
            from torch.utils._sympy.numbers import int_oo

            upper = int_oo if spec.max is None else spec.max
            torch._dynamo.mark_dynamic(fake, dim, min=spec.min, max=upper)  # noqa: SLF001


def bucket_entry(entry: Entry, bucket: Mapping[str, int], dims: dict[int, dict[int, DimSpec]], what: str) -> Entry:
    """The entry at the sizes of one bucket: example tensors are resized by repeating them along named dimensions.

    Raises:
        SpecError: the bucket names a dimension that `dynamic_shapes` does not have.
    """
    names = {spec.name for item in dims.values() for spec in item.values()}
    unknown = [name for name in bucket if name not in names]
    if unknown or any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in bucket.values()):
        raise SpecError(
            f"a bucket of {what} gives a size to each of {sorted(names)}, but {dict(bucket)} came",
            hint="name the dimension: torch.export.Dim('seq')",
        )
    args_tree, kwargs_tree, leaves = flatten_call(entry.args, entry.kwargs)
    tensors = []
    for index, leaf in enumerate(leaves.tensors):
        resized = leaf
        for dim, spec in dims.get(index, {}).items():
            if spec.name in bucket:
                resized = _resize(resized, dim, bucket[spec.name])
        tensors.append(resized)
    args, kwargs = rebuild_call(args_tree, kwargs_tree, tensors)
    return Entry(args, kwargs, method=entry.method)


def _resize(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    have = tensor.shape[dim]
    if have == 0:
        return tensor.new_zeros([size if d == dim else n for d, n in enumerate(tensor.shape)])
    index = torch.arange(size) % have
    return tensor.index_select(dim, index)
