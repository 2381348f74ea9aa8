"""Kernels in the families a transformer needs, written with the builder: what the tests run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from spyre_runtime.ktir.build import KernelBuilder, Ref, runs
from spyre_runtime.ktir.kernel import Buffer
from spyre_runtime.ktir.machine import LX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdsl.ir import SSAValue

    from spyre_runtime.ktir.bodies import Spelling
    from spyre_runtime.ktir.kernel import Kernel

STICK = 64


def row_block(rows: int, cores: int, row_bytes: int) -> int:
    """Rows a block: as many as give each core one, and no more than the scratchpad takes."""
    return max(1, min(math.ceil(rows / cores), LX_BYTES // max(1, row_bytes)))


def pointwise(
    name: str,
    shape: tuple[int, int],
    inputs: int,
    body: Callable[..., SSAValue],
    *,
    cores: int = 32,
    spelling: Spelling = "plain",
) -> Kernel:
    """One fused operation on tensors of one shape."""
    b = KernelBuilder(name, cores=cores, spelling=spelling)
    sources = [b.rows(f"x{number}", "f16", shape) for number in range(inputs)]
    out = b.rows("y", "f16", shape, "out")
    rows, columns = shape
    width = min(columns, 4096)
    height = row_block(rows, cores, width * 2 * (inputs + 2))
    for starts, sizes in b.blocks(runs(rows, height), runs(columns, width)):
        tiles = [b.load(source, starts, sizes) for source in sources]
        b.store(b.pointwise(tiles, body), out, starts)
    return b.finish()


def matmul(
    rows: int,
    columns: int,
    inner: int,
    *,
    cores: int = 32,
    transposed: bool = False,
    block: tuple[int, int, int] | None = None,
    spelling: Spelling = "plain",
) -> Kernel:
    """C = A B, or A Bᵀ, with sums in fp32 over blocks of the inner dim."""
    b = KernelBuilder("matmul_nt" if transposed else "matmul", cores=cores, spelling=spelling)
    left = b.rows("a", "f16", (rows, inner))
    right = b.rows("b", "f16", (columns, inner) if transposed else (inner, columns))
    out = b.rows("c", "f16", (rows, columns), "out")
    if transposed:
        pitch = -(-inner // STICK) * STICK
        right = b.view(right, (inner, columns), (1, pitch))
    high, wide, deep = block or matmul_block(rows, columns, inner, cores)
    # Columns outside: a core's part of the weights lies together.
    for (column, row), (n, m) in b.blocks(runs(columns, wide), runs(rows, high)):
        total = _inner_loop(b, left, right, (row, column), (m, n), inner, deep)
        b.store(b.convert(total, "f16"), out, (row, column))
    return b.finish()


def _inner_loop(
    b: KernelBuilder,
    left: Ref,
    right: Ref,
    place: tuple[SSAValue, SSAValue],
    size: tuple[int, int],
    inner: int,
    deep: int,
) -> SSAValue:
    (row, column), (m, n) = place, size
    total = b.full((m, n), "f32" if b.spelling == "plain" else "f16", 0.0)
    for run in runs(inner, deep):
        if run.count == 1:
            a, c = b.load(left, (row, run.start), (m, run.size)), b.load(right, (run.start, column), (run.size, n))
            total = b.matmul(a, c, total)
            continue
        with b.loop(run.start, run.start + run.count * run.size, run.size, [total]) as loop:
            a, c = b.load(left, (row, loop.index), (m, run.size)), b.load(right, (loop.index, column), (run.size, n))
            loop.next = [b.matmul(a, c, loop.carried[0])]
        total = loop.results[0]
    return total


def matmul_block(rows: int, columns: int, inner: int, cores: int) -> tuple[int, int, int]:
    """Blocks of rows, columns and the inner dim: columns over the cores, and as deep as the scratchpad takes."""
    high = min(rows, 128)
    wide = max(STICK, min(512, -(-columns // (cores * STICK)) * STICK))
    left = LX_BYTES - high * wide * 8
    deep = left // (6 * (high + wide)) // STICK * STICK
    return high, min(wide, columns) if columns < STICK else wide, min(inner, max(STICK, deep))


def row_reduce(rows: int, columns: int, kind: str, *, cores: int = 32, spelling: Spelling = "plain") -> Kernel:
    """The sum or the largest of each row; results lie a stick apart."""
    b = KernelBuilder(f"row_{kind}", cores=cores, spelling=spelling)
    source = b.rows("x", "f16", (rows, columns))
    out = b.buffer(Buffer(name="y", dtype="f16", shape=(rows,), strides=(STICK,), role="out"))
    height = row_block(rows, cores, columns * 8)
    for (row, column), (m, _) in b.blocks(runs(rows, height), runs(columns, columns)):
        tile = b.load(source, (row, column), (m, columns))
        if spelling == "plain":
            tile = b.convert(tile, "f32")
        b.store(b.convert(b.reduce(tile, [1], kind), "f16"), out, (row,))
    return b.finish()


def softmax(rows: int, columns: int, *, cores: int = 32, spelling: Spelling = "plain") -> Kernel:
    """The softmax of each row."""
    b = KernelBuilder("softmax", cores=cores, spelling=spelling)
    source = b.rows("x", "f16", (rows, columns))
    out = b.rows("y", "f16", (rows, columns), "out")
    wide = "f32" if spelling == "plain" else "f16"
    height = row_block(rows, cores, columns * 10)
    for starts, sizes in b.blocks(runs(rows, height), runs(columns, columns)):
        tile = b.load(source, starts, sizes)
        top = b.reduce(tile, [1], "max")
        powers = b.pointwise([tile, (top, [0])], lambda s, x, m: s.exp(s.sub(x, m)), dtype=wide)
        total = b.reduce(powers, [1], "sum")
        b.store(b.pointwise([powers, (total, [0])], lambda s, p, t: s.div(p, t), dtype="f16"), out, starts)
    return b.finish()


def rmsnorm(rows: int, columns: int, *, eps: float = 1e-5, cores: int = 32, spelling: Spelling = "plain") -> Kernel:
    """Rows over the root of the mean of their squares, times a weight."""
    b = KernelBuilder("rmsnorm", cores=cores, spelling=spelling)
    source = b.rows("x", "f16", (rows, columns))
    weight = b.rows("w", "f16", (columns,))
    out = b.rows("y", "f16", (rows, columns), "out")
    wide = "f32" if spelling == "plain" else "f16"
    height = row_block(rows, cores, columns * 10)
    for (row, column), sizes in b.blocks(runs(rows, height), runs(columns, columns)):
        tile = b.load(source, (row, column), sizes)
        scale = b.load(weight, (column,), (columns,))
        # In fp16 a sum of squares overflows before its mean does.
        squares = b.pointwise([tile], lambda s, x: s.mul(s.mul(x, x), 1.0 / columns), dtype=wide)
        mean = b.reduce(squares, [1], "sum")
        y = b.pointwise(
            [tile, (mean, [0]), (scale, [1])],
            lambda s, x, m, w: s.mul(s.mul(x, s.rsqrt(s.add(m, eps))), w),
        )
        b.store(y, out, (row, column))
    return b.finish()


def permute(shape: Sequence[int], order: Sequence[int], *, cores: int = 32) -> Kernel:
    """A copy with dims in another order: loaded by strides, stored as they come."""
    b = KernelBuilder("permute", cores=cores)
    source = Buffer.rows("x", "f16", shape)
    after = [shape[dim] for dim in order]
    view = b.view(b.buffer(source), after, [source.strides[dim] for dim in order])
    out = b.rows("y", "f16", after, "out")
    # A dim that is last before or after is cut at sticks only.
    tight = {len(after) - 1, list(order).index(len(after) - 1)}
    dims, room = [], 1 << 14
    for dim in reversed(range(len(after))):
        block = min(after[dim], STICK if dim in tight else room)
        others = math.prod(after[:dim])
        if dim not in tight and others < cores:  # leave a block for each core
            block = max(1, min(block, after[dim] * others // cores))
        room = max(1, room // block)
        dims.insert(0, runs(after[dim], block))
    for starts, sizes in b.blocks(*dims):
        b.store(b.load(view, starts, sizes), out, starts)
    return b.finish()


def embedding(words: int, width: int, count: int, *, cores: int = 32) -> Kernel:
    """Rows of a table by number."""
    b = KernelBuilder("embedding", cores=cores)
    table, ids = b.rows("table", "f16", (words, width)), b.rows("ids", "i32", (count,))
    out = b.rows("y", "f16", (count, width), "out")
    height = row_block(count, cores, width * 2)
    for (row, column), (m, _) in b.blocks(runs(count, height), runs(width, width)):
        b.store(b.gather(table, ids, row, m), out, (row, column))
    return b.finish()
