"""Small fragments made from Python functions, for the tests of what compiles them."""

from __future__ import annotations

import operator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from spyre_cache.objects import fragment as f
from spyre_runtime.vocabulary import DTYPE_NAMES, MEMORY_FORMAT_NAMES, SYM_OP_NAMES


def fragment_of(function, *examples, mutates=(), aliases=None, decompose=None):
    """Traces a functional `function` over example tensors (and ints) with static shapes.

    `function` returns a tuple of outputs, then one value for each input in `mutates`.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with torch.no_grad():
        values = [mode.from_tensor(x, static_shapes=True) for x in examples]
        with mode:
            module = make_fx(function, decomposition_table=decompose or {})(*values)
    return fragment_of_module(module, values, mutates=mutates, aliases=aliases)


def fragment_of_module(module, values, *, mutates=(), aliases=None, symbols=()):
    graph = _graph(module, values, mutates, aliases or {})
    return f.Fragment(graph=graph, symbols=tuple(symbols))


def _graph(module, values, mutates, aliases):
    numbers, inputs, nodes = {}, [], []
    counter = 0
    for node in module.graph.nodes:
        if node.op == "placeholder":
            value = values[len(inputs)]
            kind = "symint" if not isinstance(value, torch.Tensor) else "state" if len(inputs) in mutates else "tensor"
            inputs.append(f.Input(kind=kind, spec=spec_of(value)))
            numbers[node] = counter
            counter += 1
        elif (
            node.op == "call_function"
            and node.target is operator.getitem
            and isinstance(node.args[0].meta["val"], (tuple, list))
        ):
            numbers[node] = numbers[node.args[0]] + node.args[1]
        elif node.op == "call_function":
            value = node.meta["val"]
            many = isinstance(value, (tuple, list))
            results = tuple(spec_of(v) for v in value) if many else (spec_of(value),)
            nodes.append(
                f.Node(
                    op=_op(node.target),
                    args=tuple(_arg(a, numbers, module) for a in node.args),
                    kwargs=tuple(sorted((k, _arg(v, numbers, module)) for k, v in node.kwargs.items())),
                    results=results,
                    pack="seq" if many else "single",
                )
            )
            numbers[node] = counter
            counter += len(results)
        elif node.op == "output":
            results = node.args[0]
    count = len(results) - len(mutates)
    return f.Graph(
        inputs=tuple(inputs),
        nodes=tuple(nodes),
        outputs=tuple(
            f.Output(v=numbers[n], spec=spec_of(n.meta["val"]), alias_of=aliases.get(i))
            for i, n in enumerate(results[:count])
        ),
        mutations=tuple(f.Mutation(input=i, v=numbers[n]) for i, n in zip(mutates, results[count:], strict=True)),
    )


def spec_of(value):
    if value is None:
        return f.NoneSpec()
    if isinstance(value, torch.Tensor):
        return f.TensorSpec(
            dtype=DTYPE_NAMES[value.dtype],
            shape=tuple(_dim(d) for d in value.shape),
            stride=tuple(_dim(d) for d in value.stride()),
        )
    return f.SymSpec(kind="int", expr=str(_dim(value)))


def _dim(d):
    return int(d) if isinstance(d, int) or d.node.expr.is_number else str(d.node.expr)


def _op(target):
    if target in SYM_OP_NAMES:
        return f"sym::{SYM_OP_NAMES[target]}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order::{target.__name__}"
    return f"{target.namespace}::{target._opname}.{target._overloadname}"


def _arg(value, numbers, module):
    if isinstance(value, torch.fx.Node):
        if value.op == "get_attr":
            branch = getattr(module, value.target)
            inner = [n.meta["val"] for n in branch.graph.nodes if n.op == "placeholder"]
            return f.GraphArg(graph=_graph(branch, inner, (), {}))
        return f.Ref(v=numbers[value])
    if value is None:
        return f.NoneArg()
    if isinstance(value, bool):
        return f.BoolArg(v=value)
    if isinstance(value, int):
        return f.IntArg(v=value)
    if isinstance(value, float):
        return f.FloatArg.of(value)
    if isinstance(value, complex):
        return f.ComplexArg(re=f.FloatArg.of(value.real).v, im=f.FloatArg.of(value.imag).v)
    if isinstance(value, str):
        return f.StrArg(v=value)
    if isinstance(value, torch.dtype):
        return f.DTypeArg(v=DTYPE_NAMES[value])
    if isinstance(value, torch.device):
        return f.DeviceArg(v=value.type)
    if isinstance(value, torch.layout):
        return f.LayoutArg(v="strided")
    if isinstance(value, torch.memory_format):
        return f.MemoryFormatArg(v=MEMORY_FORMAT_NAMES[value])
    return f.ListArg(items=tuple(_arg(v, numbers, module) for v in value))
