"""From the caller's arguments, however they were passed, to the recorded leaves, in the recorded order."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from spyre_cache.objects.program import DictTree, Leaf, ListTree, ObjectTree, Plain, Program, SymLeaf, Tree, TupleTree
from spyre_runtime.errors import ArgumentError, InvalidProgramError
from spyre_runtime.plain import from_plain, same, show
from spyre_runtime.trees import MAX_DEPTH, class_name

_POSITIONAL: Final = frozenset({"POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD"})
_BY_NAME: Final = frozenset({"KEYWORD_ONLY", "POSITIONAL_OR_KEYWORD"})

Matcher = Callable[[Any, list[Any]], None]
Key = str | int  # a parameter's name, or the position of an argument that no parameter names


class Signature:
    """How one program is called.

    Args:
        program: whose trees, parameters and defaults count.
        slots: the tree of each leaf of `arguments` puts the value at the leaf's index into the list of leaves.

    Raises:
        InvalidProgramError: the trees do not cover the arguments once each.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._positional = [name for name, kind in program.parameters if kind in _POSITIONAL]
        self._by_name = {name for name, kind in program.parameters if kind in _BY_NAME}
        self._kinds = {kind for _, kind in program.parameters}
        self._defaults = {name: from_plain(plain) for name, plain in program.defaults}
        self._seen: set[int] = set()
        if not isinstance(program.input_args, TupleTree) or not isinstance(program.input_kwargs, DictTree):
            raise InvalidProgramError("a program takes a tuple of arguments and a dict of keywords")
        self._args = tuple(
            self._matcher(tree, self._name(position), 0) for position, tree in enumerate(program.input_args.items)
        )
        names = [from_plain(key) for key in program.input_kwargs.keys]
        if not all(isinstance(name, str) for name in names) or len(names) != len(program.input_kwargs.items):
            raise InvalidProgramError("keywords of a program are strings, one for each item")
        self._kwargs = {
            name: self._matcher(tree, name, 0) for name, tree in zip(names, program.input_kwargs.items, strict=True)
        }
        if len(self._seen) != len(program.arguments):
            raise InvalidProgramError(
                f"{len(program.arguments)} arguments are declared, but the trees hold {len(self._seen)}"
            )

    def leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The values of all recorded arguments, by index.

        Raises:
            ArgumentError: an argument is missing, unexpected, passed twice, or of another structure; names it.
        """
        out: list[Any] = [None] * len(self._program.arguments)
        if len(args) != len(self._args) or kwargs.keys() != self._kwargs.keys():
            args, kwargs = self._arrange(args, kwargs)
        for match, value in zip(self._args, args, strict=True):
            match(value, out)
        for name, match in self._kwargs.items():
            match(kwargs[name], out)
        return out

    def _name(self, position: int) -> str:
        return self._positional[position] if position < len(self._positional) else f"args.{position}"

    def _key(self, position: int) -> Key:
        return self._positional[position] if position < len(self._positional) else position

    def _arrange(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call as it was recorded: keywords for positions and positions for keywords, defaults filled in."""
        given = self._given(args, kwargs)
        positions = [self._key(position) for position in range(len(self._args))]
        wanted: list[Key] = [*positions, *self._kwargs]
        for key, value in given.items():
            if key not in wanted:
                self._check_left_out(key, value)
        for key in wanted:
            if key not in given:
                if key not in self._defaults:
                    raise ArgumentError(f"the argument {self._spell(key)} is missing: the entry was built with it")
                given[key] = self._defaults[key]
        return tuple(given[key] for key in positions), {name: given[name] for name in self._kwargs}

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Key, Any]:
        most = len(self._positional) if self._program.parameters else len(self._args)
        if len(args) > most and "VAR_POSITIONAL" not in self._kinds:
            raise ArgumentError(f"at most {most} positional arguments are taken, but {len(args)} came")
        given: dict[Key, Any] = {self._key(position): value for position, value in enumerate(args)}
        for name, value in kwargs.items():
            if name in given:
                raise ArgumentError(f"the argument {name} came twice: by position and by name")
            if self._program.parameters and name not in self._by_name and "VAR_KEYWORD" not in self._kinds:
                known = ", ".join(name for name, _ in self._program.parameters)
                raise ArgumentError(f"there is no keyword {name[:80]!r}: the parameters are {known}")
            given[name] = value
        return given

    def _check_left_out(self, key: Key, value: Any) -> None:
        if key in self._defaults:
            default = self._defaults[key]
            if same(default, value):
                return
            raise ArgumentError(
                f"the argument {key} was left at its default {show(default)} when the entry was built, but"
                f" {show(value)} came: build an entry with that value"
            )
        raise ArgumentError(
            f"the argument {self._spell(key)} was not passed when the entry was built, but {show(value)} came:"
            " leave it out, or build an entry with it"
        )

    def _spell(self, key: Key) -> str:
        return key if isinstance(key, str) else f"args.{key}"

    def _matcher(self, tree: Tree, path: str, depth: int) -> Matcher:
        if depth > MAX_DEPTH:
            raise InvalidProgramError(f"a tree has at most {MAX_DEPTH} levels")
        match tree:
            case Leaf(v=index):
                if index in self._seen or not 0 <= index < len(self._program.arguments):
                    raise InvalidProgramError(f"argument {index} stands in the trees twice, or does not exist")
                self._seen.add(index)

                def place(value: Any, out: list[Any]) -> None:
                    out[index] = value

                return place
            case Plain():
                return _plain_matcher(path, from_plain(tree))
            case SymLeaf():
                raise InvalidProgramError("sizes stand in results only")
            case DictTree():
                keys = [from_plain(key) for key in tree.keys]
                if len(keys) != len(tree.items):
                    raise InvalidProgramError("a dict in a tree has one item for each key")
                parts = {
                    key: self._matcher(item, f"{path}.{key}", depth + 1)
                    for key, item in zip(keys, tree.items, strict=True)
                }
                return _dict_matcher(path, tree.cls, parts)
        inner = tree.fields if isinstance(tree, ObjectTree) else range(len(tree.items))
        matchers = tuple(
            self._matcher(item, f"{path}.{name}", depth + 1) for name, item in zip(inner, tree.items, strict=True)
        )
        if isinstance(tree, ObjectTree):
            return _object_matcher(path, tree, matchers)
        return _sequence_matcher(path, list if isinstance(tree, ListTree) else tuple, matchers)


def _plain_matcher(path: str, expected: Any) -> Matcher:
    def check(value: Any, _: list[Any]) -> None:
        check_scalar(path, expected, value)

    return check


def check_scalar(label: str, expected: Any, value: Any) -> None:
    """Refuses any other value than the recorded one.

    Raises:
        ArgumentError: names the argument and both values.
    """
    if not same(expected, value):
        raise ArgumentError(
            f"the argument {label} was {show(expected)} when the entry was built, but {show(value)} came: its value is"
            " part of the compiled model; build an entry with that value"
        )


def _structure(path: str, expected: str, value: Any, detail: str = "") -> ArgumentError:
    return ArgumentError(f"the argument {path} is {expected}, but {show(value)}{detail} came")


def _sequence_matcher(path: str, cls: Any, matchers: tuple[Matcher, ...]) -> Matcher:
    def match(value: Any, out: list[Any]) -> None:
        if type(value) is not cls or len(value) != len(matchers):
            detail = f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
            raise _structure(path, f"a {cls.__name__} of {len(matchers)}", value, detail)
        for item, matcher in zip(value, matchers, strict=True):
            matcher(item, out)

    return match


def _dict_matcher(path: str, cls: str, matchers: dict[Any, Matcher]) -> Matcher:
    def match(value: Any, out: list[Any]) -> None:
        right = class_name(type(value)) == cls if cls else type(value) in {dict, OrderedDict}
        if not right:
            raise _structure(path, f"a {cls.partition(':')[2] or 'dict'}", value)
        if value.keys() != matchers.keys():
            raise _structure(path, f"a dict with the keys {_list(matchers)}", value, f" with the keys {_list(value)}")
        for key, matcher in matchers.items():
            matcher(value[key], out)

    return match


def _object_matcher(path: str, tree: ObjectTree, matchers: tuple[Matcher, ...]) -> Matcher:
    pairs = tuple(zip(tree.fields, matchers, strict=True))

    def match(value: Any, out: list[Any]) -> None:
        if class_name(type(value)) != tree.cls:
            raise _structure(path, f"a {tree.cls}", value)
        if tree.kind == "namedtuple":
            if not isinstance(value, tuple) or len(value) != len(pairs):
                raise _structure(path, f"a {tree.cls} of {len(pairs)}", value)
            for item, matcher in zip(value, matchers, strict=True):
                matcher(item, out)
            return
        names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        if names != list(tree.fields):
            raise _structure(path, f"a {tree.cls} with the fields {_list(tree.fields)}", value, f" with {_list(names)}")
        for name, matcher in pairs:
            matcher(getattr(value, name, None), out)

    return match


def _list(names: Any) -> str:
    text = ", ".join(str(name) for name in names)
    return text if len(text) <= 200 else text[:197] + "..."
