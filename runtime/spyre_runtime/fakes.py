"""Fake values for decoded fragments: what a compiler needs and an interpreter does not. Imports sympy."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import sympy
import torch
from torch._guards import Source
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, guarding_hint_or_throw
from torch.utils._sympy.numbers import int_oo
from torch.utils._traceback import CapturedTraceback

from spyre_cache.objects import fragment as f
from spyre_runtime import symbols, vocabulary
from spyre_runtime.errors import InvalidFragmentError, SymbolError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_TRIES: Final = 20_000
_FACTORS: Final = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 24, 32, 48, 64, 96, 120, 128, 256, 512, 720, 1024)
_BASES: Final = (17, 23, 29, 37, 43, 53, 61, 67)  # apart, odd and prime: an example says as little as it can


class _FragmentSymbol(Source):  # type: ignore[misc]  # mypy does not follow torch
    """Where torch thinks a symbol came from; only its name is ever printed."""

    def __init__(self, name: str) -> None:
        self.symbol_name = name

    @property
    def _name_template(self) -> str:
        return self.symbol_name


def example_sizes(fragment: f.Fragment) -> dict[str, int]:
    """Values of the symbols that satisfy their ranges and all constraints, as unremarkable as can be had.

    Raises:
        SymbolError: none was found.
    """
    conditions = [(symbols.names(symbols.parse_condition(text)), text) for text in fragment.constraints]
    chosen: dict[str, int] = {}
    tries = itertools.count()

    def assign(position: int) -> bool:
        if position == len(fragment.symbols):
            return True
        symbol = fragment.symbols[position]
        for value in _candidates(symbol, position):
            if next(tries) > _MAX_TRIES:
                return False
            chosen[symbol.name] = value
            ready = [text for used, text in conditions if symbol.name in used and used <= chosen.keys()]
            if all(_holds(text, chosen) for text in ready) and assign(position + 1):
                return True
        chosen.pop(symbol.name, None)
        return False

    if not assign(0):
        raise SymbolError(f"no sizes were found that satisfy {'; '.join(fragment.constraints)[:200]}")
    return chosen


def _holds(text: str, values: dict[str, int]) -> bool:
    try:
        return symbols.holds(text, values)
    except SymbolError:  # a division by zero under these values
        return False


def _candidates(symbol: f.Symbol, position: int) -> Iterator[int]:
    """In-range values: odd primes and their multiples, then large before small.

    Small ones come last because a size derived from them (`s0 // 4`) may be 0 or 1, for which torch takes other paths.
    """
    lowest, highest = symbol.min, symbol.max if symbol.max is not None else 1 << 40
    base = _BASES[position % len(_BASES)] + position
    wanted = itertools.chain(
        (base * factor for factor in _FACTORS),
        range(min(highest - 1, 4096), max(lowest, 1), -1),
        (highest, lowest + 1, lowest),
        (1 << power for power in range(12, 40)),
    )
    seen: set[int] = set()
    for value in wanted:
        if lowest <= value <= highest and value not in seen:
            seen.add(value)
            yield value


class Fakes:
    """One `FakeTensorMode` and `ShapeEnv` for one fragment.

    Attributes:
        mode: the fake mode of every value.
        symints: symbol name to symbolic integer (a plain one where the range has a single value).
    """

    def __init__(self, fragment: f.Fragment) -> None:
        self.shape_env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.shape_env, allow_non_fake_inputs=False, static_shapes=None)
        hints = example_sizes(fragment)
        self.symints: dict[str, Any] = {
            symbol.name: self._symint(symbol, hints[symbol.name]) for symbol in fragment.symbols
        }
        for constraint in fragment.constraints:
            self._assume(constraint)

    def _symint(self, symbol: f.Symbol, hint: int) -> Any:
        if symbol.min == symbol.max:
            return symbol.min
        name = sympy.Symbol(
            symbol.name, integer=True, **({"positive": True} if symbol.min > 0 else {"nonnegative": True})
        )
        env = self.shape_env
        env.add_backed_var_to_val(name, hint)
        env.constrain_symbol_range(name, symbol.min, int_oo if symbol.max is None else symbol.max)
        source = _FragmentSymbol(symbol.name)
        env.var_to_sources[name] = [source]
        env.source_to_var[symbol.name] = name
        env.var_to_stack[name] = CapturedTraceback.extract(skip=1)
        return env.create_symintnode(name, hint=hint, source=source)

    def _assume(self, constraint: str) -> None:
        # Deciding a condition makes it a guard of the environment, and guards are what it reasons from.
        if not bool(self._value(symbols.parse_condition(constraint))):
            raise SymbolError(f"the example sizes do not satisfy {constraint}")

    def _value(self, expr: symbols.Expr) -> Any:
        def leaf(atom: symbols.Const | symbols.Name) -> Any:
            return atom.value if isinstance(atom, symbols.Const) else self.symints[atom.name]

        def apply(op: str, args: list[Any]) -> Any:
            function = vocabulary.SYM_OPS[vocabulary.EXPR_OPS[op]]
            if len(args) == 1:
                return function(args[0])
            result = args[0]
            for other in args[1:]:
                result = function(result, other)
            return result

        try:
            return symbols.fold(expr, leaf, apply)
        except ZeroDivisionError:
            raise SymbolError("a size expression divides by zero") from None

    def size(self, dim: f.Dim) -> Any:
        """A dimension as an int or symbolic integer."""
        return dim if isinstance(dim, int) else self._value(symbols.parse(dim))

    def value(self, spec: f.ValueSpec) -> Any:
        """A fake value of a described input."""
        if isinstance(spec, f.SymSpec):
            return self._value(symbols.parse_any(spec.expr)[0])
        assert isinstance(spec, f.TensorSpec)
        shape, stride = [self.size(dim) for dim in spec.shape], [self.size(dim) for dim in spec.stride]
        with self.mode, self.shape_env.suppress_guards():
            return torch.empty_strided(shape, stride, dtype=vocabulary.DTYPES[spec.dtype], device="cpu")

    def propagate(self, module: torch.fx.GraphModule, graph: f.Graph, *, check: bool) -> None:
        """Fills `meta["val"]` of every node of a decoded graph.

        Raises:
            InvalidFragmentError: torch refuses a call, or (with `check`) computes another result than is recorded.
        """
        inputs = iter(graph.inputs)
        with self.mode, torch.no_grad():
            for node in module.graph.nodes:
                if node.op == "placeholder":
                    node.meta["val"] = self._guarded(node, self.value, next(inputs).spec)
                elif node.op == "call_function":
                    args, kwargs = torch.fx.node.map_arg(
                        (node.args, node.kwargs),
                        lambda n: getattr(module, n.target) if n.op == "get_attr" else n.meta["val"],
                    )
                    node.meta["val"] = self._guarded(node, node.target, *args, **kwargs)
                elif node.op == "output":
                    node.meta["val"] = torch.fx.node.map_arg(node.args[0], lambda n: n.meta["val"])
        if check:
            self._check(module, graph)

    def _guarded(self, node: torch.fx.Node, function: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SymbolError:
            raise
        except Exception as error:
            where = f"node {node.meta['index']} ({node.target})" if "index" in node.meta else f"input {node.name}"
            raise InvalidFragmentError(f"{where}: torch refuses it: {str(error).splitlines()[0][:300]}") from error

    def _check(self, module: torch.fx.GraphModule, graph: f.Graph) -> None:
        by_index: dict[int, list[torch.fx.Node]] = {}
        for node in module.graph.nodes:
            if node.op == "call_function":
                by_index.setdefault(node.meta["index"], []).append(node)
        for index, recorded in enumerate(graph.nodes):
            called = next(n for n in by_index[index] if n.meta.get("is_record"))
            value = called.meta["val"]
            values = list(value) if recorded.pack == "seq" else [value] if recorded.pack == "single" else []
            if len(values) != len(recorded.results):
                raise InvalidFragmentError(
                    f"node {index} ({recorded.op}) has {len(values)} results, not {len(recorded.results)}"
                )
            for result, spec in zip(values, recorded.results, strict=True):
                difference = self.difference(result, spec)
                if difference:
                    raise InvalidFragmentError(f"node {index} ({recorded.op}) {difference}")
        output = next(n for n in module.graph.nodes if n.op == "output")
        given = output.meta["val"] if isinstance(output.meta["val"], tuple) else (output.meta["val"],)
        for number, (result, described) in enumerate(zip(given, graph.outputs, strict=True)):
            difference = self.difference(result, described.spec)
            if difference:
                raise InvalidFragmentError(f"output {number} {difference}")

    def difference(self, value: Any, spec: f.ValueSpec) -> str | None:
        """How a fake value differs from its description, in words; None when it does not."""
        if isinstance(spec, f.NoneSpec):
            return None if value is None else f"is a {type(value).__name__}, not None"
        if isinstance(spec, f.SymSpec):
            expected = self._value(symbols.parse_any(spec.expr)[0])
            return None if _hint(value) == _hint(expected) else f"is {value}, not {spec.expr}"
        if not isinstance(value, torch.Tensor):
            return f"is a {type(value).__name__}, not a tensor"
        dtype = vocabulary.DTYPE_NAMES.get(value.dtype, str(value.dtype))
        if dtype != spec.dtype:
            return f"is of {dtype}, not {spec.dtype}"
        shape, wanted = [_hint(d) for d in value.shape], [_hint(self.size(d)) for d in spec.shape]
        if shape != wanted:
            return f"has the shape {list(value.shape)}, not {list(spec.shape)}"
        strides = zip(value.stride(), spec.stride, shape, strict=True)
        if 0 not in shape and any(d > 1 and _hint(a) != _hint(self.size(b)) for a, b, d in strides):
            return f"has the strides {list(value.stride())}, not {list(spec.stride)}"
        return None


def _hint(value: Any) -> Any:
    return guarding_hint_or_throw(value) if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)) else value
