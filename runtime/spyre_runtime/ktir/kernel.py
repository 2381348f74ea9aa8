"""A kernel: a function of one core, its grid, and the buffers its arguments stand for."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Final, Literal

import torch
from xdsl.dialects.builtin import ArrayAttr, IndexType, IntegerAttr, ModuleOp
from xdsl.dialects.func import FuncOp

from spyre_runtime.errors import KtirSyntaxError
from spyre_runtime.ktir.machine import ITEM_BYTES, STICK_BYTES
from spyre_runtime.ktir.text import parse_module, print_module

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["in", "out", "inout"]
MAX_GRID_DIMS: Final = 3
_HOST: Final = {"f16": torch.float16, "f32": torch.float32, "i32": torch.int32}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffer:
    """Memory that an argument of a kernel stands for, and the tensor that lies in it.

    Attributes:
        name: for people and plans.
        dtype: `f16`, `f32` or `i32`.
        shape: of the tensor.
        strides: of the tensor, in elements; rows begin at sticks.
        role: whether the kernel reads it, writes all of it, or both.
        address: its first byte in device memory where that is planned.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    role: Role = "in"
    address: int | None = None

    @classmethod
    def rows(cls, name: str, dtype: str, shape: Sequence[int], role: Role = "in") -> Buffer:
        """Row-major memory whose rows (the last dim) begin at sticks."""
        stick = STICK_BYTES // ITEM_BYTES[dtype]
        pitch = -(-shape[-1] // stick) * stick
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, pitch if len(strides) == 1 else strides[0] * size)
        return cls(name=name, dtype=dtype, shape=tuple(shape), strides=tuple(strides), role=role)

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES.get(self.dtype, 0)

    @property
    def elements(self) -> int:
        """Elements the memory has: whole sticks."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        stick = STICK_BYTES // max(1, self.item_bytes)
        return -(-(last + 1) // stick) * stick if all(self.shape) else 0

    @property
    def bytes(self) -> int:
        """Bytes the memory has."""
        return self.elements * self.item_bytes

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory with a tensor in it and zeros around."""
        memory = torch.zeros(self.elements, dtype=_HOST[self.dtype])
        memory.as_strided(self.shape, self.strides).copy_(tensor)
        return memory

    def unpack(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor that lies in memory, as a view."""
        return memory.as_strided(self.shape, self.strides)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel.

    Attributes:
        name: of the function.
        func: the function; each argument is the element offset of a buffer.
        buffers: in the order of the arguments. A kernel with baked addresses has no arguments, and buffers with
            addresses.
        cores: how many cores the plan launches it on.
    """

    name: str
    func: FuncOp
    buffers: tuple[Buffer, ...]
    cores: int

    @property
    def grid(self) -> tuple[int, ...]:
        """The grid as the function says it; `()` where it says none that is well-formed."""
        return grid_of(self.func)

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The buffers it writes."""
        return tuple(buffer for buffer in self.buffers if buffer.role != "in")

    def text(self, *, generic: bool = False, legacy: bool = False) -> str:
        """The function as text: see `print_module`."""
        return print_module(self.func, generic=generic, legacy=legacy)


def grid_of(func: FuncOp) -> tuple[int, ...]:
    """The `grid` of a function; `()` where it has none that is well-formed."""
    grid = func.attributes.get("grid")
    if not isinstance(grid, ArrayAttr) or not 1 <= len(grid.data) <= MAX_GRID_DIMS:
        return ()
    sizes = tuple(size.value.data for size in grid.data if isinstance(size, IntegerAttr))
    return sizes if len(sizes) == len(grid.data) else ()


def kernel_from_text(text: str | bytes, buffers: Sequence[Buffer], *, cores: int | None = None) -> Kernel:
    """A kernel of a text with one function.

    Args:
        text: see `parse_module`.
        buffers: in the order of the arguments.
        cores: how many cores it is planned for; by default what its grid says.

    Raises:
        KtirSyntaxError: no kernel, or one with other arguments.
    """
    module = parse_module(text)
    functions = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
    if len(functions) != 1 or len(list(module.body.block.ops)) != 1:
        raise KtirSyntaxError(f"a kernel is one function, but the text has {len(functions)}")
    func = functions[0]
    if len(func.body.blocks) != 1 or func.function_type.outputs.data:
        raise KtirSyntaxError("a kernel has a body of one block and no results")
    arguments = func.function_type.inputs.data
    if any(not isinstance(kind, IndexType) for kind in arguments):
        raise KtirSyntaxError("the arguments of a kernel are element offsets of type index")
    if arguments and len(arguments) != len(buffers):
        raise KtirSyntaxError(f"the kernel has {len(arguments)} arguments, but {len(buffers)} buffers came")
    for buffer in buffers:
        if len(buffer.shape) != len(buffer.strides):
            raise KtirSyntaxError(f"a buffer has a stride a dim, but {buffer.name!r} has not")
    planned = math.prod(grid_of(func)) if cores is None else cores
    return Kernel(name=func.sym_name.data, func=func, buffers=tuple(buffers), cores=planned)


def module_of(kernel: Kernel) -> ModuleOp:
    """A module with a copy of the function."""
    return ModuleOp([kernel.func.clone()])
