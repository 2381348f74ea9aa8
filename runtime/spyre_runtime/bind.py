"""The caller's tensors, checked against the entry before anything runs, and put into slots.

Checks are compiled once per program. A tensor whose memory lies otherwise than the compiled code expects is copied;
where the entry writes to it, the result is copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from spyre_cache.objects.fragment import SymSpec, TensorSpec, ValueSpec
from spyre_runtime import symbols
from spyre_runtime.errors import ArgumentError, InvalidProgramError
from spyre_runtime.overlap import overlap, repeats
from spyre_runtime.plain import from_plain, show
from spyre_runtime.signature import Signature, check_scalar
from spyre_runtime.vocabulary import DTYPES

if TYPE_CHECKING:
    from spyre_cache.objects.program import Argument, Program

_PLAIN_TENSORS: Final = frozenset({torch.Tensor, torch.nn.Parameter})

# A transform's tensor has the plain type, but no memory of its own.
_transformed: Final[Callable[[torch.Tensor], bool]] = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001

Sizes = dict[str, int]
SizeFunction = Callable[[Mapping[str, Any]], Any]


class Bound(NamedTuple):
    """A checked call.

    Attributes:
        sizes: values of the symbols.
        originals: for input slots that hold a private copy, the caller's tensor.
        copy_back: those of them whose contents the caller's tensor takes after the call.
    """

    sizes: Sizes
    originals: dict[int, torch.Tensor]
    copy_back: tuple[int, ...]


_NO_ORIGINALS: Final[dict[int, torch.Tensor]] = {}


class _TensorCheck:
    """What one tensor argument must be. `symbolic` are the dims given by an expression."""

    __slots__ = (
        "device",
        "dtype",
        "index",
        "label",
        "mutated",
        "shape",
        "slot",
        "spec",
        "static_shape",
        "static_stride",
        "symbolic",
        "symbolic_stride",
    )

    def __init__(self, index: int, argument: Argument, spec: TensorSpec, *, mutated: bool) -> None:
        possible = spec.dtype in DTYPES and spec.layout == "strided" and len(spec.shape) == len(spec.stride)
        if not possible or any(isinstance(size, int) and size < 0 for size in (*spec.shape, *spec.stride)):
            raise InvalidProgramError(f"the argument {argument.label} is declared with an impossible tensor")
        self.index, self.label, self.slot, self.spec = index, argument.label, argument.slot, spec
        self.mutated = mutated
        self.dtype = DTYPES[spec.dtype]
        self.shape = spec.shape
        self.symbolic: tuple[tuple[int, str, SizeFunction], ...] = tuple(
            (dim, size, symbols.compiled(size)) for dim, size in enumerate(spec.shape) if isinstance(size, str)
        )
        self.static_shape = None if self.symbolic else tuple(spec.shape)
        self.symbolic_stride = any(isinstance(size, str) for size in spec.stride)
        self.static_stride = None if self.symbolic_stride else tuple(spec.stride)

    def stride(self, sizes: Sizes) -> tuple[int, ...]:
        if self.static_stride is not None:
            return self.static_stride  # type: ignore[return-value]  # no expressions in it
        return tuple(symbols.evaluate(size, sizes) for size in self.spec.stride)

    def describe(self) -> str:
        return f"a tensor ({self.spec.dtype}, shape [{', '.join(str(size) for size in self.shape)}])"

    def refuse(self, value: Any) -> ArgumentError:
        """Why this value does not fit, in words; called when a check failed."""
        came = show(value)
        why = ""
        if isinstance(value, torch.Tensor):
            if type(value) not in _PLAIN_TENSORS:
                why = "; tensor subclasses are refused, pass a plain tensor"
            elif value.layout is not torch.strided:
                why = f" with the layout {str(value.layout).removeprefix('torch.')}; pass a strided one (`.to_dense()`)"
            elif not value.is_cpu:
                why = f" on {value.device}; pass it on cpu"
            elif _transformed(value):
                why = "; it belongs to a torch.func transform (vmap, grad, jvp), which compiled code cannot follow"
            elif value.dtype is not self.dtype:
                why = f"; convert it with .to(torch.{self.spec.dtype}), or build an entry for that dtype"
            elif value.dim() == len(self.shape):
                why = "; build an entry of that shape, or mark the dimension in its dynamic_shapes"
        return ArgumentError(f"the argument {self.label} is {self.describe()}, but {came} came{why}")


class Binder:
    """Binds calls of one program.

    Raises:
        InvalidProgramError: arguments, trees and slots contradict each other.
    """

    def __init__(self, program: Program) -> None:
        self._signature = Signature(program)
        self._scalars: list[tuple[int, str, Any]] = []
        self._tensors: list[_TensorCheck] = []
        self._ints: list[tuple[int, str, int, str]] = []
        written = {*program.mutated_inputs, *(back.target for back in program.writebacks)}
        for index, argument in enumerate(program.arguments):
            self._declare(program, index, argument, written)
        self._symbolic = [check for check in self._tensors if check.symbolic]
        self._mutated = [check for check in self._tensors if check.mutated]
        self._guards = [(guard, symbols.compiled_condition(guard.expr)) for guard in program.guards]
        by_slot = {check.slot: check for check in self._tensors if check.slot is not None}
        self._sources: list[tuple[str, int, int | None, int, int, str]] = []
        self._where: dict[str, str] = {}  # how errors call the symbols
        for source in program.symbols:
            check = by_slot.get(source.slot)
            if check is None or not 0 <= source.dim < len(check.shape):
                raise InvalidProgramError(f"the symbol {source.symbol.name} is read off no argument")
            symbol = source.symbol
            self._where[symbol.name] = f"dim {source.dim} of {check.label}"
            self._sources.append((symbol.name, symbol.min, symbol.max, check.index, source.dim, check.label))

    def _declare(self, program: Program, index: int, argument: Argument, written: set[int]) -> None:
        if argument.value is not None:
            self._scalars.append((index, argument.label, from_plain(argument.value)))
            return
        if argument.slot is not None and not 0 <= argument.slot < len(program.slots):
            raise InvalidProgramError(
                f"the argument {argument.label} goes to slot {argument.slot}, which does not exist"
            )
        spec: ValueSpec | None = program.slots[argument.slot].spec if argument.slot is not None else argument.unused
        if isinstance(spec, TensorSpec):
            self._tensors.append(_TensorCheck(index, argument, spec, mutated=argument.slot in written))
        elif isinstance(spec, SymSpec) and argument.slot is not None and symbols.SYMBOL_NAME.fullmatch(spec.expr):
            self._ints.append((index, argument.label, argument.slot, spec.expr))
        else:
            raise InvalidProgramError(f"the argument {argument.label} is neither a tensor, a size nor a plain value")

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], values: list[Any]) -> Bound:
        """Checks a call and puts its tensors into the slots of `values`.

        Raises:
            ArgumentError: the call is not what the entry was built for; names the argument, what was expected, and
                what came.
            InvalidProgramError: the entry asks for strides that cannot be had.
        """
        leaves = self._signature.leaves(args, kwargs)
        for index, label, expected in self._scalars:
            check_scalar(label, expected, leaves[index])
        for check in self._tensors:
            value = leaves[check.index]
            if (
                type(value) not in _PLAIN_TENSORS
                or value.dtype is not check.dtype
                or (value.shape != check.static_shape if not check.symbolic else _rank_differs(value, check))
                or not value.is_cpu
                or value.layout is not torch.strided
                or _transformed(value)
            ):
                raise check.refuse(value)
        sizes = self._sizes(leaves, values) if self._sources or self._ints or self._guards else {}
        originals: dict[int, torch.Tensor] = _NO_ORIGINALS
        for check in self._tensors:
            if check.slot is None:
                continue
            value = leaves[check.index]
            if (value.stride() != check.static_stride and not _lies_as(value, check.stride(sizes))) or _lazy(value):
                if originals is _NO_ORIGINALS:
                    originals = {}
                originals[check.slot] = value
                value = _private(value, check, sizes)
            values[check.slot] = value
        copy_back: tuple[int, ...] = ()
        if self._mutated:
            self._check_written(leaves)
            copy_back = tuple(c.slot for c in self._mutated if c.slot is not None and c.slot in originals)
        return Bound(sizes, originals, copy_back)

    def _sizes(self, leaves: list[Any], values: list[Any]) -> Sizes:
        sizes: Sizes = {}
        for index, label, slot, name in self._ints:
            value = leaves[index]
            if type(value) is not int:
                raise ArgumentError(f"the argument {label} is an int, but {show(value)} came")
            values[slot] = sizes[name] = value
        for name, lowest, highest, index, dim, label in self._sources:
            size = leaves[index].shape[dim]
            if size < lowest or (highest is not None and size > highest):
                most = "any size" if highest is None else str(highest)
                raise ArgumentError(f"dim {dim} of {label} is from {lowest} to {most}, but {size} came{_WIDER}")
            sizes[name] = size
        for check in self._symbolic:
            shape = leaves[check.index].shape
            for dim, text, size_of in check.symbolic:
                expected = size_of(sizes)
                if shape[dim] != expected:
                    raise ArgumentError(f"dim {dim} of {check.label} is {text} = {expected}, but {shape[dim]} came")
        for guard, condition in self._guards:
            if not condition(sizes):
                came = ", ".join(f"{self._where.get(name, name)} = {size}" for name, size in sizes.items())
                raise ArgumentError(f"the entry was built for sizes where {guard.text}, but {came} came")
        return sizes

    def _check_written(self, leaves: list[Any]) -> None:
        """Compiled code writes behind autograd's back: what autograd would miss or forbid is refused."""
        for check in self._mutated:
            written = leaves[check.index]
            if written.requires_grad and torch.is_grad_enabled():
                raise ArgumentError(
                    f"the argument {check.label} is written to, but requires a gradient: call under torch.no_grad()"
                )
            if written.is_inference() and not torch.is_inference_mode_enabled():
                raise ArgumentError(
                    f"the argument {check.label} is written to, but was made in inference mode: call in inference mode"
                )
            if repeats(written):
                raise ArgumentError(
                    f"the argument {check.label} is written to, but several of its elements share memory: pass a clone"
                )
            for other in self._tensors:
                if other is not check and overlap(written, leaves[other.index]):
                    raise ArgumentError(
                        f"the argument {check.label} is written to, but shares memory with {other.label}: pass a clone"
                    )


_WIDER: Final = ": build the entry with a wider range in its dynamic_shapes, or another entry"


def _rank_differs(value: torch.Tensor, check: _TensorCheck) -> bool:
    """Whether rank or one of the numeric dims differs; dims given by an expression are checked later."""
    shape = value.shape
    if len(shape) != len(check.shape):
        return True
    return any(size != came for size, came in zip(check.shape, shape, strict=True) if not isinstance(size, str))


def _lies_as(value: torch.Tensor, stride: tuple[int, ...]) -> bool:
    """Whether the strides agree where they matter: dims of one element, and empty tensors, have none."""
    if value.numel() == 0:
        return True
    return all(a == b or size == 1 for a, b, size in zip(value.stride(), stride, value.shape, strict=True))


def _lazy(value: torch.Tensor) -> bool:
    """Conjugation and negation that torch has not carried out: compiled code reads the bare memory."""
    return bool(value.is_conj() or value.is_neg())


def _private(value: torch.Tensor, check: _TensorCheck, sizes: Sizes) -> torch.Tensor:
    stride = check.stride(sizes)
    try:
        copy = torch.empty_strided(value.shape, stride, dtype=value.dtype)
    except RuntimeError:
        raise InvalidProgramError(
            f"the argument {check.label} cannot be copied to the strides {list(stride)} that the entry was built with:"
            " they are impossible, or memory is short"
        ) from None
    if repeats(copy):
        raise ArgumentError(
            f"the argument {check.label} was a broadcast view (strides {list(stride)}) when the entry was built, and"
            f" its code relies on it, but strides {list(value.stride())} came: build it with a plain tensor"
        )
    return copy.copy_(value)
