"""Fragments as torch.fx graphs: a total decoder.

Whatever bytes come, the outcome is a graph or one of our errors. Operators come from an allow-list, arguments from
tagged values, sizes from our own expressions; nothing named in a fragment is imported or evaluated. Interpreting a
decoded graph needs neither fake tensors nor sympy (`fake=False`); a compiler does (`fake=True`, in `fakes.py`).
"""

from __future__ import annotations

import functools
import keyword
import operator
from typing import TYPE_CHECKING, Any, Final

import torch

from spyre_cache.codec import bits_float, decode
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects import fragment as f
from spyre_runtime import symbols, vocabulary
from spyre_runtime.errors import InvalidFragmentError, SpyreRuntimeError, SymbolError
from spyre_runtime.operators import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyre_runtime.fakes import Fakes

MAX_BYTES: Final = 64 << 20
MAX_NODES: Final = 100_000
MAX_INPUTS: Final = 20_000
MAX_RANK: Final = 32
MAX_NESTING: Final = 8  # of lists within arguments, and of graphs within graphs
MAX_SYMBOLS: Final = 256
INT64: Final = range(-(1 << 63), 1 << 63)


def decode_fragment(data: bytes) -> f.Fragment:
    """Parses a fragment's bytes.

    Raises:
        InvalidFragmentError: not a fragment this version knows, or beyond the limits.
    """
    try:
        fragment = decode(data, f.Fragment, limit=MAX_BYTES)
    except InvalidRecordError as error:
        raise InvalidFragmentError(str(error)) from None
    if fragment.opset != f.OPSET:
        raise InvalidFragmentError(
            f"operator set {f.OPSET} is read here, but the fragment is of {fragment.opset}: use the matching release"
        )
    return fragment


def to_fx(
    fragment: f.Fragment,
    *,
    fake: bool = True,
    check: bool = False,
    custom_ops: frozenset[str] = frozenset(),
) -> torch.fx.GraphModule:
    """Decodes a fragment.

    Placeholders come first in the order of the inputs; mutations are trailing `aten.copy_` calls on placeholders; the
    output node returns the tuple of outputs. Every `call_function` node has `meta["index"]`, the index in its graph's
    `nodes` of the node it belongs to (the number of nodes for mutations).

    Args:
        fragment: what to decode.
        fake: fill `meta["val"]` with fake tensors and symbolic integers of one `FakeTensorMode` (slow: imports sympy).
        check: also compare each fake result with the recorded one; needs `fake`.
        custom_ops: operators or namespaces allowed beyond `aten` and `prims`.

    Raises:
        InvalidFragmentError: the fragment breaks a rule of the format, or the check failed; names the node.
        OperatorMissingError: an operator is not registered in this process.
    """
    context = _Context(fragment, custom_ops)
    module = _GraphBuilder(context, fragment.graph, depth=0).build()
    if fake:
        from spyre_runtime.fakes import Fakes

        fakes = Fakes(fragment)
        _fill(module, fragment.graph, fakes, check=check)
    return module


class _Context:
    """What all graphs of one fragment share: what is allowed, and what was used up."""

    def __init__(self, fragment: f.Fragment, custom_ops: frozenset[str]) -> None:
        if len(fragment.symbols) > MAX_SYMBOLS:
            raise InvalidFragmentError(
                f"a fragment has at most {MAX_SYMBOLS} symbols, but {len(fragment.symbols)} came"
            )
        self.custom_ops = custom_ops
        self.nodes = 0
        self.known: set[str] = set()
        for symbol in fragment.symbols:
            if not symbols.SYMBOL_NAME.fullmatch(symbol.name) or symbol.name in self.known:
                raise InvalidFragmentError(f"symbols have distinct names like s0, but {symbol.name[:40]!r} came")
            if symbol.min < 0 or (symbol.max is not None and symbol.max < symbol.min):
                raise InvalidFragmentError(f"the symbol {symbol.name} has the empty range [{symbol.min}, {symbol.max}]")
            self.known.add(symbol.name)
        for constraint in fragment.constraints:
            self.known_names(symbols.parse_condition(constraint), constraint)

    def known_names(self, expr: symbols.Expr, text: str) -> symbols.Expr:
        unknown = symbols.names(expr) - self.known
        if unknown:
            raise SymbolError(f"{text[:80]!r} uses {', '.join(sorted(unknown))}, which the fragment does not declare")
        return expr

    def size(self, text: str) -> symbols.Expr:
        return self.known_names(symbols.parse(text), text)

    def count(self, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise InvalidFragmentError(f"a fragment has at most {MAX_NODES} nodes, but more came")

    def check_spec(self, spec: f.ValueSpec) -> None:
        if isinstance(spec, f.SymSpec):
            expr, is_condition = symbols.parse_any(spec.expr)
            if is_condition != (spec.kind == "bool"):
                raise SymbolError(f"a size of kind {spec.kind} cannot be {spec.expr[:80]!r}")
            self.known_names(expr, spec.expr)
        elif isinstance(spec, f.TensorSpec):
            word(vocabulary.DTYPES, spec.dtype, "dtype")
            if spec.layout != "strided":
                raise InvalidFragmentError(f"values are strided tensors, but the layout {spec.layout[:40]!r} came")
            if len(spec.shape) != len(spec.stride) or len(spec.shape) > MAX_RANK:
                raise InvalidFragmentError(
                    f"a tensor has as many strides as dims, at most {MAX_RANK}: {len(spec.shape)} dims and "
                    f"{len(spec.stride)} strides came"
                )
            for dim in (*spec.shape, *spec.stride):
                if isinstance(dim, str):
                    self.size(dim)
                elif not 0 <= dim < INT64.stop:
                    raise InvalidFragmentError(f"dims and strides are 0 or more and of 64 bits, but {dim} came")


def word(table: dict[str, Any], name: str, what: str) -> Any:
    """Looks a word up.

    Raises:
        InvalidFragmentError: the table does not have it; the message lists those there are.
    """
    try:
        return table[name]
    except KeyError:
        raise InvalidFragmentError(f"a {what} is one of {', '.join(table)}, not {name[:40]!r}") from None


class _GraphBuilder:
    """Builds the fx graph of one `Graph`; branches of higher-order operators get builders of their own."""

    def __init__(self, context: _Context, graph: f.Graph, depth: int, *, bare: bool = False) -> None:
        if depth > MAX_NESTING:
            raise InvalidFragmentError(f"graphs are nested at most {MAX_NESTING} deep")
        self.context, self.graph, self.depth, self.bare = context, graph, depth, bare
        self.fx = torch.fx.Graph()
        self.values: list[torch.fx.Node | None] = []
        self.branches: dict[str, torch.fx.GraphModule] = {}
        self.sources: dict[str, tuple[tuple[tuple[str, int], ...], Callable[[], torch.fx.Node]]] = {}
        self.sizes: dict[symbols.Expr, Any] = {}
        self.index = -1
        self.higher_order = False
        self.op = ""
        self.graphs = 0  # taken by the current node so far

    def build(self) -> torch.fx.GraphModule:
        self.context.count(len(self.graph.nodes))
        if len(self.graph.inputs) > MAX_INPUTS:
            raise InvalidFragmentError(f"a graph has at most {MAX_INPUTS} inputs, but {len(self.graph.inputs)} came")
        for number, entry in enumerate(self.graph.inputs):
            self.placeholder(number, entry)
        for index, node in enumerate(self.graph.nodes):
            self.index = index
            try:
                self.node(node)
            except SpyreRuntimeError as error:
                raise type(error)(f"node {index} ({node.op[:80]}): {error}") from None
        self.index = len(self.graph.nodes)
        outputs = [self.value(output.v) for output in self.graph.outputs]
        for output in self.graph.outputs:
            self.context.check_spec(output.spec)
            if output.alias_of is not None and not 0 <= output.alias_of < len(self.graph.inputs):
                raise InvalidFragmentError(f"an output aliases an input by number, but {output.alias_of} came")
        self.mutations()
        if self.bare and len(outputs) != 1:
            raise InvalidFragmentError(f"this graph gives one value, but has {len(outputs)} outputs")
        self.fx.output(outputs[0] if self.bare else tuple(outputs))
        return torch.fx.GraphModule(self.branches, self.fx)

    def placeholder(self, number: int, entry: f.Input) -> None:
        if isinstance(entry.spec, f.SymSpec) != (entry.kind == "symint") or isinstance(entry.spec, f.NoneSpec):
            raise InvalidFragmentError(f"input {number} is a {entry.kind}, which does not fit its description")
        self.context.check_spec(entry.spec)
        node = self.fx.placeholder(f"arg{number}")
        self.values.append(node)
        if isinstance(entry.spec, f.SymSpec):
            if entry.spec.kind == "int":
                self.add_source(entry.spec.expr, lambda: node)
            return
        assert isinstance(entry.spec, f.TensorSpec)
        for dim, size in enumerate(entry.spec.shape):
            if isinstance(size, str):
                self.add_source(size, functools.partial(self.call, torch.ops.aten.sym_size.int, (node, dim)))

    def add_source(self, text: str, source: Callable[[], torch.fx.Node]) -> None:
        """Notes where a symbol can be read; a plain mention wins over one that must be solved for."""
        solution = symbols.solve(self.context.size(text))
        if solution is None:
            return
        known = self.sources.get(solution.name)
        if known is None or len(solution.steps) < len(known[0]):
            self.sources[solution.name] = (solution.steps, source)

    def read_symbol(self, name: str) -> torch.fx.Node:
        if name not in self.sources:
            raise SymbolError(f"the symbol {name} is carried by no input of the graph that uses it")
        steps, source = self.sources[name]
        value = source()
        for op, constant in steps:
            value = self.arithmetic(op, [value] if op == "neg" else [value, constant])
        return value

    def call(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> torch.fx.Node:
        node = self.fx.call_function(target, args, kwargs or {})
        node.meta["index"] = self.index
        return node

    def arithmetic(self, op: str, args: list[Any]) -> Any:
        function = vocabulary.SYM_OPS[vocabulary.EXPR_OPS[op]]
        result = args[0]
        for other in args[1:]:
            result = self.call(function, (result, other))
        return result if len(args) > 1 else self.call(function, (result,))

    def size(self, text: str) -> Any:
        """A size as an fx argument: an int, or a node that computes it from the graph's own inputs."""
        return self.emit(self.context.size(text))

    def emit(self, expr: symbols.Expr) -> Any:
        if isinstance(expr, symbols.Const):
            return expr.value
        if expr not in self.sizes:
            if isinstance(expr, symbols.Name):
                self.sizes[expr] = self.read_symbol(expr.name)
            else:
                self.sizes[expr] = self.arithmetic(expr.op, [self.emit(arg) for arg in expr.args])
        return self.sizes[expr]

    def value(self, number: int) -> torch.fx.Node:
        if not 0 <= number < len(self.values):
            raise InvalidFragmentError(f"values 0 to {len(self.values) - 1} exist here, but {number} is referred to")
        node = self.values[number]
        if node is None:
            raise InvalidFragmentError(f"value {number} is None, but it is used")
        return node

    def node(self, node: f.Node) -> None:
        target = resolve(node.op, self.context.custom_ops)
        namespace, _, name = node.op.partition("::")
        self.higher_order, self.op, self.graphs = namespace == "higher_order", node.op, 0
        if namespace == "sym" and (len(node.args) != vocabulary.SYM_ARITY[name] or node.kwargs):
            raise InvalidFragmentError(f"{node.op} takes {vocabulary.SYM_ARITY[name]} sizes and no keywords")
        args = tuple(self.argument(arg, 0) for arg in node.args)
        kwargs: dict[str, Any] = {}
        for name, arg in node.kwargs:
            if not name.isidentifier() or keyword.iskeyword(name) or len(name) > 80 or name in kwargs:
                raise InvalidFragmentError(f"keywords are distinct identifiers, but {name[:40]!r} came")
            kwargs[name] = self.argument(arg, 0)
        called = self.call(target, args, kwargs)
        called.meta["is_record"] = True
        for spec in node.results:
            self.context.check_spec(spec)
        self.context.count(len(node.results))
        if node.pack == "seq":
            for number, spec in enumerate(node.results):
                none = isinstance(spec, f.NoneSpec)
                self.values.append(None if none else self.call(operator.getitem, (called, number)))
            return
        if len(node.results) != (1 if node.pack == "single" else 0):
            raise InvalidFragmentError(f"a node of pack {node.pack!r} cannot have {len(node.results)} results")
        if node.results:
            self.values.append(None if isinstance(node.results[0], f.NoneSpec) else called)

    def argument(self, arg: f.Arg, depth: int) -> Any:  # noqa: C901, PLR0911, PLR0912  one return for each tag
        match arg:
            case f.Ref():
                return self.value(arg.v)
            case f.IntArg():
                if arg.v not in INT64:
                    raise InvalidFragmentError(f"an integer has 64 bits, but {arg.v} came")
                return arg.v
            case f.FloatArg():
                return _float(arg.v)
            case f.ComplexArg():
                return complex(_float(arg.re), _float(arg.im))
            case f.BoolArg() | f.StrArg():
                return arg.v
            case f.NoneArg():
                return None
            case f.SymArg():
                return self.size(arg.expr)
            case f.DTypeArg():
                return word(vocabulary.DTYPES, arg.v, "dtype")
            case f.DeviceArg():
                if arg.v not in vocabulary.DEVICES:
                    raise InvalidFragmentError(f"a device is cpu or meta, not {arg.v[:40]!r}")
                return torch.device(arg.v)
            case f.LayoutArg():
                return word(vocabulary.LAYOUTS, arg.v, "layout")
            case f.MemoryFormatArg():
                return word(vocabulary.MEMORY_FORMATS, arg.v, "memory format")
            case f.OpArg():
                return resolve(arg.v, self.context.custom_ops, mutable=True)
            case f.GraphArg():
                return self.branch(arg.graph)
            case f.ListArg():
                if depth >= MAX_NESTING:
                    raise InvalidFragmentError(f"lists are nested at most {MAX_NESTING} deep")
                items = [self.argument(item, depth + 1) for item in arg.items]
                # Higher-order operators insist on tuples of operands; ATen takes either.
                return tuple(items) if self.higher_order else items

    def branch(self, graph: f.Graph) -> torch.fx.Node:
        if not self.higher_order:
            raise InvalidFragmentError("only a higher-order operator takes a graph")
        name = f"branch{len(self.branches)}"
        # A loop's condition and attention's score functions give a value, all other graphs a tuple.
        bare = self.op == "higher_order::flex_attention" or (self.op == "higher_order::while_loop" and not self.graphs)
        self.graphs += 1
        self.branches[name] = _GraphBuilder(self.context, graph, self.depth + 1, bare=bare).build()
        node = self.fx.get_attr(name)
        node.meta["index"] = self.index
        node.meta["graph"] = graph
        return node

    def mutations(self) -> None:
        seen: set[int] = set()
        for mutation in self.graph.mutations:
            if not 0 <= mutation.input < len(self.graph.inputs) or mutation.input in seen:
                raise InvalidFragmentError(f"mutations are of distinct inputs, but input {mutation.input} came")
            if self.graph.inputs[mutation.input].kind != "state":
                raise InvalidFragmentError(
                    f"a fragment writes to inputs of kind state, but input {mutation.input} is not"
                )
            seen.add(mutation.input)
            self.call(torch.ops.aten.copy_.default, (self.value(mutation.input), self.value(mutation.v)))


def _float(bits: str) -> float:
    try:
        return bits_float(bits)
    except InvalidRecordError as error:
        raise InvalidFragmentError(str(error)) from None


def _fill(module: torch.fx.GraphModule, graph: f.Graph, fakes: Fakes, *, check: bool) -> None:
    """Gives every node its fake value, branches included."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            _fill(getattr(module, node.target), node.meta.pop("graph"), fakes, check=check)
    fakes.propagate(module, graph, check=check)
