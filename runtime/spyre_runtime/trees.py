"""Nested containers as records, and back.

Known are dict, list, tuple, named tuples, dataclasses (transformers' outputs among them), `OrderedDict`, torch's own
named results and `torch.Size`. A class is never imported because a record names it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MemberDescriptorType
from typing import Any, Final

import torch

from spyre_cache.objects.program import (
    DictTree,
    Leaf,
    ListTree,
    ObjectTree,
    Plain,
    SymLeaf,
    Tree,
    TupleTree,
)
from spyre_runtime import symbols
from spyre_runtime.errors import InvalidProgramError, SpyreRuntimeError, TypeUnknownError
from spyre_runtime.plain import from_plain, show, to_plain

MAX_DEPTH: Final = 64
MAX_ITEMS: Final = 1_000_000

LeafFunction = Callable[[str, Any], Tree]
Maker = Callable[[Sequence[Any], Mapping[str, int]], Any]


class UnsupportedValueError(SpyreRuntimeError):
    """A value has no place in a tree: an unknown container, a key that is not plain, or nesting without end."""


def class_name(cls: type) -> str:
    """`module:qualname`, as records spell a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


# --- from values to trees -------------------------------------------------------------------------------------------


def flatten(value: object, leaf: LeafFunction, *, path: str = "") -> Tree:
    """The tree of a value; `leaf(path, value)` gives the tree of everything that is not a container.

    Paths are joined with dots: `args.0`, `out.logits`.

    Raises:
        UnsupportedValueError: a container of an unknown class, a key that is not plain, or deeper than `MAX_DEPTH`.
    """
    return _flatten(value, leaf, path, 0)


def plain_leaf(path: str, value: object) -> Plain:
    """A leaf function for what is plain.

    Raises:
        UnsupportedValueError: the value is not plain.
    """
    plain = to_plain(value)
    if plain is None:
        raise UnsupportedValueError(
            f"{path or 'the value'} is {show(value)}: tensors, plain numbers, strings, None and containers of them are"
            " supported; pass or return its tensors instead"
        )
    return plain


def _flatten(value: object, leaf: LeafFunction, path: str, depth: int) -> Tree:
    if depth > MAX_DEPTH:
        raise UnsupportedValueError(f"{path[:120]} is nested deeper than {MAX_DEPTH} (or contains itself)")

    def inner(name: object, item: object) -> Tree:
        return _flatten(item, leaf, f"{path}.{name}" if path else str(name), depth + 1)

    cls = type(value)
    if cls is list:
        assert isinstance(value, list)
        return ListTree(items=tuple(inner(i, item) for i, item in enumerate(value)))
    if cls is tuple:
        assert isinstance(value, tuple)
        return TupleTree(items=tuple(inner(i, item) for i, item in enumerate(value)))
    fields = _fields(value)
    if fields is not None:
        kind, names, items = fields
        trees = tuple(inner(name, item) for name, item in zip(names, items, strict=True))
        return ObjectTree(kind=kind, cls=class_name(cls), fields=tuple(names), items=trees)
    if isinstance(value, dict):
        if cls is not dict and not isinstance(value, OrderedDict):
            raise UnsupportedValueError(
                f"{path or 'the value'} is {show(value)}: of dicts, dict and OrderedDict are supported"
            )
        keys = tuple(plain_leaf(f"a key of {path or 'the dict'}", key) for key in value)
        items = [inner(key, item) for key, item in value.items()]
        return DictTree(keys=keys, items=tuple(items), cls="" if cls is dict else class_name(cls))
    if isinstance(value, (tuple, list, set, frozenset)):
        raise UnsupportedValueError(
            f"{path or 'the value'} is {show(value)}: use a list, tuple, named tuple or dataclass"
        )
    return leaf(path, value)


def _fields(value: object) -> tuple[Any, list[str], list[Any]] | None:
    """Kind, field names and field values of a dataclass or of what counts as a named tuple."""
    cls = type(value)
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        missing = [name for name in names if not hasattr(value, name)]
        if missing:
            raise UnsupportedValueError(f"the dataclass {class_name(cls)} lacks its field {missing[0]}")
        return "dataclass", names, [getattr(value, name) for name in names]
    if isinstance(value, tuple) and cls is not tuple:
        parts = _tuple_fields(cls, len(value))
        if parts is not None:
            return "namedtuple", parts, list(value)
    return None


def _tuple_fields(cls: type, length: int) -> list[str] | None:
    if cls is torch.Size:
        return [str(i) for i in range(length)]
    if isinstance(getattr(cls, "_fields", None), tuple):
        return list(cls._fields)  # type: ignore[attr-defined]
    if hasattr(cls, "n_sequence_fields"):  # torch.return_types
        return [name for name, member in vars(cls).items() if isinstance(member, MemberDescriptorType)]
    return None


# --- classes --------------------------------------------------------------------------------------------------------


class Classes:
    """Finds the classes that trees name, among those passed and those that are imported already."""

    def __init__(self, types: Iterable[type] = ()) -> None:
        self._passed = {class_name(cls): cls for cls in types}

    def find(self, name: str) -> type:
        """The class called `module:qualname`.

        Raises:
            TypeUnknownError: not passed, and its module is not imported (or has no such class).
        """
        found: Any = self._passed.get(name)
        if found is None:
            module_name, _, qualname = name.partition(":")
            module = sys.modules.get(module_name)
            # Looked up in __dict__, because a lazy module's __getattr__ imports.
            found = module
            for part in qualname.split("."):
                found = vars(found).get(part) if found is not None and hasattr(found, "__dict__") else None
        if not isinstance(found, type):
            raise TypeUnknownError(
                f"a result is a {name[:120]}, which is not imported here, and nothing is imported because a manifest "
                "says so: import it before loading, pass types=[that class], or take plain containers with plain=True"
            )
        return found


# --- from trees to values -------------------------------------------------------------------------------------------


class Builder:
    """Builds values of one tree.

    Args:
        tree: what to build.
        classes: where classes are found.
        plain: dicts instead of dataclasses and named tuples, so that no class is needed.

    Raises:
        TypeUnknownError: a class is neither imported nor passed.
        InvalidProgramError: the tree contradicts itself, or is beyond the limits.
    """

    def __init__(self, tree: Tree, classes: Classes | None = None, *, plain: bool = False) -> None:
        self._classes = classes or Classes()
        self._plain = plain
        self._items = 0
        self.leaves: list[int] = []
        self._make = self._maker(tree, 0)

    def build(self, leaves: Sequence[Any], sizes: Mapping[str, int] = {}) -> Any:
        """A fresh value; mutable containers are never shared between two of them."""
        return self._make(leaves, sizes)

    def _maker(self, tree: Tree, depth: int) -> Maker:
        self._items += 1
        if depth > MAX_DEPTH or self._items > MAX_ITEMS:
            raise InvalidProgramError(f"a tree has at most {MAX_ITEMS} items and {MAX_DEPTH} levels")
        match tree:
            case Leaf(v=number):
                self.leaves.append(number)
                return lambda leaves, _: leaves[number]
            case Plain():
                value = from_plain(tree)
                return lambda _, __: value
            case SymLeaf(expr=text):
                size = symbols.compiled(text)
                return lambda _, sizes: size(sizes)
        makers = tuple(self._maker(item, depth + 1) for item in tree.items)
        match tree:
            case ListTree():
                return lambda leaves, sizes: [make(leaves, sizes) for make in makers]
            case TupleTree():
                return lambda leaves, sizes: tuple([make(leaves, sizes) for make in makers])  # faster than a generator
            case DictTree():
                return self._dict(tree, makers)
            case ObjectTree():
                return self._object(tree, makers)

    def _dict(self, tree: DictTree, makers: tuple[Maker, ...]) -> Maker:
        keys = tuple(_hashable(from_plain(key)) for key in tree.keys)
        if len(keys) != len(makers) or len(set(keys)) != len(keys):
            raise InvalidProgramError("a dict in a tree has distinct keys, one for each item")
        pairs = tuple(zip(keys, makers, strict=True))
        if not tree.cls or self._plain:
            return lambda leaves, sizes: {key: make(leaves, sizes) for key, make in pairs}
        cls = self._classes.find(tree.cls)
        if not issubclass(cls, OrderedDict):
            raise InvalidProgramError(f"dicts are rebuilt as dict or OrderedDict, but {tree.cls[:120]} is neither")
        return lambda leaves, sizes: cls((key, make(leaves, sizes)) for key, make in pairs)

    def _object(self, tree: ObjectTree, makers: tuple[Maker, ...]) -> Maker:
        if len(tree.fields) != len(makers) or len(set(tree.fields)) != len(makers):
            raise InvalidProgramError(f"an object in a tree has distinct fields, one for each item: {tree.cls[:120]}")
        pairs = tuple(zip(tree.fields, makers, strict=True))
        if self._plain:
            return lambda leaves, sizes: {name: make(leaves, sizes) for name, make in pairs}
        cls: Any = self._classes.find(tree.cls)
        if tree.kind == "namedtuple":
            names = _tuple_fields(cls, len(makers)) if issubclass(cls, tuple) else None
            if names != list(tree.fields):
                raise self._changed(tree, names)
            if hasattr(cls, "_make"):
                return lambda leaves, sizes: cls._make([make(leaves, sizes) for make in makers])
            return lambda leaves, sizes: cls([make(leaves, sizes) for make in makers])
        declared = {field.name: field for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else None
        if declared is None or declared.keys() != set(tree.fields):
            raise self._changed(tree, None if declared is None else list(declared))
        given = tuple((name, make) for name, make in pairs if declared[name].init)
        late = tuple((name, make) for name, make in pairs if not declared[name].init)

        def make_dataclass(leaves: Sequence[Any], sizes: Mapping[str, int]) -> Any:
            made = cls(**{name: make(leaves, sizes) for name, make in given})
            for name, make in late:
                object.__setattr__(made, name, make(leaves, sizes))
            return made

        return make_dataclass

    def _changed(self, tree: ObjectTree, names: list[str] | None) -> TypeUnknownError:
        has = f"has the fields {', '.join(names)}" if names is not None else f"is no {tree.kind}"
        return TypeUnknownError(
            f"{tree.cls[:120]} was a {tree.kind} with the fields {', '.join(tree.fields)} when the model was built, but"
            f" here it {has}: use the library version it was built with, or plain=True"
        )


def build(
    tree: Tree,
    leaves: Sequence[Any],
    *,
    sizes: Mapping[str, int] | None = None,
    types: Iterable[type] = (),
    plain: bool = False,
) -> Any:
    """Builds one value of a tree; `Builder` is for many.

    Raises:
        TypeUnknownError: a class is neither imported nor passed.
        InvalidProgramError: the tree contradicts itself.
    """
    return Builder(tree, Classes(types), plain=plain).build(leaves, sizes or {})


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        raise InvalidProgramError(f"a dict's key cannot be {show(key)}") from None
    return key
