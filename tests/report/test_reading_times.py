"""Text made to be read over and over is read once."""

import contextlib
import time

import pytest

from spyre_build.report.sources import _lines
from spyre_cache.stores.object_errors import _said
from spyre_runtime.errors import KtirSyntaxError
from spyre_runtime.ktir.text import _within_limits, parse_module

KERNELS = {
    "escaped-quotes": '"' + '\\"' * 500_000,
    "dense": "dense<" * 170_000,
    "lines-of-quotes": '"\\"\n' * 250_000,
    "slashes": "/" * 1_000_000,
}


@pytest.mark.parametrize("name", KERNELS)
def test_limits_of_a_hostile_kernel_are_checked_in_one_pass(name):
    began = time.process_time()
    with contextlib.suppress(KtirSyntaxError):
        _within_limits(KERNELS[name])
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("text", ['"never closed', 'x = "a\\"', '"a\\\nb"'])
def test_string_that_does_not_end_is_refused(text):
    with pytest.raises(KtirSyntaxError):
        parse_module(text)


@pytest.mark.parametrize("text", ["dense<0xFC00>", "dense<dense<[1, 0X1]>", "dense<1> dense<[1,\n0x2]>"])
def test_bits_in_a_dense_constant_are_found(text):
    with pytest.raises(KtirSyntaxError, match="but bits came"):
        _within_limits(text)


def test_words_of_stores_and_places_of_models_are_read_in_one_pass():
    began = time.process_time()
    _said("Error performing GET x in 1s, after 1 retries" * 30_000)
    assert _lines([":1 in " * 200_000 + "\n", "model.py:3 in f"]) == "model.py:3"
    assert time.process_time() - began < 1.0
