"""One entry of a model as a straight list of fragment calls, with its bindings."""

from __future__ import annotations

from typing import Literal

from spyre_cache.codec import Record
from spyre_cache.digest import Digest
from spyre_cache.objects.fragment import Dim, Symbol, ValueSpec

Scalar = bool | int | str | None


class Leaf(Record, frozen=True, kw_only=True, tag="leaf", tag_field="n"):
    """In an input tree: the index of an `Argument`. In an output tree: a slot."""

    v: int


class Plain(Record, frozen=True, kw_only=True, tag="plain", tag_field="n"):
    """A Python value that is the same in every call. Floats are `type: float` with `v` their bits in hex."""

    type: Literal["none", "bool", "int", "float", "complex", "str", "bytes", "ellipsis", "dtype", "device", "slice"]
    v: Scalar = None


class SymLeaf(Record, frozen=True, kw_only=True, tag="symleaf", tag_field="n"):
    """A Python int in the output computed from symbolic sizes."""

    expr: str


class ListTree(Record, frozen=True, kw_only=True, tag="list", tag_field="n"):
    """A list."""

    items: tuple[Tree, ...]


class TupleTree(Record, frozen=True, kw_only=True, tag="tuple", tag_field="n"):
    """A tuple."""

    items: tuple[Tree, ...]


class DictTree(Record, frozen=True, kw_only=True, tag="dict", tag_field="n"):
    """`cls` is empty for dict, else `collections:OrderedDict` or a subclass; keys keep their order of insertion."""

    keys: tuple[Plain, ...]
    items: tuple[Tree, ...]
    cls: str = ""


class ObjectTree(Record, frozen=True, kw_only=True, tag="object", tag_field="n"):
    """A dataclass or named tuple: `cls` is `module:qualname`, rebuilt by calling it with its fields."""

    kind: Literal["dataclass", "namedtuple"]
    cls: str
    fields: tuple[str, ...]
    items: tuple[Tree, ...]


Tree = Leaf | Plain | SymLeaf | ListTree | TupleTree | DictTree | ObjectTree


class Slot(Record, frozen=True, kw_only=True):
    """A place for a value while a program runs.

    Attributes:
        kind: `input` (a caller's tensor), `weight`, `buffer`, `const`, `state` (a buffer this loaded copy owns and
            writes to), `temp` (a fragment's output), `symint`.
        name: weight-index name for weight, buffer, const and state; empty otherwise.
        spec: what it holds.
        aliased: for temp: may share memory with this slot (a view crossing a fragment's edge).
    """

    kind: Literal["input", "weight", "buffer", "const", "state", "temp", "symint"]
    name: str = ""
    spec: ValueSpec
    aliased: int | None = None


class Argument(Record, frozen=True, kw_only=True):
    """One leaf of the caller's arguments: a tensor bound to `slot`, or a plain value that must come again.

    `path` is `args.0`, `kwargs.mask` or, for parameters of the signature, the name the error shall use.
    """

    path: str
    label: str
    slot: int | None = None
    unused: ValueSpec | None = None
    value: Plain | None = None


class SymbolSource(Record, frozen=True, kw_only=True):
    """A symbol is read off dimension `dim` of input slot `slot`."""

    symbol: Symbol
    slot: int
    dim: int


class Guard(Record, frozen=True, kw_only=True):
    """A condition over symbols that the capture relied on; `text` is how the error says it."""

    expr: str
    text: str


class Step(Record, frozen=True, kw_only=True):
    """Call fragment `fragment` (index into the manifest's fragments). `frees` are slots dead afterwards."""

    fragment: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...] = ()


class WriteBack(Record, frozen=True, kw_only=True):
    """After the last step, slot `target` (state or caller's input) takes the contents of slot `source`."""

    target: int
    source: int


class Program(Record, frozen=True, kw_only=True):
    """Everything needed to run one entry at one shape signature.

    `defaults` are the plain defaults of forward's parameters: what the captured call, or a later one, left out.
    """

    name: str
    bucket: tuple[tuple[str, int], ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()  # (name, inspect kind) of forward's signature, for binding keywords
    defaults: tuple[tuple[str, Plain], ...] = ()
    input_args: Tree
    input_kwargs: Tree
    arguments: tuple[Argument, ...]
    slots: tuple[Slot, ...]
    symbols: tuple[SymbolSource, ...] = ()
    guards: tuple[Guard, ...] = ()
    steps: tuple[Step, ...]
    writebacks: tuple[WriteBack, ...] = ()
    mutated_inputs: tuple[int, ...] = ()  # input slots that the caller sees change
    output: Tree
    capture: Literal["dynamo", "export"] = "dynamo"


class WeightEntry(Record, frozen=True, kw_only=True):
    """A tensor the programs read that no caller passes.

    Attributes:
        name: first fully qualified name; `aliases` the others that share the tensor (ties).
        kind: parameter, buffer, or constant (made in forward, or an unregistered attribute).
        persistent: whether the module's state dict holds it.
        digest: raw little-endian contiguous-by-stride bytes, or None when supplied at load.
    """

    name: str
    aliases: tuple[str, ...] = ()
    kind: Literal["parameter", "buffer", "constant"]
    dtype: str
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    persistent: bool = True
    digest: Digest | None = None
