"""The device's number format, and what lives in a core."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ktir_kernels import matmul, softmax
from mutants import mutant

from spyre_runtime.ktir.lx import high_water
from spyre_runtime.ktir.numbers import LARGEST, SMALLEST, Numbers, round_dl16

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def rounded(*values):
    return round_dl16(torch.tensor(values, dtype=torch.float32)).tolist()


def test_numbers_of_nine_bits_are_kept():
    kept = [0.0, 1.0, -1.5, 1 + 2**-9, 2.0**-31, LARGEST, -LARGEST, 65504 * 4.0 - 65504 * 4.0 % 512]
    assert rounded(*kept) == kept


def test_ties_go_away_from_zero():
    tie = 1 + 2**-10
    assert rounded(tie, -tie, 1 + 2**-11) == [1 + 2**-9, -(1 + 2**-9), 1.0]


def test_what_is_too_small_is_zero_and_what_is_too_large_is_infinite():
    assert rounded(SMALLEST / 2, -SMALLEST / 4) == [0.0, 0.0]
    assert rounded(LARGEST * 1.01, -LARGEST * 2) == [math.inf, -math.inf]
    assert rounded(math.inf, -math.inf) == [math.inf, -math.inf]
    assert math.isnan(rounded(math.nan)[0])


@given(FLOATS, FLOATS)
def test_rounding_is_monotone_near_and_done_once(a, b):
    (x,), (y,) = rounded(a), rounded(b)
    assert (x <= y) if a <= b else (y <= x)
    assert rounded(x) == [x]
    assert rounded(-a) == [-x]
    if SMALLEST <= abs(a) <= LARGEST:
        assert abs(x - a) <= abs(a) * 2**-10


def test_conversion_keeps_the_order_of_elements_in_memory():
    value = torch.randn(3, 5, 7).half().permute(2, 0, 1)
    wide = Numbers("fp16").cast(value, "f32")
    torch.testing.assert_close(wide, value.float())
    assert wide.permute(1, 2, 0).is_contiguous()


def test_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="dl16"):
        Numbers("fp8")


def test_tile_and_result_live_at_once():
    peak, at = high_water(mutant().func)
    assert peak == 2 * 128 * 2 * 2
    assert at is not None
    assert at.name == "linalg.generic"


def test_what_a_loop_carries_is_one_memory():
    m, n, deep = 64, 64, 128
    peak, _ = high_water(matmul(64, 64, 512, block=(m, n, deep)).func)
    halves, wides, total = (m + n) * deep * 2, (m + n) * deep * 4, m * n * 4
    # The last tile of fp16 dies when it is made wide; the first has died before.
    assert total + wides + halves // 2 <= peak <= total + wides + halves


def test_rows_die_with_their_last_use():
    rows, columns = 8, 1024
    peak, _ = high_water(softmax(rows * 32, columns).func)
    tile = rows * columns
    assert tile * 6 <= peak <= tile * 6 + rows * 64
