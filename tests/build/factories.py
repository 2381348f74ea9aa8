"""Models that the tests of `submit` share, and the fragments whose keys are kept."""

import torch
from torch import nn
from torch.export import Dim

from spyre_build import Entry, ModelSpec


class Layer(nn.Module):
    def __init__(self, width=16, *, eps=1e-5, scale=1.0):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width, eps=eps), nn.Linear(width, 24), nn.Linear(24, width)
        self.scale = scale

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x)))) * self.scale


class Renamed(nn.Module):
    """The same computation as `Layer`, under other names and written in another order."""

    def __init__(self):
        super().__init__()
        self.z, self.a, self.m = nn.Linear(24, 16), nn.Linear(16, 24), nn.LayerNorm(16)

    def forward(self, hidden):
        h = self.a(self.m(hidden)).relu()
        return hidden + self.z(h) * 1.0


def stack(layers=40, changed=None, **change):
    torch.manual_seed(0)
    blocks = (Layer(**(change if number == changed else {})) for number in range(layers))
    return nn.Sequential(nn.Linear(16, 16), *blocks, nn.Linear(16, 4)).eval()


def spec(module, *args, **more):
    return ModelSpec(module.eval(), {"forward": Entry(args, **more)})


class Fn(nn.Module):
    """A function with one linear layer's weight and a buffer."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 8))
        self.register_buffer("state", torch.zeros(4, 8))
        self.function = function

    def forward(self, *args):
        return self.function(self, *args)


def _attention(m, x):
    q, k, v = (x @ m.weight).unflatten(-1, (2, 4)).transpose(1, 2), x[:, None, :, :4], x[:, None, :, 4:]
    return nn.functional.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)


def _write(m, place, value):
    m.state.index_copy_(0, place, value)
    return m.state.sum(0)


def _cond(m, x):
    return torch.cond(x.sum() > 0, lambda v: v @ m.weight, lambda v: v - 1, (x,))


def golden_specs():
    """A dozen small models of one fragment each (and one of two), by name."""
    x = torch.zeros(4, 8)
    seq = Dim("seq", max=64)
    return {
        "layer": spec(Layer(), torch.zeros(2, 16)),
        "linear-half": spec(nn.Linear(8, 8).to(torch.bfloat16), x.to(torch.bfloat16)),
        "convolution": spec(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.zeros(1, 3, 8, 8)),
        "attention": spec(Fn(_attention), torch.zeros(1, 4, 8)),
        "embedding": spec(nn.Embedding(10, 8), torch.zeros(2, 3, dtype=torch.long)),
        "state": spec(Fn(_write), torch.tensor([1]), torch.zeros(1, 8)),
        "cond": spec(Fn(_cond), x),
        "dynamic": spec(Fn(lambda m, a: (a @ m.weight).softmax(-1)), x, dynamic_shapes={"args": ({0: seq},)}),
        "mutation": spec(Fn(lambda m, a: a.add_(m.state)), x),
        "alias": spec(Fn(lambda m, a: ((a @ m.weight), (a @ m.weight).t())), x),
        "integers": spec(Fn(lambda _m, a: (a // 3, a % 3, a > 1)), torch.zeros(4, dtype=torch.long)),
        "sort": spec(Fn(lambda _m, a: torch.topk(a, 2)), x),
        "recurrent": spec(nn.LSTM(8, 8), torch.zeros(3, 1, 8)),
    }


def keys(model_spec):
    """Digests of a model's fragments, in order of first use."""
    from spyre_build.frontend.model import build_model

    return [digest.hash for digest in build_model(model_spec).pool.digests]
