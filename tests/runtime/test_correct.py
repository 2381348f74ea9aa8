from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from spyre_runtime.correct import compare, tensor_error


@dataclasses.dataclass
class Box:
    a: object
    b: object = None


def right(actual, eager, reference=None, **options):
    return compare(actual, eager, reference, **options).correct


BASE = torch.tensor([1.0, -4.0, 2.0])


def test_error_is_relative_to_the_largest_of_the_reference():
    assert tensor_error(BASE + 0.4, BASE) == pytest.approx(0.1)
    assert tensor_error(torch.tensor([1e-7]), torch.tensor([0.0])) == pytest.approx(0.1)
    assert tensor_error(torch.empty(0), torch.empty(0)) == 0.0


@pytest.mark.parametrize(
    ("dtype", "inside", "outside"),
    [
        (torch.float64, 5e-13, 3e-12),
        (torch.float32, 1e-5, 4e-5),
        (torch.float16, 1.5e-3, 4e-3),
        (torch.bfloat16, 1e-2, 3e-2),
    ],
)
def test_floor_of_the_dtype_separates_right_from_wrong(dtype, inside, outside):
    eager = torch.tensor([1.0, 0.5], dtype=dtype)
    wide = eager.double()
    assert tensor_error(wide + inside, wide) < tensor_error(wide + outside, wide)
    step = torch.finfo(dtype).eps
    near = eager + max(inside - step, 0) if inside > step else eager
    assert right(near.to(dtype), eager)
    assert not right((eager + outside).to(dtype), eager)


def test_eagers_own_error_widens_the_tolerance_twice():
    reference = BASE.double()
    eager = (reference * (1 + 1e-3)).float()
    assert right((reference * (1 - 1.9e-3)).float(), eager, reference)
    assert not right((reference * (1 - 2.2e-3)).float(), eager, reference)


def test_recorded_tolerance_wins():
    assert right(BASE + 0.1, BASE, tolerances={"out": 0.1})
    assert not right(BASE + 0.1, BASE, tolerances={"out.0": 0.1})


def test_integers_and_bools_are_exact():
    assert not right(torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert not right(torch.tensor([True]), torch.tensor([False]))
    assert right(torch.tensor([1, 2]), torch.tensor([1, 2]))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_stand_in_the_same_places(odd):
    with_odd = torch.tensor([1.0, odd])
    assert right(with_odd, with_odd.clone())
    assert not right(torch.tensor([1.0, 2.0]), with_odd)
    assert not right(torch.tensor([odd, 1.0]), with_odd)
    assert not right(torch.tensor([1.0, -odd if odd == odd else math.inf]), with_odd)


@pytest.mark.parametrize(
    ("actual", "eager"),
    [
        ((BASE,), [BASE]),
        ([BASE, None], [BASE]),
        ({"b": BASE, "a": 1}, {"a": 1, "b": BASE}),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": 1, "b": None}),
        (None, ()),
        (Box(BASE), Box(BASE, 1)),
        ({"a": BASE}, Box(BASE)),
        (BASE, BASE.double()),
        (BASE, BASE[None]),
        (BASE, 1.0),
        (1.0, BASE),
        (torch.Size([3]), (3,)),
    ],
)
def test_other_structure_type_or_order_is_found(actual, eager):
    assert right(eager, eager)
    assert not right(actual, eager)


def test_nested_result_is_compared_whole_and_findings_name_the_place():
    eager = {"x": [BASE, (BASE, None)], "n": 3}
    report = compare({"x": [BASE, (BASE + 1, None)], "n": 4}, eager)
    assert [finding.path for finding in report.findings] == ["out.x.1.0", "out.n"]
    assert set(report.errors) == {"out.x.0", "out.x.1.0"}
    assert report.worst == pytest.approx(0.25)


def test_strides_are_no_part_of_it_and_complex_is_compared():
    x = torch.randn(3, 4)
    assert right(x.t().contiguous().t(), x)
    z = torch.randn(3, dtype=torch.complex64)
    assert right(z, z.clone())
    assert not right(z.conj(), z)


def test_transformers_output_with_its_empty_fields_is_compared():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    full = outputs.CausalLMOutputWithPast(logits=BASE, loss=BASE)
    assert right(outputs.CausalLMOutputWithPast(logits=BASE, loss=BASE), full)
    assert not right(outputs.CausalLMOutputWithPast(logits=BASE), full)
