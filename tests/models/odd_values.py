"""Odd arguments and results: containers, constants, aliases, numbers, strides, dtypes."""

import collections
import dataclasses
from typing import NamedTuple

import torch
from odd import Odd, call, case
from torch import nn


class Pair(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


@dataclasses.dataclass
class Scored:
    score: torch.Tensor
    label: str
    rest: torch.Tensor | None = None


class Fn(nn.Module):
    """A module around a function of it and its arguments, with one linear layer to have weights."""

    def __init__(self, width=6):
        super().__init__()
        self.lin = nn.Linear(width, width)


def rand(*shape):
    return torch.randn(*shape)


@case(compiled=True)
def outputs_in_every_container():
    class M(Fn):
        def forward(self, x):
            h = self.lin(x)
            ordered = collections.OrderedDict([("z", h + 1), ("a", h - 1)])
            return {
                "named": Pair(h, h * 2), "data": Scored(h.sum(), "sum"), "ordered": ordered, "list": [h, (h, None)],
                "number": 3, "flag": True, "text": "yes", "float": 0.5,
            }  # fmt: skip

    return Odd(M(), [call(rand(2, 6)), call(rand(2, 6))], types=(Pair, Scored))


@case()
def outputs_none_alone():
    class M(Fn):
        def forward(self, x):
            x.add_(self.lin(x))

    return Odd(M(), [call(rand(2, 6)), call(rand(2, 6))])


@case(compiled=True)
def outputs_alias_inputs_views_and_weights():
    class M(Fn):
        def forward(self, x):
            h = self.lin(x)
            return x, x.t(), h, h[:, 1:3], h.view(-1), self.lin.weight, self.lin.bias[2:], h

    return Odd(M(), [call(rand(2, 6)), call(rand(2, 6))])


@case()
def outputs_constants():
    class M(Fn):
        def forward(self, x):
            return self.lin(x), torch.tensor([1.0, 2.0]), torch.zeros(0, 3), torch.full((2,), 7), torch.tensor(5)

    return Odd(M(), [call(rand(2, 6)), call(rand(2, 6))])


@case()
def outputs_shapes_as_numbers():
    class M(Fn):
        def forward(self, x):
            return self.lin(x), x.shape[0], x.shape, x.dtype == torch.float32, x.numel() / 2

    return Odd(M(), [call(rand(2, 6))])


@case()
def inputs_returned_untouched():
    class M(nn.Module):
        def forward(self, x, y):
            return y, x

    return Odd(M(), [call(rand(2, 6), rand(3)), call(rand(2, 6), rand(3))])


@case()
def inputs_none_without_tensors():
    class M(Fn):
        def forward(self):
            return self.lin(torch.ones(2, 6)) + torch.arange(6)

    return Odd(M(), [call(), call()])


@case()
def model_without_parameters():
    class M(nn.Module):
        def forward(self, x):
            return torch.softmax(x, -1).cumsum(-1)

    return Odd(M(), [call(rand(3, 5)), call(rand(3, 5) * 10)])


@case(compiled=True)
def inputs_mutated_and_returned():
    class M(Fn):
        def forward(self, x, y):
            x += self.lin(y)
            y.mul_(2)
            y[:, 0] = x[:, 1]
            return x, y + x

    return Odd(M(), [call(rand(2, 6), rand(2, 6)), call(rand(2, 6), rand(2, 6))])


@case()
def inputs_mutated_inside_a_dict():
    class M(Fn):
        def forward(self, batch):
            batch["x"].add_(1)
            return self.lin(batch["x"])

    return Odd(M(), [call({"x": rand(2, 6)}), call({"x": rand(2, 6)})])


@case()
def same_tensor_twice():
    class M(Fn):
        def forward(self, x, y):
            return self.lin(x) * y

    x = rand(2, 6)
    return Odd(M(), [call(x, x), call(rand(2, 6), rand(2, 6))])


@case(compiled=True)
def kwargs_in_any_order_with_defaults():
    class M(Fn):
        def forward(self, x, *, scale=2.0, mask=None, bias=None):
            h = self.lin(x) * scale
            h = h if mask is None else h.masked_fill(mask, -1.0)
            return h if bias is None else h + bias

    mask = rand(2, 6) > 0
    return Odd(
        M(),
        [call(rand(2, 6), mask=mask, bias=rand(6)), call(rand(2, 6), bias=rand(6), mask=~mask)],
        bad=[call(rand(2, 6), mask=mask), call(rand(2, 6), mask=mask, bias=rand(6), scale=3.0)],
    )


@case()
def star_arguments():
    class M(Fn):
        def forward(self, first, *rest, **named):
            h = self.lin(first)
            for item in rest:
                h = h + item
            for name in sorted(named):
                h = h * named[name]
            return h

    return Odd(
        M(),
        [
            call(rand(2, 6), rand(6), rand(1), b=rand(6), a=rand(6)),
            call(rand(2, 6), rand(6), rand(1), a=rand(6), b=rand(6)),
        ],
    )


@case()
def nested_dictionaries_in():
    class M(Fn):
        def forward(self, batch, extra):
            (scale, (shift,)), flags = extra
            return {"out": self.lin(batch["a"]["x"]) * scale + shift, "kept": batch["b"][0], "flags": flags["on"]}

    def one():
        return call({"a": {"x": rand(2, 6)}, "b": [rand(2)]}, ((rand(6), (rand(1),)), {"on": True}))

    return Odd(M(), [one(), one()])


@case()
def numbers_among_arguments():
    class M(Fn):
        def forward(self, x, times, shift, name):
            h = self.lin(x)
            for _ in range(times):
                h = h + shift
            return h if name == "plain" else -h

    return Odd(
        M(), [call(rand(2, 6), 3, 0.25, "plain"), call(rand(2, 6), 3, 0.25, "plain")],
        bad=[call(rand(2, 6), 4, 0.25, "plain"), call(rand(2, 6), 3, 0.25, "other")],
    )  # fmt: skip


@case(compiled=True)
def strides_of_every_kind():
    class M(Fn):
        def forward(self, x):
            return self.lin(x), x.reshape(-1), x.sum(0)

    base = rand(6, 4)
    others = [
        rand(8, 6)[::2],
        rand(4, 12)[:, ::2],
        rand(1, 6).expand(4, 6),
        rand(4, 6),
        base.t().contiguous(),
        rand(4, 7)[:, 1:],
    ]
    return Odd(M(), [call(base.t()), *(call(x) for x in others)])


@case()
def strides_channels_last():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x):
            return torch.relu(self.conv(x))

    x = rand(1, 3, 8, 8)
    return Odd(M(), [call(x.to(memory_format=torch.channels_last)), call(x)])


@case()
def empty_tensors():
    class M(Fn):
        def forward(self, x):
            h = self.lin(x)
            return h, torch.cat([h, h]), h.sum(0), h.sum()

    return Odd(M(), [call(rand(0, 6)), call(rand(0, 6))])


@case()
def tensors_without_dimensions():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(3.0))

        def forward(self, x, n):
            return x * self.scale, n + 1, (x > 0) & (n < 5)

    return Odd(M(), [call(torch.tensor(2.0), torch.tensor(4)), call(torch.tensor(-2.0), torch.tensor(9))])


def _precision(dtype):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)
            self.norm = nn.LayerNorm(16)

        def forward(self, x):
            return self.norm(x + self.b(nn.functional.gelu(self.a(x)))), x.float().mean()

    return Odd(M().to(dtype), [call(rand(4, 16).to(dtype)), call(rand(4, 16).to(dtype))])


@case(compiled=True)
def precision_bfloat16():
    return _precision(torch.bfloat16)


@case(compiled=True)
def precision_float16():
    return _precision(torch.float16)


@case()
def precision_float64():
    return _precision(torch.float64)


@case()
def precision_mixed():
    class M(Fn):
        def forward(self, x):
            half = self.lin(x).to(torch.bfloat16)
            return (half * half).float() + x, half.to(torch.float16), (half > 0).to(torch.uint8)

    return Odd(M(), [call(rand(4, 6)), call(rand(4, 6))])


@case(compiled=True)
def precision_integers_and_booleans():
    class M(nn.Module):
        def forward(self, a, b, flag):
            whole = a // b
            rest = torch.remainder(a, b)
            return whole, rest, a << 1, ~flag, flag.sum(), torch.where(flag, a, b), a.to(torch.int8), (a & b) ^ b

    def one(seed):
        g = torch.Generator().manual_seed(seed)
        a = torch.randint(-50, 50, (7,), generator=g)
        b = torch.randint(1, 9, (7,), generator=g) * torch.tensor([1, -1, 1, -1, 1, -1, 1])
        return call(a, b, torch.rand(7, generator=g) > 0.5)

    return Odd(M(), [one(1), one(2)])


@case()
def precision_complex():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.phase = nn.Parameter(torch.polar(torch.ones(8), torch.arange(8.0)))

        def forward(self, x):
            z = torch.view_as_complex(x.reshape(-1, 8, 2)) * self.phase
            return torch.view_as_real(z).flatten(1), z.abs(), z.conj()

    return Odd(M(), [call(rand(2, 16)), call(rand(2, 16))])


@case()
def values_not_finite():
    class M(nn.Module):
        def forward(self, x):
            return x / 0, torch.log(x), torch.softmax(x, -1), torch.nan_to_num(x / x), x.max(), torch.isnan(x / 0)

    return Odd(
        M(), [call(torch.tensor([1.0, -1.0, 0.0, float("inf")])), call(torch.tensor([2.0, float("nan"), 0.0, -0.0]))]
    )


@case()
def results_with_names():
    class M(nn.Module):
        def forward(self, x):
            return torch.topk(x, 2), torch.sort(x, descending=True), x.max(-1), torch.std_mean(x), torch.aminmax(x)

    return Odd(M(), [call(rand(3, 7)), call(rand(3, 7))])
