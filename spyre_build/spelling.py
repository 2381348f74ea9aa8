"""How fragments are said to people: values, arguments and operators in few words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spyre_cache.codec import bits_float
from spyre_cache.objects import fragment as f

if TYPE_CHECKING:
    from collections.abc import Mapping


def readable_op(op: str) -> str:
    """`aten::native_layer_norm.default` is a layer norm."""
    name = op.partition("::")[2].partition(".")[0].strip("_")
    return name.removeprefix("native_").removesuffix("_backward").replace("_", " ")


def contiguous(shape: tuple[f.Dim, ...]) -> tuple[f.Dim, ...] | None:
    """Row-major strides of a shape, or None where a size is symbolic."""
    strides: list[f.Dim] = []
    step = 1
    for extent in reversed(shape):
        if not isinstance(extent, int):
            return None
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def shown_spec(spec: f.ValueSpec) -> str:
    """`float32[2, 64]`, with the strides where they are not row-major."""
    if isinstance(spec, f.NoneSpec):
        return "None"
    if isinstance(spec, f.SymSpec):
        return f"{spec.kind} {spec.expr}"
    text = f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"
    if spec.stride != contiguous(spec.shape):
        text += f" stride ({', '.join(map(str, spec.stride))})"
    return text if spec.layout == "strided" else f"{text} {spec.layout}"


class Spelling:
    """Spells arguments; value numbers go through `names`, so that two graphs can be compared after an insertion.

    Args:
        names: value number to the one that is shown instead; one that is not among them is marked, so that it equals
            no number of the other graph. None shows all numbers as they are.
        numbered: False leaves numbers out, for comparing nodes wherever they stand.
    """

    def __init__(self, names: Mapping[int, int] | None = None, *, numbered: bool = True) -> None:
        self._names = names
        self._numbered = numbered

    def value(self, number: int) -> str:
        """`%12`."""
        if not self._numbered:
            return "%"
        if self._names is None:
            return f"%{number}"
        return f"%{self._names[number]}" if number in self._names else f"%{number} (gone)"

    def argument(self, arg: f.Arg) -> str:
        """One argument as text; equal arguments are spelled alike."""
        if isinstance(arg, f.Ref):
            return self.value(arg.v)
        if isinstance(arg, f.ListArg):
            return f"[{', '.join(self.argument(item) for item in arg.items)}]"
        if isinstance(arg, f.FloatArg):
            return repr(arg.value)
        if isinstance(arg, f.ComplexArg):
            return f"{bits_float(arg.re)!r}+{bits_float(arg.im)!r}j"
        if isinstance(arg, f.StrArg):
            return repr(arg.v)
        if isinstance(arg, f.GraphArg):
            return self._graph(arg.graph)
        if isinstance(arg, f.NoneArg):
            return "None"
        return arg.expr if isinstance(arg, f.SymArg) else str(arg.v)

    def _graph(self, graph: f.Graph) -> str:
        # A branch numbers its own values.
        inner = Spelling(numbered=self._numbered)
        nodes = "; ".join(
            f"{n.op}({', '.join([*map(inner.argument, n.args), *(f'{k}={inner.argument(v)}' for k, v in n.kwargs)])})"
            for n in graph.nodes
        )
        inputs = ", ".join(shown_spec(i.spec) for i in graph.inputs)
        return f"({inputs}) {{{nodes}}} → {', '.join(inner.value(o.v) for o in graph.outputs)}"
