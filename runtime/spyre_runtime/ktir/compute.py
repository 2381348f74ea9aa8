"""Arithmetic on tensors with a leading axis of cores. Elements of f16 are rounded after each operation."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AffineMapAttr,
    BFloat16Type,
    DenseIntOrFPElementsAttr,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    TensorType,
)
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr, AffineMap

if TYPE_CHECKING:
    from xdsl.dialects.linalg import ops as linalg
    from xdsl.ir import Attribute, Operation

    from spyre_runtime.ktir.numbers import Numbers

_NAMES: Final[dict[type[Attribute], str]] = {
    Float16Type: "f16",
    Float32Type: "f32",
    Float64Type: "f64",
    BFloat16Type: "bf16",
    IndexType: "index",
}


def dtype_of(kind: Attribute) -> str:
    """The name of an element type, also of a tensor's or view's; `?` where it has none."""
    if isinstance(kind, (TensorType, MemRefType)):
        kind = kind.element_type
    if isinstance(kind, IntegerType):
        return f"i{kind.width.data}"
    return _NAMES.get(type(kind), "?")


def shape_of(kind: Attribute) -> tuple[int, ...]:
    """The dims of a tensor or view; `()` of a scalar."""
    return tuple(kind.get_shape()) if isinstance(kind, (TensorType, MemRefType)) else ()


def is_integer(kind: Attribute) -> bool:
    """Whether elements of a type are integers or indices."""
    return isinstance(kind, IntegerType) or dtype_of(kind) == "index"


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def _integer_division(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, torch.where(b == 0, torch.ones_like(b), b), rounding_mode="trunc")


Function = Callable[..., torch.Tensor]

# Of one element each. Special functions take longer on the device: see the cost model.
FUNCTIONS: Final[dict[str, Function]] = {
    "arith.addf": torch.add,
    "arith.subf": torch.sub,
    "arith.mulf": torch.mul,
    "arith.divf": torch.div,
    "arith.negf": torch.neg,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
    "arith.maxnumf": torch.fmax,
    "arith.minnumf": torch.fmin,
    "arith.addi": torch.add,
    "arith.subi": torch.sub,
    "arith.muli": torch.mul,
    "arith.divsi": _integer_division,
    "arith.divui": _integer_division,
    "arith.remsi": torch.fmod,
    "arith.remui": torch.fmod,
    "arith.maxsi": torch.maximum,
    "arith.minsi": torch.minimum,
    "arith.andi": torch.bitwise_and,
    "arith.ori": torch.bitwise_or,
    "arith.xori": torch.bitwise_xor,
    "arith.select": torch.where,
    "math.exp": torch.exp,
    "math.exp2": torch.exp2,
    "math.log": torch.log,
    "math.log1p": torch.log1p,
    "math.sqrt": torch.sqrt,
    "math.rsqrt": torch.rsqrt,
    "math.tanh": torch.tanh,
    "math.sin": torch.sin,
    "math.cos": torch.cos,
    "math.erf": torch.erf,
    "math.absf": torch.abs,
    "math.floor": torch.floor,
    "math.ceil": torch.ceil,
    "math.powf": torch.pow,
    "math.fma": lambda a, b, c: a * b + c,
    "spyreop.exp": torch.exp,
    "spyreop.gelu": torch.nn.functional.gelu,
    "spyreop.reciprocal": torch.reciprocal,
    "spyreop.sigmoid": torch.sigmoid,
    "spyreop.silu": _silu,
    "spyreop.sqrt": torch.sqrt,
    "spyreop.rsqrt": torch.rsqrt,
    "spyreop.realdiv": torch.div,
    "spyreop.addi32toi32": torch.add,
    "spyreop.muli32toi32": torch.mul,
}
CASTS: Final = frozenset(
    {
        "arith.extf",
        "arith.truncf",
        "arith.sitofp",
        "arith.uitofp",
        "arith.fptosi",
        "arith.extsi",
        "arith.extui",
        "arith.trunci",
        "arith.index_cast",
    }
)
SPECIAL: Final = frozenset(
    name
    for name in FUNCTIONS
    if name.startswith(("math.", "spyreop.")) and name not in {"math.absf", "math.fma", "math.floor", "math.ceil"}
) | {"arith.divf"}
_INTEGER_COMPARISONS: Final = (
    torch.eq,
    torch.ne,
    torch.lt,
    torch.le,
    torch.gt,
    torch.ge,
    torch.lt,
    torch.le,
    torch.gt,
    torch.ge,
)
_FLOAT_COMPARISONS: Final[dict[int, Function]] = {
    1: torch.eq,
    2: torch.gt,
    3: torch.ge,
    4: torch.lt,
    5: torch.le,
    6: lambda a, b: (a != b) & ~(torch.isnan(a) | torch.isnan(b)),
    9: torch.gt,
    10: torch.ge,
    11: torch.lt,
    12: torch.le,
    13: torch.ne,
}
COMPARISONS: Final = frozenset({"arith.cmpi", "arith.cmpf"})


def _product(tensor: torch.Tensor, dims: list[int]) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        tensor = tensor.prod(dim)
    return tensor


# How a combiner reduces a dim, and what it starts from.
REDUCERS: Final[dict[str, tuple[Callable[[torch.Tensor, list[int]], torch.Tensor], float]]] = {
    "arith.addf": (lambda t, dims: t.sum(dims), 0.0),
    "arith.addi": (lambda t, dims: t.sum(dims), 0),
    "arith.mulf": (_product, 1.0),
    "arith.muli": (_product, 1),
    "arith.maximumf": (lambda t, dims: t.amax(dims), -torch.inf),
    "arith.maxnumf": (lambda t, dims: t.amax(dims), -torch.inf),
    "arith.minimumf": (lambda t, dims: t.amin(dims), torch.inf),
    "arith.minnumf": (lambda t, dims: t.amin(dims), torch.inf),
}


def known(op: Operation) -> bool:
    """Whether an operation of single elements is known."""
    return op.name in FUNCTIONS or op.name in CASTS or op.name in COMPARISONS or op.name == "spyreop.softplus"


def scalar(op: Operation, args: Sequence[torch.Tensor], numbers: Numbers) -> torch.Tensor:
    """The result of an operation of single elements on tensors that broadcast."""
    if isinstance(op, arith.CmpiOp):
        return _INTEGER_COMPARISONS[op.predicate.value.data](args[0], args[1])
    if isinstance(op, arith.CmpfOp):
        return _FLOAT_COMPARISONS[op.predicate.value.data](args[0], args[1])
    if op.name == "spyreop.softplus":
        beta, threshold = (float(op.properties[key].value.data) for key in ("beta", "threshold"))  # type: ignore[attr-defined]
        result = torch.nn.functional.softplus(args[0], beta, threshold)
    else:
        result = args[0] if op.name in CASTS else FUNCTIONS[op.name](*args)
    return numbers.cast(result, dtype_of(op.results[0].type))


def constant(op: arith.ConstantOp, numbers: Numbers) -> torch.Tensor:
    """A constant with an axis of cores of length 1."""
    value, kind = op.value, op.result.type
    dtype = numbers.torch_dtype(dtype_of(kind))
    if isinstance(value, (FloatAttr, IntegerAttr)):
        return numbers.cast(torch.tensor([value.value.data], dtype=dtype), dtype_of(kind))
    if not isinstance(value, DenseIntOrFPElementsAttr):
        raise TypeError(value)
    shape = shape_of(kind)
    elements: Any = value.get_values()
    if value.is_splat():
        return torch.tensor(elements[0], dtype=dtype).expand(1, *shape)
    return torch.tensor(list(elements), dtype=dtype).view(1, *shape)


# linalg.generic.


def spread(tensor: torch.Tensor, mapping: AffineMap, rank: int) -> torch.Tensor:
    """An operand laid along the iteration space: a dim a loop, of length 1 where it does not vary.

    Raises:
        NotImplementedError: the map is no projected permutation with constants 0.
    """
    dims: list[int] = []
    axis = 1
    for result in mapping.results:
        if isinstance(result, AffineConstantExpr) and result.value == 0:
            tensor = tensor.select(axis, 0)
        elif isinstance(result, AffineDimExpr) and result.position not in dims:
            dims.append(result.position)
            axis += 1
        else:
            raise NotImplementedError(f"the map {mapping}")
    order = sorted(range(len(dims)), key=lambda place: dims[place])
    tensor = tensor.permute(0, *(place + 1 for place in order))
    for loop in range(rank):
        if loop not in dims:
            tensor = tensor.unsqueeze(loop + 1)
    return tensor


def loops_of(op: linalg.GenericOp) -> tuple[int, ...] | None:
    """The sizes of the iteration space; None where the operands disagree or leave one open."""
    sizes: dict[int, int] = {}
    for operand, attribute in zip(op.operands, op.indexing_maps.data, strict=False):
        assert isinstance(attribute, AffineMapAttr)
        shape = shape_of(operand.type)
        if len(shape) != len(attribute.data.results):
            return None
        for size, result in zip(shape, attribute.data.results, strict=True):
            if isinstance(result, AffineDimExpr) and sizes.setdefault(result.position, size) != size:
                return None
    count = len(op.iterator_types.data)
    return tuple(sizes[loop] for loop in range(count)) if sorted(sizes) == list(range(count)) else None


def is_parallel(op: linalg.GenericOp) -> tuple[bool, ...]:
    """For each loop whether it is parallel."""
    return tuple(kind.data.value == "parallel" for kind in op.iterator_types.data)


class Generic:
    """What a `linalg.generic` does, taken apart once.

    Attributes:
        op: the operation.
        loops: sizes of the iteration space.
        reduced: the loops that are summed over (or multiplied, …).
        combiner: the operation that combines with the output, where there are such loops.
    """

    def __init__(self, op: linalg.GenericOp) -> None:
        loops = loops_of(op)
        if loops is None or len(op.indexing_maps.data) != len(op.operands) or len(op.outputs) != 1:
            raise NotImplementedError("maps that leave sizes open, or several outputs")
        self.op, self.loops, self.block = op, loops, op.body.block
        self.maps = [attribute.data for attribute in op.indexing_maps.data]
        self.reduced = [loop for loop, parallel in enumerate(is_parallel(op)) if not parallel]
        self.accumulator = self.block.args[-1]
        end = self.block.last_op
        assert end is not None
        self.result = end.operands[0]
        self.combiner = self._find() if self.reduced else None
        self.identity = not self.reduced and bool(self.accumulator.uses)
        if self.combiner is None and self.reduced:
            raise NotImplementedError("a reduction that is no chain of one known combiner")
        kept = [loop for loop in range(len(loops)) if loop not in self.reduced]
        out = [result.position for result in self.maps[-1].results if isinstance(result, AffineDimExpr)]
        if sorted(out) != kept or len(out) != len(self.maps[-1].results):
            raise NotImplementedError("an output that is no permutation of the parallel loops")
        self.order = [kept.index(loop) for loop in out]

    def _find(self) -> Operation | None:
        owner = self.result.owner
        operands = getattr(owner, "operands", ())
        if getattr(owner, "name", "") not in REDUCERS or list(operands).count(self.accumulator) != 1:
            return None
        self.part = next(operand for operand in operands if operand is not self.accumulator)
        uses = list(self.accumulator.uses)
        return owner if len(uses) == 1 else None  # type: ignore[return-value]  # it has operands: an operation

    def product(self) -> tuple[int, int] | None:
        """The operands whose products are summed, where that is all it does."""
        owner: Any = getattr(self, "part", None) is not None and self.part.owner
        if self.combiner is None or self.combiner.name != "arith.addf" or getattr(owner, "name", "") != "arith.mulf":
            return None
        places = [list(self.block.args).index(value) for value in owner.operands if value in self.block.args]
        return (places[0], places[1]) if len(places) == 2 and len(list(self.block.ops)) == 3 else None


def contraction(generic: Generic, left: torch.Tensor, right: torch.Tensor, places: tuple[int, int]) -> torch.Tensor:
    """The sum of products in fp32, laid out as the output."""
    letters = string.ascii_lowercase
    words = []
    for place in (*places, len(generic.maps) - 1):
        results = generic.maps[place].results
        words.append("Z" + "".join(letters[r.position] for r in results if isinstance(r, AffineDimExpr)))
    a, b = left.to(torch.float32), right.to(torch.float32)
    return torch.einsum(f"{words[0]},{words[1]}->{words[2]}", a, b)


def matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Batched products of matrices, accumulated in fp32."""
    a, b = left.to(torch.float32), right.to(torch.float32)
    if a.shape[0] == 1 and b.shape[0] > 1:
        # One matrix times many: their columns side by side make one product.
        cores, k, n = b.shape
        wide = b.permute(1, 0, 2).reshape(k, cores * n)
        return (a[0] @ wide).view(a.shape[1], cores, n).permute(1, 0, 2)
    if b.shape[0] == 1 and a.shape[0] > 1:
        cores, m, k = a.shape
        return (a.reshape(cores * m, k) @ b[0]).view(cores, m, b.shape[2])
    return torch.matmul(a, b)
