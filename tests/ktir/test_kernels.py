"""Kernels against torch in fp32: at most 1e-3 of the largest magnitude, for ragged shapes and grids of 1, 7 and 32."""

from __future__ import annotations

import ktir_kernels as k
import pytest
import torch

from spyre_runtime.correct import EMULATOR_KERNEL_FLOOR, tensor_error
from spyre_runtime.errors import KtirBuildError, KtirError
from spyre_runtime.ktir.emulate import emulate
from spyre_runtime.ktir.kernel import kernel_from_text
from spyre_runtime.ktir.machine import CORES, LX_BYTES, SPAN_BYTES
from spyre_runtime.ktir.verify import verify

GRIDS = (1, 7, CORES)
ROWS = (1, 7, 65, 513)


def hiddens(rows):
    """Rows of no whole number of sticks, and of a whole number where that is quick."""
    return (100, 256) if rows < 100 else (100,)


def halves(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).half()


def check(kernel, tensors, reference, floor=EMULATOR_KERNEL_FLOOR):
    """Verifies and runs a kernel, and what was read back of its text."""
    again = kernel_from_text(kernel.text(), kernel.buffers, cores=kernel.cores)
    examination = verify(again)
    found = emulate(again, tensors)
    name = kernel.outputs[0].name
    assert found.lx_bytes == examination.lx_bytes <= LX_BYTES
    assert found.cost == examination.cost
    assert torch.isfinite(found.outputs[name]).all()
    assert tensor_error(found.outputs[name], reference) <= floor
    return found


@pytest.mark.parametrize("cores", GRIDS)
@pytest.mark.parametrize("rows", ROWS)
def test_pointwise_is_right(rows, cores):
    for hidden in hiddens(rows):
        a, b = halves(rows, hidden), halves(rows, hidden)
        kernel = k.pointwise("swiglu", (rows, hidden), 2, lambda s, x, y: s.mul(s.silu(x), y), cores=cores)
        check(kernel, {"x0": a, "x1": b}, torch.nn.functional.silu(a.float()) * b.float())


@pytest.mark.parametrize("cores", GRIDS)
@pytest.mark.parametrize("rows", ROWS)
def test_matmul_is_right(rows, cores):
    a, b = halves(rows, 300), halves(300, 200)
    check(k.matmul(rows, 200, 300, cores=cores), {"a": a, "b": b}, a.float() @ b.float())
    looped = k.matmul(rows, 200, 300, cores=cores, block=(64, 64, 128))
    check(looped, {"a": a, "b": b}, a.float() @ b.float())


@pytest.mark.parametrize("cores", GRIDS)
def test_matmul_with_transposed_weights_is_right(cores):
    for rows, columns in ((1, 64), (65, 200)):
        a, b = halves(rows, 128), halves(columns, 128)
        kernel = k.matmul(rows, columns, 128, transposed=True, cores=cores)
        check(kernel, {"a": a, "b": b}, a.float() @ b.float().T)


@pytest.mark.parametrize("cores", GRIDS)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_are_right(rows, cores):
    for hidden in hiddens(rows):
        x, w = halves(rows, hidden), halves(hidden)
        wide = x.float()
        check(k.softmax(rows, hidden, cores=cores), {"x": x}, torch.softmax(wide, 1))
        root = torch.rsqrt((wide * wide).mean(1, keepdim=True) + 1e-5)
        check(k.rmsnorm(rows, hidden, cores=cores), {"x": x, "w": w}, wide * root * w.float())
        check(k.row_reduce(rows, hidden, "sum", cores=cores), {"x": x}, wide.sum(1))
        check(k.row_reduce(rows, hidden, "max", cores=cores), {"x": x}, wide.amax(1), 0)


@pytest.mark.parametrize("cores", GRIDS)
def test_permutes_are_exact(cores):
    for shape, order in (((2, 7, 3, 64), (0, 2, 1, 3)), ((65, 100), (1, 0)), ((3, 65, 4, 48), (0, 3, 1, 2))):
        x = halves(*shape)
        check(k.permute(shape, order, cores=cores), {"x": x}, x.permute(order).float(), 0)


@pytest.mark.parametrize("cores", GRIDS)
def test_embedding_is_exact(cores):
    table = halves(1000, 100)
    for count in (1, 7, 65):
        ids = torch.arange(count, dtype=torch.int32) * 13 % 1000
        check(k.embedding(1000, 100, count, cores=cores), {"table": table, "ids": ids}, table[ids.long()].float(), 0)


def test_gated_spelling_is_right_within_fp16():
    a, b, w = halves(65, 100), halves(65, 100), halves(100)
    wide = a.float()
    silu = k.pointwise("g", (65, 100), 2, lambda s, x, y: s.mul(s.silu(x), y), spelling="gated")
    check(silu, {"x0": a, "x1": b}, torch.nn.functional.silu(wide) * b.float())
    check(k.softmax(65, 100, spelling="gated"), {"x": a}, torch.softmax(wide, 1))
    root = torch.rsqrt((wide * wide).mean(1, keepdim=True) + 1e-5)
    check(k.rmsnorm(65, 100, spelling="gated"), {"x": a, "w": w}, wide * root * w.float(), 2e-3)
    b = halves(100, 64)
    check(k.matmul(65, 64, 100, spelling="gated"), {"a": a, "b": b}, wide @ b.float())


def test_gated_spelling_has_nothing_the_gate_refuses():
    kernel = k.rmsnorm(65, 100, spelling="gated")
    words = kernel.text()
    assert not any(word in words for word in ("math.", "iter_args", "linalg.fill", "arith.extf", "arith.divf"))
    with pytest.raises(KtirBuildError, match="erf"):
        k.pointwise("e", (8, 64), 1, lambda s, x: s.erf(x), spelling="gated")


UNARY = {
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "neg": torch.neg,
    "abs": torch.abs,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
}


@pytest.mark.parametrize("word", UNARY)
def test_function_of_one_element_is_right(word):
    x = halves(33, 64)
    kernel = k.pointwise(word, (33, 64), 1, lambda s, a: getattr(s, word)(a))
    check(kernel, {"x0": x}, UNARY[word](x.float()))


def test_functions_of_positive_elements_are_right():
    x = halves(33, 64).abs() + 0.1
    for word, function in (
        ("sqrt", torch.sqrt),
        ("rsqrt", torch.rsqrt),
        ("reciprocal", torch.reciprocal),
        ("log", torch.log),
    ):
        kernel = k.pointwise(word, (33, 64), 1, lambda s, a, word=word: getattr(s, word)(a))
        check(kernel, {"x0": x}, function(x.float()))


def test_choice_and_places_are_right():
    x = halves(33, 64)
    clipped = k.pointwise("clip", (33, 64), 1, lambda s, a: s.select(s.compare("gt", a, 0.5), 0.5, a))
    check(clipped, {"x0": x}, x.float().clamp(max=0.5))

    def lower(s, a):
        return s.select(s.index_compare("le", s.place(1), s.place(0)), a, 0.0)

    # One block of all rows: a place in a tile is a place in the tensor.
    check(k.pointwise("tril", (33, 64), 1, lower, cores=1), {"x0": x}, x.float().tril())


def test_device_format_is_one_bit_coarser():
    a, b = halves(65, 300), halves(300, 64)
    kernel, reference = k.matmul(65, 64, 300), a.float() @ b.float()
    coarse = emulate(kernel, {"a": a, "b": b}, mode="dl16").outputs["c"]
    assert coarse.dtype == torch.float32
    fine = tensor_error(emulate(kernel, {"a": a, "b": b}).outputs["c"], reference)
    assert fine < tensor_error(coarse, reference) < 4e-3


def test_inputs_that_do_not_fit_are_refused():
    kernel = k.softmax(7, 64)
    for tensors in ({}, {"x": halves(7, 65)}, {"x": torch.zeros(7, 64, dtype=torch.int32)}):
        with pytest.raises(KtirError):
            emulate(kernel, tensors)


def test_cost_says_what_it_assumes():
    cost = verify(k.matmul(64, 512, 512)).cost
    assert cost is not None
    assert cost.macs == 64 * 512 * 512
    assert cost.bytes_moved >= (64 * 512 + 512 * 512 + 64 * 512) * 2
    assert cost.cycles > max(cost.memory_cycles, cost.compute_cycles)
    assert any("clock" in sentence for sentence in cost.assumptions)
    assert verify(k.pointwise("p", (4096, 512), 1, lambda s, x: s.add(x, x))).cost.bound == "memory"


def test_weights_beyond_a_cores_reach_are_divided_so_that_each_core_reaches_its_part():
    found = verify(k.matmul(65, 49155, 4096, transposed=True))
    assert SPAN_BYTES < 49155 * 4096 * 2
    assert found.lx_bytes <= LX_BYTES
