"""Fragments, programs and manifests written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spyre_cache.codec import encode
from spyre_cache.objects import fragment as f
from spyre_cache.objects import program as p
from spyre_cache.objects.manifest import Manifest

if TYPE_CHECKING:
    from spyre_cache.digest import Digest


def contiguous(shape):
    """Row-major strides; products of expressions are spelled out."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        if step == 1:
            step = size
        elif isinstance(step, int) and isinstance(size, int):
            step = step * size
        else:
            step = f"({size})*({step})"
    return tuple(reversed(strides))


def spec(dtype, *shape, stride=None):
    return f.TensorSpec(dtype=dtype, shape=tuple(shape), stride=contiguous(shape) if stride is None else tuple(stride))


def f32(*shape, stride=None):
    return spec("float32", *shape, stride=stride)


def spec_of(tensor):
    return spec(str(tensor.dtype).removeprefix("torch."), *tensor.shape, stride=tensor.stride())


def tensor_input(described):
    return f.Input(kind="tensor", spec=described)


def state_input(described):
    return f.Input(kind="state", spec=described)


def arg(value):
    """Python to argument: ints, floats, bools, None, lists, `{"sym": text}`; records stay."""
    if isinstance(value, f.Record):
        return value
    if isinstance(value, bool):
        return f.BoolArg(v=value)
    if isinstance(value, int):
        return f.IntArg(v=value)
    if isinstance(value, float):
        return f.FloatArg.of(value)
    if value is None:
        return f.NoneArg()
    if isinstance(value, str):
        return f.StrArg(v=value)
    if isinstance(value, dict):
        return f.SymArg(expr=value["sym"])
    return f.ListArg(items=tuple(arg(item) for item in value))


def ref(number):
    return f.Ref(v=number)


def node(op, *args, results, pack="single", **kwargs):
    results = results if isinstance(results, tuple) else (results,)
    named = tuple(sorted((name, arg(value)) for name, value in kwargs.items()))
    return f.Node(op=op, args=tuple(arg(a) for a in args), kwargs=named, results=results, pack=pack)


def graph(inputs, nodes, outputs, mutations=()):
    """`outputs` are value numbers; their descriptions are looked up."""
    specs = [i.spec for i in inputs] + [r for n in nodes for r in n.results]
    return f.Graph(
        inputs=tuple(inputs),
        nodes=tuple(nodes),
        outputs=tuple(f.Output(v=v, spec=specs[v], alias_of=v if v < len(inputs) else None) for v in outputs),
        mutations=tuple(f.Mutation(input=i, v=v) for i, v in mutations),
    )


def fragment(inputs, nodes, outputs, mutations=(), symbols=(), constraints=()):
    return f.Fragment(
        graph=graph(inputs, nodes, outputs, mutations),
        symbols=tuple(f.Symbol(name=n, min=a, max=b) for n, a, b in symbols),
        constraints=tuple(constraints),
    )


def linear(rows=2, width=4, out=3):
    """x @ w + b."""
    return fragment(
        [tensor_input(f32(rows, width)), tensor_input(f32(width, out)), tensor_input(f32(out))],
        [
            node("aten::mm.default", ref(0), ref(1), results=f32(rows, out)),
            node("aten::add.Tensor", ref(3), ref(2), results=f32(rows, out)),
        ],
        [4],
    )


def clipped():
    """The custom operator of `clipping`, twice."""
    return fragment(
        [tensor_input(f32(3))],
        [
            node("spyretests::soft_clip.default", ref(0), 0.5, results=f32(3)),
            node("spyretests::soft_clip.default", ref(1), 0.25, results=f32(3)),
        ],
        [2],
    )


def slot(kind, described, name="", aliased=None):
    return p.Slot(kind=kind, spec=described, name=name, aliased=aliased)


def tensor_argument(path, number, label=None):
    return p.Argument(path=path, label=label or path, slot=number)


def value_argument(path, value, label=None):
    from spyre_runtime.plain import to_plain

    return p.Argument(path=path, label=label or path, value=to_plain(value))


def args_tree(count):
    return p.TupleTree(items=tuple(p.Leaf(v=i) for i in range(count)))


NO_KWARGS = p.DictTree(keys=(), items=())


def kwargs_tree(**items):
    return p.DictTree(keys=tuple(p.Plain(type="str", v=k) for k in items), items=tuple(items.values()))


def program(**fields):
    """A program with what a test leaves out filled in."""
    arguments = fields.get("arguments", ())
    base = {"name": "forward", "input_args": args_tree(len(arguments)), "input_kwargs": NO_KWARGS, "arguments": ()}
    return p.Program(**{**base, "slots": (), "steps": (), "output": p.Leaf(v=0), **fields})


def linear_program(name="forward", rows=2, **fields):
    """Slots: 0 x, 1 w, 2 b, 3 y."""
    return program(
        **{
            "name": name,
            "arguments": (tensor_argument("args.0", 0, "x"),),
            "parameters": (("x", "POSITIONAL_OR_KEYWORD"),),
            "slots": (
                slot("input", f32(rows, 4)),
                slot("weight", f32(4, 3), "lin.weight"),
                slot("buffer", f32(3), "lin.bias"),
                slot("temp", f32(rows, 3)),
            ),
            "steps": (p.Step(fragment=0, inputs=(0, 1, 2), outputs=(3,)),),
            "output": p.Leaf(v=3),
            **fields,
        }
    )


def raw_bytes(tensor):
    reach = 1 + sum(s * (n - 1) for s, n in zip(tensor.stride(), tensor.shape, strict=True)) if tensor.numel() else 0
    flat = tensor.as_strided((reach,), (1,)) if reach else tensor.reshape(0)
    return bytes(flat.contiguous().view(torch.uint8).numpy().tobytes())


def weight_entry(cache, name, tensor, kind="parameter", stored=True, **fields):
    data = raw_bytes(tensor)
    digest = cache.blobs.put(data, raw=True) if stored else None
    return p.WeightEntry(
        name=name,
        kind=kind,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        digest=digest,
        **fields,
    )


def put_manifest(cache, programs, fragments, weights=(), artifacts=(), targets=("cpu/x86-64-v2",), **fields) -> Digest:
    digests = tuple(cache.blobs.put(fragment.encoded()) for fragment in fragments)
    manifest = Manifest(
        programs=tuple(programs),
        fragments=digests,
        artifacts=tuple(artifacts),
        weights=tuple(weights),
        targets=tuple(targets),
        partition="whole",
        torch=str(torch.__version__),
        **{"weight_mode": "store", **fields},
    )
    return cache.blobs.put(encode(manifest))
