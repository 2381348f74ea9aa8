"""Odd structure: ties, shared and repeated blocks, skips, hooks, parametrisation, several encoders."""

import copy

import torch
from odd import Odd, call, case
from odd_values import Fn, rand
from torch import nn
from torch.nn.utils import parametrizations


class Block(nn.Module):
    def __init__(self, width=8, scale=1.0, act="gelu"):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale, self.act = scale, act

    def forward(self, x):
        return x + self.down(getattr(nn.functional, self.act)(self.up(self.norm(x)))) * self.scale


@case(compiled=True)
def weights_tied_head_and_embedding():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.block = Block()
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.block(self.embed(ids)))

    module = M()
    decoy = copy.deepcopy(module)
    decoy.head.weight = nn.Parameter(decoy.head.weight + 1e-3)
    return Odd(module, [call(torch.tensor([[1, 5, 2]])), call(torch.tensor([[10, 0, 3]]))], decoy=decoy)


@case()
def weights_tied_transposed():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(rand(6, 4))

        def forward(self, x):
            return torch.tanh(x @ self.w) @ self.w.t()

    return Odd(M(), [call(rand(2, 6)), call(rand(2, 6))])


@case()
def block_shared_by_all_layers():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            one, other = Block(), Block()
            self.layers = nn.ModuleList([one, other, one, one])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    module = M()
    decoy = copy.deepcopy(module)
    decoy.layers[2] = decoy.layers[1]
    return Odd(module, [call(rand(2, 8)), call(rand(2, 8))], decoy=decoy)


@case(compiled=True)
def layers_that_differ_by_a_number():
    module = nn.Sequential(Block(), Block(scale=0.5), Block(scale=2.0), Block(), Block(act="silu"))
    decoy = copy.deepcopy(module)
    decoy[1].scale = 1.0
    return Odd(module, [call(rand(2, 8)), call(rand(2, 8))], decoy=decoy)


@case()
def layers_identical_with_order_that_matters():
    module = nn.Sequential(*(Block() for _ in range(4)))
    decoy = nn.Sequential(*(copy.deepcopy(module[i]) for i in (0, 2, 1, 3)))
    return Odd(module, [call(rand(2, 8)), call(rand(2, 8))], decoy=decoy)


@case()
def encoder_called_twice():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(Block(), Block())

        def forward(self, a, b):
            return nn.functional.cosine_similarity(self.encoder(a), self.encoder(b), dim=-1)

    return Odd(M(), [call(rand(3, 8), rand(3, 8)), call(rand(3, 8), rand(3, 8))])


@case()
def skips_across_layers():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList(Block() for _ in range(3))
            self.up = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x):
            kept = []
            for layer in self.down:
                x = layer(x)
                kept.append(x)
            for layer in self.up:
                x = layer(x) * kept.pop()
            return x

    return Odd(M(), [call(rand(2, 8)), call(rand(2, 8))])


@case(compiled=True)
def unet():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, padding=1)
            self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
            self.out = nn.Conv2d(8, 1, 1)
            self.norm = nn.GroupNorm(2, 4)

        def forward(self, x):
            a = torch.relu(self.norm(self.a(x)))
            b = self.up(torch.relu(self.b(a)))
            smooth = nn.functional.interpolate(nn.functional.avg_pool2d(a, 2), scale_factor=2, mode="bilinear")
            return self.out(torch.cat([a + smooth, b], 1))

    return Odd(M(), [call(rand(1, 1, 8, 8)), call(rand(1, 1, 8, 8))])


@case()
def experts_chosen_by_a_router():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(8, 4)
            self.experts = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x):
            weight, chosen = self.gate(x).softmax(-1).topk(2)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                share = (weight * (chosen == number)).sum(-1, keepdim=True)
                out = out + share * expert(x)
            return out, chosen

    return Odd(M(), [call(rand(5, 8)), call(rand(5, 8))])


@case()
def parametrised_by_weight_and_spectral_norm():
    module = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 8)), nn.Tanh(), parametrizations.orthogonal(nn.Linear(8, 8))
    ).eval()
    return Odd(module, [call(rand(2, 8)), call(rand(2, 8))])


@case()
def hooks_before_and_after():
    module = nn.Sequential(nn.Linear(8, 8), Block())
    module[0].register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    module[1].register_forward_hook(lambda _, args, out: out - args[0])
    return Odd(module, [call(rand(2, 8)), call(rand(2, 8))])


@case()
def modules_in_a_dictionary():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleDict({"b.x".replace(".", "_"): Block(), "a": Block()})
            self.weights = nn.ParameterDict({"s": nn.Parameter(rand(8))})
            self.biases = nn.ParameterList([nn.Parameter(rand(8)), nn.Parameter(rand(8))])

        def forward(self, x):
            for name, part in self.parts.items():
                x = part(x) if name == "a" else part(x) * self.weights["s"]
            return x + self.biases[1] - self.biases[0]

    return Odd(M(), [call(rand(2, 8)), call(rand(2, 8))])


@case()
def names_with_odd_letters():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("lin ear/größe", nn.Linear(6, 6))
            self.register_parameter("λ", nn.Parameter(rand(6)))

        def forward(self, x):
            return self.get_submodule("lin ear/größe")(x) * self.get_parameter("λ")

    return Odd(M(), [call(rand(2, 6)), call(rand(2, 6))])


@case()
def module_inside_a_plain_list():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(6, 6)
            self.hidden = [nn.Linear(6, 6)]

        def forward(self, x):
            return self.hidden[0](self.lin(x))

    return Odd(M(), [call(rand(2, 6)), call(rand(2, 6))])


@case()
def function_in_place_of_layers():
    class M(Fn):
        def forward(self, x):
            step = torch.func.vmap(lambda row: (row * row).sum() + self.lin.bias.sum())
            return step(x), torch.func.vmap(torch.dot, (0, 0))(x, x)

    return Odd(M(), [call(rand(4, 6)), call(rand(4, 6))])


@case()
def nothing_but_identity():
    return Odd(nn.Sequential(nn.Identity(), nn.Dropout(0.5)).eval(), [call(rand(2, 6)), call(rand(2, 6))])


@case()
def layers_deep_and_different():
    layers = [
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.LayerNorm(8),
        nn.GLU(),
        nn.Linear(4, 8),
        nn.PReLU(8),
        nn.Hardswish(),
        nn.Softplus(),
    ]
    layers += [
        nn.Bilinear(8, 8, 8) if False else nn.Linear(8, 8, bias=False),
        nn.ELU(),
        nn.Unflatten(1, (2, 4)),
        nn.Flatten(),
    ]
    return Odd(nn.Sequential(*layers), [call(rand(3, 8)), call(rand(3, 8))])
