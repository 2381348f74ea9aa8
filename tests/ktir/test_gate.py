"""Which kernels the published legality rules take, and by which rule they refuse the others."""

from __future__ import annotations

import ktir_kernels as k
import pytest

from spyre_runtime.ktir.gate import GATE_RULES, refusals
from spyre_runtime.ktir.verify import verify


def rules(kernel, **options):
    assert verify(kernel).findings == ()
    found = refusals(kernel, **options)
    assert all(refusal.rule in GATE_RULES and GATE_RULES[refusal.rule] in str(refusal) for refusal in found)
    return {refusal.rule for refusal in found}


def gated(body, inputs=1):
    return k.pointwise("p", (64, 128), inputs, body, spelling="gated")


@pytest.mark.parametrize(
    "kernel",
    [
        lambda: gated(lambda s, x, y: s.add(x, y), 2),
        lambda: gated(lambda s, x, y: s.mul(s.silu(x), y), 2),
        lambda: gated(lambda s, x: s.rsqrt(s.exp(x))),
        lambda: k.permute((64, 64), (1, 0)),
        lambda: k.row_reduce(64, 128, "sum", spelling="gated"),
    ],
)
def test_gated_kernel_is_taken(kernel):
    assert rules(kernel()) == set()


@pytest.mark.parametrize(
    ("kernel", "rule"),
    [
        (lambda: k.pointwise("p", (64, 128), 1, lambda s, x: s.exp(x)), "gate-body"),
        (lambda: k.matmul(64, 128, 128), "gate-named"),
        (lambda: k.matmul(64, 128, 256, block=(64, 64, 64)), "gate-loop"),
        (lambda: k.matmul(64, 128, 128, spelling="gated"), "gate-initial"),
        (lambda: k.embedding(100, 64, 8), "gate-gather"),
        (lambda: k.softmax(64, 128), "gate-initial"),
    ],
)
def test_other_kernel_is_refused_by_name(kernel, rule):
    assert rule in rules(kernel())


def test_later_version_takes_more_in_bodies():
    kernel = gated(lambda s, x: s.relu(x))
    assert rules(kernel) == {"gate-body"}
    assert rules(kernel, later=True) == set()
