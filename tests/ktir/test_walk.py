"""Operations and control flow that the kernel families do not use, written as text."""

from __future__ import annotations

import pytest
import torch
from ktir_kernels import runs

from spyre_runtime.errors import KtirError
from spyre_runtime.ktir.build import KernelBuilder
from spyre_runtime.ktir.emulate import emulate
from spyre_runtime.ktir.kernel import Buffer, kernel_from_text
from spyre_runtime.ktir.verify import examine, verify

ROWS, COLUMNS = 8, 64


def box(*sizes):
    dims = ", ".join(f"d{n}" for n in range(len(sizes)))
    return (
        f"affine_set<({dims}) : ({', '.join(f'd{n} >= 0, -d{n} + {size - 1} >= 0' for n, size in enumerate(sizes))})>"
    )


def tile(view, place, kind, *sizes):
    """A tile as text; `kind` is the view's type."""
    dims = ", ".join(f"d{n}" for n in range(len(sizes)))
    shape = "x".join(map(str, sizes))
    return (
        f"ktdp.construct_access_tile {view}[{place}] {{access_tile_set = {box(*sizes)},"
        f" access_tile_order = affine_map<({dims}) -> ({dims})>}} : {kind} -> !ktdp.access_tile<{shape}xindex>"
    )


def program(body, *, grid="[8]", ids="%core"):
    """Each of eight cores loads its row of x as %r, runs the body, and stores what it calls %out as its row of y."""
    count = ids.count("%")
    row = "%core" if count == 1 else "%core_row"
    fold = "" if count == 1 else "%two = arith.constant 2 : index\n%a2 = arith.muli %a, %two : index\n"
    fold += "" if count == 1 else "%core_row = arith.addi %a2, %b : index\n"
    views = "".join(
        f"%{n}_view = ktdp.construct_memory_view %{n}, sizes: [8, 64], strides: [64, 1] {{coordinate_set = {box(8, 64)},"
        " memory_space = #ktdp.memory_space<global>} : memref<8x64xf16>\n"
        for n in "xy"
    )
    text = (
        f"func.func @k(%x: index, %y: index) attributes {{grid = {grid}}} {{\n"
        f"{ids} = ktdp.get_compute_tile_id : {', '.join(['index'] * count)}\n{fold}%c0 = arith.constant 0 : index\n"
        f"%c1 = arith.constant 1 : index\n{views}%xt = {tile('%x_view', row + ', %c0', 'memref<8x64xf16>', 1, 64)}\n"
        f"%r = ktdp.load %xt : <1x64xindex> -> tensor<1x64xf16>\n{body}\n"
        f"%yt = {tile('%y_view', row + ', %c0', 'memref<8x64xf16>', 1, 64)}\n"
        "ktdp.store %out, %yt : tensor<1x64xf16>, <1x64xindex>\nreturn }"
    )
    buffers = (Buffer.rows("x", "f16", (8, 64)), Buffer.rows("y", "f16", (8, 64), "out"))
    kernel = kernel_from_text(text, buffers)
    assert kernel_from_text(kernel.text(), buffers).text() == kernel.text()
    return kernel


X = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)).half()
CORE = torch.arange(ROWS).view(-1, 1).half()

BODIES = {
    "a condition that holds for some": (
        """%c4 = arith.constant 4 : index
        %low = arith.cmpi ult, %core, %c4 : index
        %out = scf.if %low -> (tensor<1x64xf16>) {
          %d = arith.addf %r, %r : tensor<1x64xf16>
          scf.yield %d : tensor<1x64xf16>
        } else { scf.yield %r : tensor<1x64xf16> }""",
        torch.where(CORE < 4, X + X, X),
    ),
    "a loop that cores leave at different times": (
        """%out = scf.for %i = %c0 to %core step %c1 iter_args(%v = %r) -> (tensor<1x64xf16>) {
          %d = arith.addf %v, %r : tensor<1x64xf16>
          scf.yield %d : tensor<1x64xf16>
        }""",
        None,
    ),
    "an index that is carried": (
        """%n = scf.for %i = %c0 to %core step %c1 iter_args(%v = %c1) -> (index) {
          %d = arith.addi %v, %v : index
          scf.yield %d : index
        }
        %w = arith.index_cast %n : index to i32
        %f = arith.sitofp %w : i32 to f16
        %out = tensor.splat %f : tensor<1x64xf16>""",
        (2**CORE).expand(8, 64),
    ),
    "an element that is taken out": (
        """%c3 = arith.constant 3 : index
        %e = tensor.extract %r[%c0, %c3] : tensor<1x64xf16>
        %m = tensor.empty() : tensor<1x64xf16>
        %out = linalg.fill ins(%e : f16) outs(%m : tensor<1x64xf16>) -> tensor<1x64xf16>""",
        X[:, 3:4].expand(8, 64),
    ),
    "shapes there and back": (
        """%f = tensor.collapse_shape %r [[0 : i64, 1 : i64]] : tensor<1x64xf16> into tensor<64xf16>
        %g = tensor.expand_shape %f [[0 : i64, 1 : i64]] output_shape [4, 16] : tensor<64xf16> into tensor<4x16xf16>
        %m = tensor.empty() : tensor<16x4xf16>
        %t = linalg.transpose ins(%g:tensor<4x16xf16>) outs(%m:tensor<16x4xf16>) permutation = [1, 0]
        %h = tensor.collapse_shape %t [[0 : i64, 1 : i64]] : tensor<16x4xf16> into tensor<64xf16>
        %out = tensor.expand_shape %h [[0 : i64, 1 : i64]] output_shape [1, 64] : tensor<64xf16> into tensor<1x64xf16>""",
        X.view(8, 4, 16).transpose(1, 2).reshape(8, 64),
    ),
    "dims that are added": (
        """%i = arith.constant dense<0.0> : tensor<1xf16>
        %s = linalg.reduce {arith.maximumf} ins(%r : tensor<1x64xf16>) outs(%i : tensor<1xf16>) dimensions = [1]
        %m = tensor.empty() : tensor<1x64xf16>
        %out = linalg.broadcast ins(%s:tensor<1xf16>) outs(%m:tensor<1x64xf16>) dimensions = [1]""",
        X.amax(1, keepdim=True).expand(8, 64),
    ),
    "named operations": (
        """%m = tensor.empty() : tensor<1x64xf16>
        %a = linalg.add ins(%r, %r : tensor<1x64xf16>, tensor<1x64xf16>) outs(%m : tensor<1x64xf16>) -> tensor<1x64xf16>
        %m2 = tensor.empty() : tensor<1x64xf16>
        %b = linalg.mul ins(%a, %r : tensor<1x64xf16>, tensor<1x64xf16>) outs(%m2 : tensor<1x64xf16>) -> tensor<1x64xf16>
        %m3 = tensor.empty() : tensor<1x64xf16>
        %out = linalg.sub ins(%b, %r : tensor<1x64xf16>, tensor<1x64xf16>) outs(%m3 : tensor<1x64xf16>) -> tensor<1x64xf16>""",
        (X + X) * X - X,
    ),
    "a scalar of each core in a body": (
        """%w = arith.index_cast %core : index to i32
        %f = arith.sitofp %w : i32 to f16
        %m = tensor.empty() : tensor<1x64xf16>
        %out = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
          iterator_types = ["parallel", "parallel"]} ins(%r : tensor<1x64xf16>) outs(%m : tensor<1x64xf16>) {
        ^bb0(%p: f16, %q: f16):
          %s = arith.addf %p, %f : f16
          linalg.yield %s : f16
        } -> tensor<1x64xf16>""",
        X + CORE,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_body_is_right(name):
    body, reference = BODIES[name]
    if reference is None:
        reference = X.clone()
        for core in range(ROWS):
            for _ in range(core):
                reference[core] += X[core]
    kernel = program(body)
    assert verify(kernel).lx_bytes > 0
    torch.testing.assert_close(emulate(kernel, {"x": X}).outputs["y"], reference, rtol=0, atol=0)
    assert torch.isfinite(emulate(kernel, {"x": X}, mode="dl16").outputs["y"]).all()


@pytest.mark.parametrize("grid", ["[4, 2]", "[8, 1]"])
def test_grids_of_two_dims_count_the_last_fastest(grid):
    kernel = program("%out = arith.addf %r, %r : tensor<1x64xf16>", grid=grid, ids="%a, %b")
    if grid == "[4, 2]":
        torch.testing.assert_close(emulate(kernel, {"x": X}).outputs["y"], X + X)
    else:  # rows 0, 2, 4, … of which there are too few
        assert {"tile"} <= set(examine(kernel).rules)


def test_store_of_some_cores_only_leaves_gaps():
    text = program("%out = arith.addf %r, %r : tensor<1x64xf16>").text()
    store = next(line for line in text.splitlines() if "ktdp.store" in line)
    some = f"%five = arith.constant 5 : index\n%low = arith.cmpi ult, %core, %five : index\nscf.if %low {{\n{store}\n}}"
    buffers = (Buffer.rows("x", "f16", (8, 64)), Buffer.rows("y", "f16", (8, 64), "out"))
    found = examine(kernel_from_text(text.replace(store, some), buffers))
    assert found.rules == ("gap", "missing-core")
    assert "[5, 6, 7]" in str(found.findings[1])


def test_read_of_what_was_never_written_is_poisoned():
    kernel = program("%m = tensor.empty() : tensor<1x64xf16>\n%out = arith.addf %r, %m : tensor<1x64xf16>")
    assert emulate(kernel, {"x": X}).outputs["y"].isnan().all()


def test_value_that_is_used_before_it_is_made_is_refused():
    text = program("%out = arith.addf %r, %r : tensor<1x64xf16>").text()
    lines = text.splitlines()
    place = next(n for n, line in enumerate(lines) if "ktdp.load" in line)
    lines.insert(place - 2, lines.pop(place))
    buffers = (Buffer.rows("x", "f16", (8, 64)), Buffer.rows("y", "f16", (8, 64), "out"))
    with pytest.raises(KtirError):
        verify(kernel_from_text("\n".join(lines), buffers))


def test_attention_is_right():
    """Scores, a causal mask, softmax and values in one kernel: one head a core."""
    heads, length, width = 8, 33, 64
    b = KernelBuilder("attention", cores=heads)
    q, k, v = (b.rows(name, "f16", (heads, length, width)) for name in "qkv")
    out = b.rows("y", "f16", (heads, length, width), "out")

    def matrix(ref, head):
        loaded = b.load(ref, (head, 0, 0), (1, length, width))
        return b.reshape(loaded, [[0, 1], [2]], (length, width))

    for (head,), _ in b.blocks(runs(heads, 1)):
        keys = b.transpose(matrix(k, head), (1, 0))
        scores = b.matmul(matrix(q, head), keys, b.full((length, length), "f32", 0.0))

        def mask(s, x):
            return s.select(s.index_compare("le", s.place(1), s.place(0)), s.mul(x, width**-0.5), -30000.0)

        masked = b.pointwise([scores], mask)
        top = b.reduce(masked, [1], "max")
        powers = b.pointwise([masked, (top, [0])], lambda s, x, m: s.exp(s.sub(x, m)))
        total = b.reduce(powers, [1], "sum")
        shares = b.pointwise([powers, (total, [0])], lambda s, p, t: s.div(p, t))
        mixed = b.convert(b.matmul(shares, matrix(v, head), b.full((length, width), "f32", 0.0)), "f16")
        b.store(b.reshape(mixed, [[0, 1], [2]], (1, length, width)), out, (head, 0, 0))
    kernel = b.finish()
    again = kernel_from_text(kernel.text(), kernel.buffers)
    assert again.text() == kernel.text()
    assert verify(again).findings == ()
    q, k, v = (torch.randn(heads, length, width, generator=torch.Generator().manual_seed(n)).half() for n in range(3))
    found = emulate(again, {"q": q, "k": k, "v": v}).outputs["y"].float()
    right = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    assert (found - right).abs().max() / right.abs().max() < 1e-3
