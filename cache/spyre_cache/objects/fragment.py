"""The unit of compilation: a canonical, functional, weightless ATen graph.

Values are numbered: a graph's inputs first, then each node's results in order. Symbolic sizes are expressions over the
fragment's symbols in a small grammar (`spyre_runtime.symbols`): integers, names `s0…`, `+ - * // %`, `min` and `max`.
"""

from __future__ import annotations

from typing import Literal

from spyre_cache.codec import Record, bits_float, encode, float_bits
from spyre_cache.digest import Digest

OPSET = 1
"""Version of how operators are spelled here; raised when an ATen schema we store changes its meaning."""

Dim = int | str


class TensorSpec(Record, frozen=True, kw_only=True, tag="tensor", tag_field="t"):
    """Metadata of a strided tensor. `shape` and `stride` count elements; `layout` is always spelled."""

    dtype: str
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    layout: str = "strided"


class SymSpec(Record, frozen=True, kw_only=True, tag="sym", tag_field="t"):
    """A size computed in the graph: `kind` is int, bool or float; `expr` its value over the symbols."""

    kind: Literal["int", "bool", "float"]
    expr: str


class NoneSpec(Record, frozen=True, kw_only=True, tag="none", tag_field="t"):
    """A result that is None (some operators leave outputs empty)."""


ValueSpec = TensorSpec | SymSpec | NoneSpec


class Ref(Record, frozen=True, kw_only=True, tag="ref", tag_field="a"):
    """Another value of the same graph, by number."""

    v: int


class IntArg(Record, frozen=True, kw_only=True, tag="int", tag_field="a"):
    """A whole number."""

    v: int


class FloatArg(Record, frozen=True, kw_only=True, tag="float", tag_field="a"):
    """`v` is the binary64 bits as 16 hex digits."""

    v: str

    @classmethod
    def of(cls, value: float) -> FloatArg:
        """The argument for a Python float."""
        return cls(v=float_bits(value))

    @property
    def value(self) -> float:
        """The Python float."""
        return bits_float(self.v)


class ComplexArg(Record, frozen=True, kw_only=True, tag="complex", tag_field="a"):
    """A complex number; both parts as the bits of binary64."""

    re: str
    im: str


class BoolArg(Record, frozen=True, kw_only=True, tag="bool", tag_field="a"):
    """True or false."""

    v: bool


class StrArg(Record, frozen=True, kw_only=True, tag="str", tag_field="a"):
    """A string."""

    v: str


class NoneArg(Record, frozen=True, kw_only=True, tag="none", tag_field="a"):
    """None."""


class SymArg(Record, frozen=True, kw_only=True, tag="sym", tag_field="a"):
    """A size given by an expression over the symbols, where no value carries it."""

    expr: str


class DTypeArg(Record, frozen=True, kw_only=True, tag="dtype", tag_field="a"):
    """A dtype by name."""

    v: str


class DeviceArg(Record, frozen=True, kw_only=True, tag="device", tag_field="a"):
    """`cpu` in a fragment stands for "where the fragment runs"; `meta` stays itself."""

    v: str


class LayoutArg(Record, frozen=True, kw_only=True, tag="layout", tag_field="a"):
    """A layout by name."""

    v: str


class MemoryFormatArg(Record, frozen=True, kw_only=True, tag="memory_format", tag_field="a"):
    """A memory format by name."""

    v: str


class OpArg(Record, frozen=True, kw_only=True, tag="op", tag_field="a"):
    """An operator handed to a higher-order one."""

    v: str


class GraphArg(Record, frozen=True, kw_only=True, tag="graph", tag_field="a"):
    """A branch or body of a higher-order operator; closed over nothing."""

    graph: Graph


class ListArg(Record, frozen=True, kw_only=True, tag="list", tag_field="a"):
    """A list or tuple of arguments."""

    items: tuple[Arg, ...]


Arg = (
    Ref
    | IntArg
    | FloatArg
    | ComplexArg
    | BoolArg
    | StrArg
    | NoneArg
    | SymArg
    | DTypeArg
    | DeviceArg
    | LayoutArg
    | MemoryFormatArg
    | OpArg
    | GraphArg
    | ListArg
)


class Node(Record, frozen=True, kw_only=True):
    """One operator call.

    Attributes:
        op: `namespace::name.overload`, or `higher_order::name`.
        args: positional arguments, trailing defaults dropped.
        kwargs: keyword-only arguments that differ from their default, sorted by name.
        results: what it yields, each taking the next value number.
        pack: `single` for one value, `seq` where the operator returns a tuple or list (even of one), `none`.
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()
    results: tuple[ValueSpec, ...]
    pack: Literal["single", "seq", "none"] = "single"


class Input(Record, frozen=True, kw_only=True):
    """`state` inputs are written to by the fragment (see `Graph.mutations`)."""

    kind: Literal["tensor", "state", "symint"]
    spec: ValueSpec


class Output(Record, frozen=True, kw_only=True):
    """`alias_of` names the input (by number) whose storage the value may share, or None for fresh memory."""

    v: int
    spec: ValueSpec
    alias_of: int | None = None


class Mutation(Record, frozen=True, kw_only=True):
    """After all nodes ran, input `input` takes the contents of value `v`."""

    input: int
    v: int


class Graph(Record, frozen=True, kw_only=True):
    """Operators in topological order over numbered values."""

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    mutations: tuple[Mutation, ...] = ()


class Symbol(Record, frozen=True, kw_only=True):
    """A size not known until run time, with its inclusive range; `max` None means unbounded."""

    name: str
    min: int
    max: int | None


class Fragment(Record, frozen=True, kw_only=True):
    """Hashed whole: two fragments are one exactly when these bytes are equal."""

    schema: Literal["fragment/1"] = "fragment/1"
    opset: int = OPSET
    graph: Graph
    symbols: tuple[Symbol, ...] = ()
    constraints: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        """Canonical bytes; what is hashed."""
        return encode(self)

    def digest(self) -> Digest:
        """Identity of the fragment."""
        return Digest.of(self.encoded())


DESCRIPTION_TYPE = "https://spyre-build.dev/description/v1"
"""Files a description under its fragment's digest."""


class NodeOrigin(Record, frozen=True, kw_only=True):
    """Where a node came from in the user's model: for errors and reports, never hashed."""

    module: str
    op: str
    source: str


class Description(Record, frozen=True, kw_only=True):
    """Travels beside a fragment, found by its digest; says where it was first seen."""

    schema: Literal["description/1"] = "description/1"
    fragment: Digest
    origins: tuple[NodeOrigin, ...]
