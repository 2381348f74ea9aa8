"""Text of kernels: what is read, what is written, and that nothing read gives anything but the package's error."""

from __future__ import annotations

import random
import subprocess
import sys

import ktir_kernels as k
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutants import BUFFERS, text

from spyre_runtime.errors import KtirError, KtirSyntaxError
from spyre_runtime.ktir.kernel import kernel_from_text
from spyre_runtime.ktir.text import MAX_BYTES, parse_module, print_module
from spyre_runtime.ktir.verify import examine

KERNELS = {
    "pointwise": lambda: k.pointwise("p", (65, 100), 2, lambda s, a, b: s.mul(s.silu(a), b)),
    "gated": lambda: k.pointwise("g", (65, 100), 2, lambda s, a, b: s.mul(s.silu(a), b), spelling="gated"),
    "matmul": lambda: k.matmul(65, 200, 300, block=(64, 64, 128)),
    "matmul_nt": lambda: k.matmul(7, 65, 64, transposed=True),
    "matmul gated": lambda: k.matmul(7, 65, 64, spelling="gated"),
    "softmax": lambda: k.softmax(7, 65),
    "rmsnorm": lambda: k.rmsnorm(7, 65, spelling="gated"),
    "row_max": lambda: k.row_reduce(64, 65, "max"),
    "permute": lambda: k.permute((2, 7, 3, 64), (0, 2, 1, 3)),
    "embedding": lambda: k.embedding(100, 64, 7),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("legacy", [False, True])
def test_printing_and_parsing_reach_a_fixpoint(name, legacy):
    kernel = KERNELS[name]()
    custom = kernel.text(legacy=legacy)
    again = kernel_from_text(custom, kernel.buffers)
    assert again.text(legacy=legacy) == custom
    generic = kernel.text(generic=True)
    from_generic = kernel_from_text(generic, kernel.buffers)
    assert from_generic.text(generic=True) == generic
    assert from_generic.text() == kernel.text()
    assert examine(again).rules == examine(from_generic).rules == ()


def test_grid_is_printed_as_bare_numbers():
    assert "attributes {grid = [32]}" in KERNELS["softmax"]().text()


def test_memory_spaces_are_read_in_both_spellings():
    new, old = text(), text(space="#ktdp.spyre_memory_space<HBM>")
    assert "#ktdp.memory_space<global>" in kernel_from_text(new, BUFFERS).text()
    kernel = kernel_from_text(old, BUFFERS)
    assert "#ktdp.spyre_memory_space<HBM>" in kernel.text()
    assert examine(kernel).rules == ()
    assert "#ktdp.memory_space<global>" not in kernel_from_text(new, BUFFERS).text(legacy=True)


def test_short_forms_are_read():
    module = parse_module(
        """
        func.func @f(%0: index) {
          %core:2 = ktdp.get_compute_tile_id : index, index
          %n = arith.constant 0xFC00 : f16
          %x = tensor.empty() : tensor<4x8xf16>
          %i = tensor.splat %n : tensor<4xf16>
          %m = linalg.reduce {arith.maximumf} ins(%x : tensor<4x8xf16>) outs(%i : tensor<4xf16>) dimensions = [1]
          %s = arith.addi %core#0, %core#1 : index
          return
        }"""
    )
    printed = print_module(module)
    assert "arith.maximumf" in printed
    assert print_module(parse_module(printed)) == printed


BAD = {
    "nothing": "",
    "no kernel": "hello",
    "an unknown dialect": "func.func @f() { foo.bar \n return }",
    "an unknown name": "func.func @f() { %a = arith.addi %b, %b : index \n return }",
    "other bytes": b"\xff\xfe",
    "deep brackets": "(" * 10_000,
    "deep angles": "!tensor" + "<" * 10_000,
    "a long number": f"func.func @f() {{ %a = arith.constant {'9' * 5000} : index \n return }}",
    "minus signs": f"#s = affine_set<(d0) : ({'- ' * 9000}d0 >= 0)>",
    "many minus signs": f"#s = affine_set<(d0) : ({'-' * 9000}d0 >= 0)>",
    "bits in a dense constant": "func.func @f() { %a = arith.constant dense<0xFC00> : tensor<2xf16> \n return }",
    "a constant beyond memory": "func.func @f() { %a = arith.constant dense<0.0> : tensor<2000000000xf32> \n return }",
    "a constant that is no tensor": "func.func @f() { %a = arith.constant dense<0.0> : memref<4xf32> \n return }",
    "a result": "func.func @f(%a: index) -> index { return %a : index }",
    "two functions": "func.func @f() { return }\nfunc.func @g() { return }",
    "no index": "func.func @f(%a: f32) { return }",
    "an open dim that is asked for": "func.func @f(%a: index) { %v = ktdp.construct_memory_view %a, sizes: [%a] return }",
    "a memory space there is not": text(space="#ktdp.memory_space<moon>"),
}


@pytest.mark.parametrize("name", BAD)
def test_text_that_is_no_kernel_is_refused(name):
    with pytest.raises(KtirSyntaxError) as error:
        kernel_from_text(BAD[name], ())
    assert "\n" not in str(error.value)


def test_text_beyond_the_limit_is_refused_before_it_is_read():
    with pytest.raises(KtirSyntaxError, match="at most"):
        parse_module(" " * (MAX_BYTES + 1))


_WORDS = sorted(set(text().replace("\n", " ").split()))
_FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _outcome(mutated: str) -> None:
    try:
        kernel = kernel_from_text(mutated, BUFFERS)
        examine(kernel)
    except KtirError:
        pass


@_FUZZ
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_mutated_text_gives_findings_or_the_packages_error(seed, changes):
    rng, lines = random.Random(seed), text().split(" ")
    for _ in range(changes):
        place = rng.randrange(len(lines))
        action = rng.randrange(4)
        if action == 0:
            del lines[place]
        elif action == 1:
            lines.insert(place, rng.choice(_WORDS))
        elif action == 2:
            lines[place] = rng.choice(_WORDS)
        else:
            lines[place] = lines[place].replace(rng.choice("0123456789"), rng.choice(["0", "-1", "9", "4294967296"]))
    _outcome(" ".join(lines))


@_FUZZ
@given(st.text(alphabet='{}()[]<>%#!^@:,=-+*"\n 01xdf', max_size=80))
def test_any_text_gives_the_packages_error(noise):
    _outcome(noise)
    _outcome(f"func.func @f(%x: index, %y: index) {{ {noise} return }}")


def test_runtime_does_not_import_xdsl():
    script = f"import sys; sys.path[:] = {sys.path!r}; import spyre_runtime; print('xdsl' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
