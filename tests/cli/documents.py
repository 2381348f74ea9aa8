"""Small fragments and actions made by hand."""

from spyre_cache.objects.action import Action
from spyre_cache.objects.fragment import (
    FloatArg,
    Fragment,
    Graph,
    Input,
    IntArg,
    ListArg,
    Node,
    Output,
    Ref,
    Symbol,
    TensorSpec,
)
from spyre_cache.objects.target import TARGETS, Toolchain


def tensor(*shape, dtype="float32", stride=None):
    if stride is None:
        stride, step = [], 1
        for extent in reversed(shape):
            stride.insert(0, step)
            step *= extent
    return TensorSpec(dtype=dtype, shape=tuple(shape), stride=tuple(stride))


def call(op, *args, results=None, pack="single", **kwargs):
    return Node(op=op, args=args, kwargs=tuple(sorted(kwargs.items())), results=results or (tensor(2, 64),), pack=pack)


def layer(eps=1e-5, *, dtype="float32", before=(), symbols=()):
    """A linear layer, optional nodes, and a layer norm: inputs x, weight, bias."""
    x, w, b = tensor(2, 64, dtype=dtype), tensor(64, 64, dtype=dtype), tensor(64, dtype=dtype)
    value = 4
    nodes = [call("aten::mm.default", Ref(v=0), Ref(v=1))]
    last = 3
    for op in before:
        nodes.append(call(op, Ref(v=last)))
        last, value = value, value + 1
    norm = call(
        "aten::native_layer_norm.default",
        Ref(v=last),
        ListArg(items=(IntArg(v=64),)),
        Ref(v=2),
        Ref(v=2),
        FloatArg.of(eps),
        results=(tensor(2, 64), tensor(2, 1), tensor(2, 1)),
        pack="seq",
    )
    add = call("aten::add.Tensor", Ref(v=value), Ref(v=last))
    graph = Graph(
        inputs=tuple(Input(kind="tensor", spec=s) for s in (x, w, b)),
        nodes=(*nodes, norm, add),
        outputs=(Output(v=value + 3, spec=x),),
    )
    return Fragment(graph=graph, symbols=symbols)


def symbol(high):
    return Symbol(name="s0", min=2, max=high)


def toolchain(**changes):
    base = {
        "backend": "aot_inductor",
        "backend_sources": "a" * 64,
        "torch": "2.13.0",
        "torch_git": "b" * 40,
        "torch_sources": "c" * 64,
        "cxx": "g++ 12.2.0",
        "flags": ("-O3", "-march=x86-64-v3"),
    }
    return Toolchain(**(base | changes))


def action(fragment, target="cpu/x86-64-v3", options=(), **changes):
    return Action(
        fragment=fragment.digest(), target=TARGETS[target], toolchain=toolchain(**changes), options=tuple(options)
    )
