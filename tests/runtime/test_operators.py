"""Higher-order and custom operators, interpreted."""

from __future__ import annotations

import pytest
import torch
from clipping import soft_clip
from handmade import arg, clipped, f32, fragment, graph, node, ref, spec, state_input, tensor_input

from spyre_cache.objects import fragment as f
from spyre_runtime.drivers.eager import interpret
from spyre_runtime.errors import ArtifactError, InvalidFragmentError
from spyre_runtime.graph import to_fx
from spyre_runtime.operators import resolve


@pytest.mark.parametrize("declared", ["spyretests", "spyretests::soft_clip", "spyretests::soft_clip.default"])
def test_declared_custom_operator_runs(declared):
    x = torch.randn(3)
    out = interpret(clipped(), frozenset({declared}))([x])[0]
    assert torch.equal(out, soft_clip(soft_clip(x, 0.5), 0.25))
    to_fx(clipped(), check=True, custom_ops=frozenset({declared}))


def test_custom_operator_that_is_not_declared_is_refused():
    with pytest.raises(InvalidFragmentError, match=r"spyretests::soft_clip.default.*custom_ops="):
        interpret(clipped())


def test_loop_runs_until_its_condition_fails():
    less = graph(
        [tensor_input(spec("int64")), tensor_input(f32(3))],
        [node("aten::lt.Scalar", ref(0), 4, results=spec("bool"))],
        [2],
    )
    body = graph(
        [tensor_input(spec("int64")), tensor_input(f32(3))],
        [
            node("aten::add.Scalar", ref(0), 1, results=spec("int64")),
            node("aten::mul.Scalar", ref(1), 2.0, results=f32(3)),
        ],
        [2, 3],
    )
    loop = fragment(
        [tensor_input(spec("int64")), tensor_input(f32(3))],
        [
            node(
                "higher_order::while_loop",
                f.GraphArg(graph=less),
                f.GraphArg(graph=body),
                [ref(0), ref(1)],
                arg([]),
                results=(spec("int64"), f32(3)),
                pack="seq",
            )
        ],
        [2, 3],
    )
    to_fx(loop, check=True)
    count, x = interpret(loop)([torch.tensor(0), torch.ones(3)])
    assert count.item() == 4
    assert torch.equal(x, torch.full((3,), 16.0))


def test_scan_carries_and_collects():
    body = graph(
        [tensor_input(f32(2)), tensor_input(f32(2))],
        [node("aten::add.Tensor", ref(0), ref(1), results=f32(2)), node("aten::clone.default", ref(2), results=f32(2))],
        [2, 3],
    )
    sums = fragment(
        [tensor_input(f32(2)), tensor_input(f32(4, 2))],
        [
            node(
                "higher_order::scan",
                f.GraphArg(graph=body),
                [ref(0)],
                [ref(1)],
                [],
                results=(f32(2), f32(4, 2)),
                pack="seq",
            )
        ],
        [2, 3],
    )
    xs = torch.randn(4, 2)
    last, collected = interpret(sums)([torch.zeros(2), xs])
    torch.testing.assert_close(collected, xs.cumsum(0))
    torch.testing.assert_close(last, xs.sum(0))
    to_fx(sums, check=True)


def test_map_runs_its_body_on_each_row():
    body = graph(
        [tensor_input(f32(3)), tensor_input(f32(3))], [node("aten::mul.Tensor", ref(0), ref(1), results=f32(3))], [2]
    )
    mapped = fragment(
        [tensor_input(f32(4, 3)), tensor_input(f32(3))],
        [node("higher_order::map_impl", f.GraphArg(graph=body), [ref(0)], [ref(1)], results=(f32(4, 3),), pack="seq")],
        [2],
    )
    x, y = torch.randn(4, 3), torch.randn(3)
    assert torch.equal(interpret(mapped)([x, y])[0], x * y)
    to_fx(mapped, check=True)


def test_operator_that_fails_on_real_values_is_one_of_our_errors():
    gather = fragment(
        [tensor_input(f32(3)), tensor_input(spec("int64", 1))],
        [node("aten::index_select.default", ref(0), 0, ref(1), results=f32(1))],
        [2],
    )
    assert interpret(gather)([torch.arange(3.0), torch.tensor([2])])[0].item() == 2
    with pytest.raises(ArtifactError, match="while it was interpreted"):
        interpret(gather)([torch.arange(3.0), torch.tensor([9])])


def test_operator_inside_a_functional_wrapper_may_write():
    assert resolve("aten::copy_.default", mutable=True) is torch.ops.aten.copy_.default


def test_state_is_written_and_result_read_after_it():
    bump = fragment(
        [state_input(f32(3))],
        [node("aten::add.Scalar", ref(0), 1, results=f32(3))],
        [1, 0],
        mutations=[(0, 1)],
    )
    state = torch.zeros(3)
    new, returned = interpret(bump)([state])
    assert returned is state
    assert torch.equal(state, torch.ones(3))
    assert torch.equal(new, torch.ones(3))


def test_result_that_torch_lays_out_otherwise_is_viewed_as_the_fragment_says():
    lying = f32(2, 4, 3, stride=(12, 1, 4))
    normed = fragment(
        [tensor_input(f32(2, 3, 4)), *(tensor_input(f32(4)) for _ in range(4))],
        [
            node("aten::transpose.int", ref(0), 1, 2, results=lying),
            node(
                "aten::_native_batch_norm_legit_no_training", ref(5), ref(1), ref(2), ref(3), ref(4), 0.1, 1e-5,
                results=(lying, f32(0), f32(0)), pack="seq",
            ),
            node("aten::transpose.int", ref(6), 1, 2, results=f32(2, 3, 4)),
            node("aten::view", ref(9), [6, 4], results=f32(6, 4)),
        ],
        [10],
    )  # fmt: skip
    x, (weight, bias, mean, variance) = torch.randn(2, 3, 4), torch.rand(4, 4).unbind()
    expected = torch.nn.functional.batch_norm(x.transpose(1, 2), mean, variance, weight, bias).transpose(1, 2)
    assert torch.equal(interpret(normed)([x, weight, bias, mean, variance])[0], expected.reshape(6, 4))
