"""Every mutation of a right kernel is refused by the name of the rule it breaks: by the verifier, and by the emulator."""

from __future__ import annotations

import pytest
import torch
from mutants import BUFFERS, MUTANTS, build, mutant

from spyre_runtime.errors import KtirRuleError
from spyre_runtime.ktir.emulate import emulate
from spyre_runtime.ktir.findings import RULES
from spyre_runtime.ktir.kernel import Buffer, kernel_from_text
from spyre_runtime.ktir.verify import examine, verify


def test_kernel_without_mutation_is_right():
    assert verify(mutant()).findings == ()
    x = torch.randn(64, 128).half()
    torch.testing.assert_close(emulate(mutant(), {"x": x}).outputs["y"], x + x)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_refused_by_name(name):
    rules, case = MUTANTS[name]
    kernel = build(case)
    found = examine(kernel)
    assert rules <= set(found.rules), [str(finding) for finding in found.findings]
    with pytest.raises(KtirRuleError) as error:
        verify(kernel)
    assert rules <= set(error.value.rules)
    assert all(rule in RULES and RULES[rule] in str(error.value) for rule in error.value.rules)


@pytest.mark.parametrize("name", [name for name in MUTANTS if not name.startswith("segments")])
def test_mutant_does_not_run(name):
    _, case = MUTANTS[name]
    kernel = build(case)
    with pytest.raises(KtirRuleError) as error:
        emulate(kernel, {"x": torch.zeros(kernel.buffers[0].shape, dtype=torch.float16)})
    assert error.value.rules[0] in examine(kernel).rules


def test_index_beyond_the_table_is_refused_when_it_is_read():
    from ktir_kernels import embedding

    kernel = embedding(10, 64, 4, cores=2)
    assert verify(kernel).findings == ()
    table = torch.zeros(10, 64).half()
    for bad in (-1, 10):
        ids = torch.tensor([0, 1, bad, 3], dtype=torch.int32)
        with pytest.raises(KtirRuleError, match="gather"):
            emulate(kernel, {"table": table, "ids": ids})


def test_reader_of_what_another_core_writes_is_a_race():
    buffers = (Buffer.rows("x", "f16", (64, 128), "inout"), BUFFERS[1])
    store = "%z = ktdp.construct_access_tile %x_view[%other, %c0] {access_tile_set = #tile, access_tile_order = #id}\n"
    store += ": memref<64x128xf16> -> !ktdp.access_tile<2x128xindex>\n"
    store += "ktdp.store %sum, %z : tensor<2x128xf16>, <2x128xindex>"
    same = mutant(buffers=buffers, before="%other = arith.addi %row, %c0 : index", after=store)
    assert examine(same).rules == ()
    turn = "%n = arith.constant 62 : index\n  %other = arith.subi %n, %row : index"
    assert examine(mutant(buffers=buffers, before=turn, after=store)).rules == ("race",)


def test_spans_beyond_reach_are_refused():
    rows = 1 << 21
    buffers = (Buffer.rows("x", "f16", (rows, 128)), BUFFERS[1])
    far = "%far = arith.constant 2000000 : index\n %t = ktdp.construct_access_tile %x_view[%far, %c0] "
    far += "{access_tile_set = #tile, access_tile_order = #id}\n"
    far += f": memref<{rows}x128xf16> -> !ktdp.access_tile<2x128xindex>\n"
    far += "%d = ktdp.load %t : <2x128xindex> -> tensor<2x128xf16>"
    assert examine(mutant(buffers=buffers, view_rows=rows)).rules == ()
    assert examine(mutant(buffers=buffers, view_rows=rows, after=far)).rules == ("span",)


def test_more_buffers_than_segments_are_refused():
    buffers = [Buffer.rows(f"b{number}", "f16", (64, 128), "in") for number in range(8)]
    arguments = ", ".join(f"%b{number}: index" for number in range(8))
    kernel = kernel_from_text(f"func.func @k({arguments}) attributes {{grid = [1]}} {{ return }}", buffers)
    assert "segments" in examine(kernel).rules


@pytest.mark.parametrize("op", ["math.tan %e : f16", "arith.shli %c0, %c0 : index"])
def test_operation_that_is_not_emulated_is_named(op):
    first = "%e = arith.constant 1.0 : f16\n  "
    found = examine(mutant(after=f"{first}%t = {op}"))
    assert found.rules == ("op",)
    assert op.split()[0] in found.findings[0].what


def test_baked_addresses_find_their_buffers():
    buffers = tuple(
        Buffer(name=b.name, dtype=b.dtype, shape=b.shape, strides=b.strides, role=b.role, address=number << 34)
        for number, b in enumerate(BUFFERS)
    )
    before = f"%xa = arith.constant 0 : index\n  %ya = arith.constant {(1 << 34) // 2} : index"
    kernel = mutant(buffers=buffers, arguments="", x="%xa", y="%ya", before=before)
    x = torch.randn(64, 128).half()
    assert verify(kernel).findings == ()
    torch.testing.assert_close(emulate(kernel, {"x": x}).outputs["y"], x + x)
