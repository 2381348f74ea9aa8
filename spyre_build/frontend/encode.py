"""From a lowered fx graph to the model's IR: operators and arguments in the vocabulary of fragments."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from spyre_build.errors import CaptureError, UnsupportedError
from spyre_build.frontend.ir import IRNode, ModelGraph
from spyre_build.frontend.origins import call_stack, source_line
from spyre_build.frontend.sizes import spell, strip
from spyre_cache.codec import float_bits
from spyre_cache.objects import fragment as f
from spyre_runtime.vocabulary import (
    DTYPE_NAMES,
    HIGHER_ORDER,
    LAYOUT_NAMES,
    MEMORY_FORMAT_NAMES,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_DROPPED = {
    "aten::_assert_tensor_metadata",
    "aten::_assert_async.msg",
    "aten::_assert_scalar",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
}
_ALIASES_UNSAID = {
    "aten::_unsafe_view",
    "aten::_reshape_alias",
    "aten::reshape",
    "aten::contiguous",
    "aten::lift_fresh",
}
_MAX_BRANCH_DEPTH = 8


class Encoder:
    """Encodes one lowered graph.

    Args:
        declared: namespaces or operators outside ATen that the user declared.
        what: names the entry in errors.
    """

    def __init__(self, declared: frozenset[str], what: str) -> None:
        self.declared = declared
        self.what = what
        self._names: dict[Any, Any] = {}  # torch's symbol -> ours
        self.exprs: dict[str, Any] = {}
        self.constants: list[torch.Tensor] = []
        self.custom_ops: set[str] = set()
        self.random: list[str] = []

    # --- sizes ---

    def size(self, value: Any) -> int | str:
        """A size as a number, or as text over the model's symbols."""
        if isinstance(value, (int, bool)):
            return int(value)
        expr = value.node.expr
        if expr.is_number:
            return int(expr)
        expr = expr.xreplace({symbol: self._symbol(symbol) for symbol in sorted(expr.free_symbols, key=str)})
        text = strip(spell(expr))
        self.exprs[text] = expr
        return text

    def _symbol(self, symbol: Any) -> Any:
        import sympy

        known = self._names.get(symbol)
        if known is None:
            if str(symbol).startswith(("u", "zuf")):
                raise UnsupportedError(
                    f"{self.what}: a shape depends on the values of a tensor (nonzero, item, unique, a boolean index), "
                    "which cannot be compiled ahead",
                    hint="use torch.where or a mask of fixed size, or return the mask and select outside the model",
                )
            known = sympy.Symbol(f"s{len(self._names)}", integer=True, positive=True)
            self._names[symbol] = known
        return known

    @property
    def names(self) -> dict[Any, Any]:
        """Torch's symbols in order of first use, with ours."""
        return self._names

    # --- values ---

    def spec(self, value: Any, where: str = "") -> f.ValueSpec:
        """What a fake value is."""
        if value is None:
            return f.NoneSpec()
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                raise UnsupportedError(f"tensors are strided, but {where or self.what} makes a {value.layout} one")
            if value.dtype not in DTYPE_NAMES:
                raise UnsupportedError(f"{where or self.what} makes a tensor of {value.dtype}, which has no name here")
            shape = tuple(self.size(dim) for dim in value.shape)
            stride = tuple(self.size(step) for step in value.stride())
            return f.TensorSpec(dtype=DTYPE_NAMES[value.dtype], shape=shape, stride=stride)
        if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat, int, float, bool)):
            kind = "bool" if isinstance(value, (bool, torch.SymBool)) else "int"
            if isinstance(value, (float, torch.SymFloat)):
                raise UnsupportedError(f"{where or self.what} computes a float from sizes, which is not supported")
            return f.SymSpec(kind="bool" if kind == "bool" else "int", expr=str(self.size(value)))
        raise UnsupportedError(f"{where or self.what} makes a {type(value).__name__}, which no fragment can hold")

    def encode(self, module: fx.GraphModule) -> ModelGraph:
        """The IR of a lowered graph; constants met on the way follow its placeholders as further inputs.

        Raises:
            UnsupportedError: an operator or value that fragments cannot hold; names operator and source line.
            CaptureError: an operator is not declared, or draws random numbers.
        """
        body = _Body(self, module)
        return body.model()


def operator_name(target: Any) -> str | None:
    """`aten::add.Tensor`, `higher_order::cond`, or None for what is no operator."""
    if isinstance(target, torch._ops.OpOverload):  # noqa: SLF001  the class has no public name
        namespace, _, rest = str(target).partition(".")
        name, _, overload = rest.rpartition(".")
        return f"{namespace}::{name}" if overload == "default" else f"{namespace}::{name}.{overload}"
    if isinstance(target, torch._ops.HigherOrderOperator):  # noqa: SLF001
        return f"higher_order::{target.name()}"
    return None


def _branch_name(owner: fx.GraphModule, target: str) -> Any:
    value: Any = owner
    for part in target.split("."):
        value = getattr(value, part)
    return value


class _Body:
    """One fx graph: the model's own, or a branch of a higher-order operator."""

    def __init__(self, encoder: Encoder, module: fx.GraphModule, depth: int = 0) -> None:
        if depth > _MAX_BRANCH_DEPTH:
            raise UnsupportedError(f"branches are nested at most {_MAX_BRANCH_DEPTH} deep")
        self.encoder = encoder
        self.module = module
        self.depth = depth
        self.values: dict[fx.Node, int | list[int | None] | None] = {}
        self.specs: dict[int, f.ValueSpec] = {}
        self.inputs: list[f.ValueSpec] = []
        self.nodes: list[IRNode] = []
        self.same: dict[int, int] = {}
        self.mutations: list[tuple[int, int]] = []
        self.outputs: list[int | None] = []
        self.next = 0

    # --- walking ---

    def walk(self) -> None:
        graph = self.module.graph
        for node in graph.find_nodes(op="placeholder"):
            self._input(node, node.meta.get("val"))
        for node in graph.find_nodes(op="get_attr"):
            value = _branch_name(self.module, str(node.target))
            if isinstance(value, torch.Tensor):
                if self.depth:
                    raise UnsupportedError(f"{self.encoder.what}: a branch holds a literal tensor")
                self.encoder.constants.append(_real(value))
                self._input(node, value)
        for node in graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._output(node)

    def _input(self, node: fx.Node, value: Any) -> None:
        spec = self.encoder.spec(value, "an input")
        self.values[node] = self._new(spec)
        self.inputs.append(spec)

    def _new(self, spec: f.ValueSpec) -> int:
        number = self.next
        self.next += 1
        self.specs[number] = spec
        return number

    def _output(self, node: fx.Node) -> None:
        results = node.args[0]
        for item in results if isinstance(results, (tuple, list)) else (results,):
            value = self.values.get(item) if isinstance(item, fx.Node) else None
            if isinstance(value, list):
                raise UnsupportedError(f"{self.encoder.what} returns an operator's whole tuple")
            self.outputs.append(value)

    def _call(self, node: fx.Node) -> None:
        target = node.target
        if target is operator.getitem and isinstance(node.args[0], fx.Node):
            packed = self.values[node.args[0]]
            index = node.args[1]
            if isinstance(packed, list) and isinstance(index, int):
                self.values[node] = packed[index]
                return
        value = node.meta.get("val")
        name = operator_name(target)
        if name in _DROPPED or isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat, int, bool)):
            self.values[node] = None  # sizes are spelled where they are used
            return
        where = self._where(node, name)
        if name is None:
            raise UnsupportedError(f"{where} is not an operator that a fragment can hold", nodes=(where,))
        if name == "aten::copy_" and self._writes_input(node):
            target_value, source = (self.values[item] for item in node.args[:2] if isinstance(item, fx.Node))
            assert isinstance(target_value, int)
            assert isinstance(source, int)
            self.mutations.append((target_value, source))
            self.values[node] = source
            return
        self._check(node, name, target, where)
        self._add(node, name, target, value, where)

    def _writes_input(self, node: fx.Node) -> bool:
        first = node.args[0]
        return isinstance(first, fx.Node) and first.op == "placeholder"

    def _check(self, node: fx.Node, name: str, target: Any, where: str) -> None:
        namespace = name.partition("::")[0]
        if namespace == "higher_order":
            if name.partition("::")[2] not in HIGHER_ORDER:
                raise UnsupportedError(f"{where} is a higher-order operator that fragments do not hold", nodes=(where,))
            return
        if _draws(node, target):
            self.encoder.random.append(where)
        if namespace not in {"aten", "prims"}:
            if not self._declared(name):
                raise CaptureError(
                    f"{where} is an operator outside ATen that is not declared",
                    hint=f"declare the module that defines it: ModelSpec(custom_ops=[...]) for {namespace!r}",
                )
            self.encoder.custom_ops.add(name)
        if target._schema.is_mutable:  # noqa: SLF001  torch has no public face for schemas
            raise UnsupportedError(
                f"{where} writes to its arguments in a way that could not be made functional", nodes=(where,)
            )

    def _declared(self, name: str) -> bool:
        namespace = name.partition("::")[0]
        return not self.encoder.declared.isdisjoint({namespace, name, name.partition(".")[0]})

    def _add(self, node: fx.Node, name: str, target: Any, value: Any, where: str) -> None:
        many = isinstance(value, (tuple, list))
        specs = tuple(self.encoder.spec(item, where) for item in (value if many else (value,)))
        args, kwargs = self._arguments(node, name, target, where)
        first = self.next
        numbers = [self._new(spec) for spec in specs]
        self.values[node] = list(numbers) if many else numbers[0]
        made = IRNode(
            op=name,
            args=args,
            kwargs=kwargs,
            first=first,
            results=specs,
            pack="seq" if many else "single",
            aliases=self._aliases(node, name, target),
            calls=call_stack(node.meta),
            source=source_line(node.meta.get("stack_trace")),
        )
        self.nodes.append(made)
        if not many:
            self._identity(made)

    def _identity(self, node: IRNode) -> None:
        """A view that changes nothing, and the copy that torch makes of a literal, are their own input."""
        if node.op == "aten::lift_fresh_copy" or (node.aliases and node.op != "aten::as_strided"):
            source = node.aliases[0] if node.aliases else next(node.reads())
            if self.specs[source] == node.results[0]:
                self.same[node.first] = source

    def _aliases(self, node: fx.Node, name: str, target: Any) -> tuple[int, ...]:
        found: list[int] = []
        schema = getattr(target, "_schema", None)
        if name in _ALIASES_UNSAID:
            sources: Iterable[Any] = node.args[:1]
        elif schema is not None and any(result.alias_info is not None for result in schema.returns):
            sources = [arg for arg, formal in zip(node.args, schema.arguments, strict=False) if formal.alias_info]
        else:
            return ()
        for source in sources:
            value = self.values.get(source) if isinstance(source, fx.Node) else None
            if isinstance(value, int):
                found.append(value)
        return tuple(found)

    def _where(self, node: fx.Node, name: str | None) -> str:
        calls = call_stack(node.meta)
        place = source_line(node.meta.get("stack_trace"))
        text = name or str(node.target)
        if place:
            text += f" at {place}"
        if calls:
            text += f" ({calls[-1][0]})"
        return text

    # --- arguments ---

    def _arguments(
        self, node: fx.Node, name: str, target: Any, where: str
    ) -> tuple[tuple[f.Arg, ...], tuple[tuple[str, f.Arg], ...]]:
        schema = getattr(target, "_schema", None)
        if name.startswith("higher_order::") or schema is None:
            kwargs = tuple(sorted((key, self.arg(item, where)) for key, item in node.kwargs.items()))
            return tuple(self.arg(item, where) for item in node.args), kwargs
        positional = [formal for formal in schema.arguments if not formal.kwarg_only]
        given = dict(zip((formal.name for formal in positional), node.args, strict=False))
        given.update(node.kwargs)
        args: list[f.Arg] = []
        keep = 0
        for formal in positional:
            if formal.name in given:
                item = given[formal.name]
            elif formal.has_default_value():
                item = formal.default_value
            else:
                raise UnsupportedError(f"{where} lacks its argument {formal.name!r}", nodes=(where,))
            args.append(self.arg(_as_formal(item, formal), where))
            if not (formal.has_default_value() and _same_value(item, formal.default_value)):
                keep = len(args)
        named: list[tuple[str, f.Arg]] = []
        for formal in schema.arguments:
            if not formal.kwarg_only or formal.name not in given:
                continue
            item = given[formal.name]
            if formal.has_default_value() and _same_value(item, formal.default_value):
                continue
            if formal.name == "pin_memory" and not item:
                continue
            named.append((formal.name, self.arg(_as_formal(item, formal), where)))
        return tuple(args[:keep]), tuple(sorted(named))

    def arg(self, item: Any, where: str) -> f.Arg:  # noqa: C901, PLR0911, PLR0912  one return for each type there is
        if isinstance(item, fx.Node):
            return self._node_arg(item, where)
        if item is None:
            return f.NoneArg()
        if isinstance(item, bool):
            return f.BoolArg(v=item)
        if isinstance(item, int):
            return f.IntArg(v=item)
        if isinstance(item, float):
            return f.FloatArg(v=float_bits(item))
        if isinstance(item, complex):
            return f.ComplexArg(re=float_bits(item.real), im=float_bits(item.imag))
        if isinstance(item, str):
            return f.StrArg(v=item)
        if isinstance(item, (torch.SymInt, torch.SymBool)):
            size = self.encoder.size(item)
            return f.IntArg(v=size) if isinstance(size, int) else f.SymArg(expr=size)
        if isinstance(item, torch.dtype) and item in DTYPE_NAMES:
            return f.DTypeArg(v=DTYPE_NAMES[item])
        if isinstance(item, torch.device):
            if item.type not in {"cpu", "meta"}:
                raise UnsupportedError(
                    f"{where} makes a tensor on {item}; a submitted model stays on cpu", nodes=(where,)
                )
            return f.DeviceArg(v=item.type)
        if isinstance(item, torch.layout) and item in LAYOUT_NAMES:
            return f.LayoutArg(v=LAYOUT_NAMES[item])
        if isinstance(item, torch.memory_format) and item in MEMORY_FORMAT_NAMES:
            return f.MemoryFormatArg(v=MEMORY_FORMAT_NAMES[item])
        if isinstance(item, (list, tuple)):
            return f.ListArg(items=tuple(self.arg(inner, where) for inner in item))
        if isinstance(item, torch.SymFloat):
            raise UnsupportedError(
                f"{where} computes with a number that depends on a tensor's values or on sizes",
                nodes=(where,),
                hint="keep it a tensor: use x.sum() instead of x.sum().item()",
            )
        name = operator_name(item)
        if name is not None:
            return f.OpArg(v=name)
        raise UnsupportedError(f"{where} takes a {type(item).__name__}, which no fragment can hold", nodes=(where,))

    def _node_arg(self, node: fx.Node, where: str) -> f.Arg:
        if node.op == "get_attr" and node not in self.values:
            value = _branch_name(self.module, str(node.target))
            if isinstance(value, fx.GraphModule):
                return f.GraphArg(graph=_branch(self.encoder, value, self.depth + 1))
            raise UnsupportedError(
                f"{where} takes a {type(value).__name__}, which no fragment can hold", nodes=(where,)
            )
        number = self.values.get(node)
        if isinstance(number, list):
            return f.ListArg(items=tuple(f.NoneArg() if item is None else f.Ref(v=item) for item in number))
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat, int, float, bool)):
            return self.arg(value, where)
        if number is None:
            raise UnsupportedError(f"{where} reads a value that no fragment can hold", nodes=(where,))
        return f.Ref(v=number)

    # --- results ---

    def model(self) -> ModelGraph:
        from spyre_build.frontend.ir import drop_dead, substitute

        self.walk()
        graph = ModelGraph(
            inputs=self.inputs,
            nodes=self.nodes,
            outputs=self.outputs,
            mutations=[pair for pair in self.mutations if pair[0] != pair[1]],
            specs=self.specs,
            exprs=self.encoder.exprs,
        )
        return drop_dead(substitute(graph, self.same))

    def graph(self) -> f.Graph:
        """A branch as a record; nothing of it is dropped or reordered but dead nodes."""
        model = self.model()
        if model.mutations:
            raise UnsupportedError(f"{self.encoder.what}: a branch writes to its arguments")
        renumber = {number: number for number in range(len(model.inputs))}
        nodes: list[f.Node] = []
        for node in model.nodes:
            for number in node.values:
                renumber[number] = len(renumber)
            nodes.append(_record(node, renumber))
        outputs = []
        for result in model.outputs:
            if result is None:
                raise UnsupportedError(f"{self.encoder.what}: a branch returns None")
            outputs.append(f.Output(v=renumber[result], spec=model.specs[result]))
        kinds = [f.Input(kind="symint" if isinstance(s, f.SymSpec) else "tensor", spec=s) for s in model.inputs]
        return f.Graph(inputs=tuple(kinds), nodes=tuple(nodes), outputs=tuple(outputs))


def _draws(node: fx.Node, target: Any) -> bool:
    """Whether a call draws random numbers: operators that may do not when their dropout is zero or not in training."""
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    formals = target._schema.arguments  # noqa: SLF001
    given = dict(zip((formal.name for formal in formals), node.args, strict=False)) | dict(node.kwargs)
    for formal in formals:
        value = given.get(formal.name, formal.default_value if formal.has_default_value() else None)
        if formal.name in {"dropout_p", "dropout", "training", "train"} and not isinstance(value, fx.Node):
            return bool(value)
    return True


def _branch(encoder: Encoder, module: fx.GraphModule, depth: int) -> f.Graph:
    return _Body(encoder, module, depth).graph()


def _record(node: IRNode, renumber: dict[int, int]) -> f.Node:
    from spyre_build.frontend.ir import map_arg

    def text(expr: str) -> str:
        return expr

    return f.Node(
        op=node.op,
        args=tuple(map_arg(arg, renumber.__getitem__, text) for arg in node.args),
        kwargs=tuple((name, map_arg(arg, renumber.__getitem__, text)) for name, arg in node.kwargs),
        results=node.results,
        pack=node.pack,
    )


def _real(value: torch.Tensor) -> torch.Tensor:
    constant: torch.Tensor | None = getattr(value, "constant", None)  # a fake of a literal carries the real one
    return value if constant is None else constant


def _same_value(item: Any, default: Any) -> bool:
    if isinstance(item, (list, tuple)) and isinstance(default, (list, tuple)):
        return len(item) == len(default) and all(map(_same_value, item, default))
    if isinstance(item, fx.Node) or isinstance(default, fx.Node):
        return False
    if isinstance(item, (torch.SymInt, torch.SymBool, torch.SymFloat)):
        return False
    return type(item) is type(default) and bool(item == default)


def _as_formal(item: Any, formal: Any) -> Any:
    """One spelling for values that a schema takes in several (an int where it wants a float)."""
    if str(formal.type) == "float" and type(item) is int:
        return float(item)
    return item


__all__ = ["CaptureError", "Encoder", "operator_name"]
