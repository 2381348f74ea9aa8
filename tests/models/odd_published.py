"""Odd things that published models do, each reduced to a few lines."""

import numpy as np
import torch
from odd import Odd, call, case
from odd_values import rand
from torch import nn


class NormOfChannelsLast(nn.Module):
    """Batch norm of a transposed tensor, and its parts put together: torch's kernel and its description disagree."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.norm.running_mean.copy_(torch.arange(4.0) / 7)

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2).reshape(-1, 4) * 2


@case(compiled=True)
def norm_of_transposed_tensor():
    return Odd(NormOfChannelsLast().eval(), [call(rand(2, 3, 4)), call(rand(2, 3, 4))])


class Window(nn.Module):
    """Fits its window to the input in its first call, as Swin's layers do; every later call finds it fitted."""

    def __init__(self):
        super().__init__()
        self.window, self.shift = 8, 4

    def forward(self, x):
        if x.shape[-1] <= self.window:
            self.window, self.shift = x.shape[-1], 0
        if self.shift > 0:
            x = x.roll(self.shift, -1)
        return x.unflatten(-1, (-1, self.window)).softmax(-1)


@case()
def window_fitted_once_and_for_all():
    return Odd(Window(), [call(rand(2, 6)), call(rand(2, 6))])


@case()
def window_fitted_otherwise_by_each_entry():
    calls = [call(rand(2, 6), entry="small"), call(rand(2, 16), entry="large")]
    return Odd(Window(), calls, refused="not every one in the same way, changes shift, window in its forward")


class Alternating(nn.Module):
    """A number that each call leaves otherwise."""

    def __init__(self):
        super().__init__()
        self.sign = 1

    def forward(self, x):
        self.sign = -self.sign
        return x * self.sign


@case()
def number_that_changes_with_each_call():
    return Odd(Alternating(), [call(rand(3)), call(rand(3))], refused="changes sign in its forward")


class FirstCallOnly(nn.Module):
    """A number that settles, but whose first value was used."""

    def __init__(self):
        super().__init__()
        self.seen = False

    def forward(self, x):
        result = x * 2 if self.seen else x + 1
        self.seen = True
        return result


@case()
def first_call_that_computes_otherwise():
    return Odd(FirstCallOnly(), [call(rand(3)), call(rand(3))], refused="changes seen in its forward")


class Branching(nn.Module):
    def forward(self, x):
        if bool((x > 0).any()):
            return x + 1
        return x


@case()
def python_that_branches_on_a_value():
    words = r"its Python depends on the values of a tensor \(at odd_published.py:\d+ in forward\)$"
    return Odd(Branching(), [call(rand(3))], refused=words)


class TruthOfPositions(nn.Module):
    """Truth values of positions compared with each other, as in masks and in the division of DETR's positions."""

    def forward(self, x):
        low, high = torch.arange(9) < 10, torch.arange(9) > 20
        floor = torch.div(torch.arange(9), torch.tensor(2.0), rounding_mode="floor")
        pairs = low == high, low != high, torch.maximum(low, high), torch.minimum(low, x > 0)
        chosen = torch.where(x > 0, low, high)
        return (
            *(truth & (x > 0) for truth in pairs),
            chosen,
            x + floor,
            low <= high,
            low.logical_xor(high),
            x * low.float(),
        )


@case(compiled=True)
def truth_of_positions():
    return Odd(TruthOfPositions(), [call(rand(3, 9)), call(rand(3, 9))])


class ThroughNumpy(nn.Module):
    def forward(self, x):
        return x + torch.from_numpy(np.frexp(x.detach().numpy())[0])


@case()
def arithmetic_through_numpy():
    return Odd(ThroughNumpy(), [call(rand(3))], refused=r"export cannot either: .*odd_published.py:\d+ in forward")


class Memo(nn.Module):
    """Keeps what it computes of its weights, as LeViT's layers do."""

    def __init__(self):
        super().__init__()
        self.table, self.kept = nn.Parameter(rand(4), requires_grad=False), {}

    def forward(self, x):
        if "bias" not in self.kept:
            self.kept["bias"] = self.table[torch.tensor([0, 2, 1, 3])] * 2
        return x + self.kept["bias"]


@case()
def memo_that_the_factory_has_filled():
    module = Memo()
    module(rand(3, 4))
    return Odd(module, [call(rand(3, 4)), call(rand(2, 4).repeat(2, 1)[:3])])


@case()
def memo_that_the_first_call_fills():
    return Odd(Memo(), [call(rand(3, 4))], refused="changes kept in its forward")
