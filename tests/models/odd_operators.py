"""Odd operators: control flow, recurrences, convolutions, sorting, scattering, large reductions, dynamic sizes."""

import math

import torch
from odd import Odd, call, case
from odd_values import Fn, rand
from torch import nn
from torch.export import Dim


@case(compiled=True)
def branch_by_cond():
    class M(Fn):
        def forward(self, x):
            return torch.cond(x.sum() > 0, self.lin, lambda v: -v, (x,))

    return Odd(M(), [call(rand(2, 6).abs()), call(-rand(2, 6).abs())])


@case()
def loop_by_while():
    from torch._higher_order_ops.while_loop import while_loop

    class M(nn.Module):
        def forward(self, x):
            def more(i, v):
                return (i < 5) & (v.sum() < 100)

            return while_loop(more, lambda i, v: (i + 1, v * 2), (torch.tensor(0), x))

    return Odd(M(), [call(torch.ones(3)), call(torch.full((3,), 20.0))])


@case()
def recurrence_by_scan():
    from torch._higher_order_ops.scan import scan

    class M(nn.Module):
        def forward(self, x):
            return scan(lambda carry, item: (carry * 0.5 + item, carry + item), torch.zeros(4), x)

    return Odd(M(), [call(rand(5, 4)), call(rand(5, 4))])


@case()
def branch_on_data_in_python():
    class M(Fn):
        def forward(self, x):
            return self.lin(x) if x.sum() > 0 else x

    return Odd(M(), [call(rand(2, 6))], refused="odd_operators.py")


@case()
def branch_on_shape_in_python():
    class M(Fn):
        def forward(self, x):
            return self.lin(x) if x.shape[0] > 1 else x

    return Odd(M(), [call(rand(2, 6)), call(rand(2, 6))], bad=[call(rand(1, 6))])


@case(compiled=True)
def recurrent_lstm():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x):
            out, (hidden, cell) = self.lstm(x)
            return out, hidden, cell

    return Odd(M(), [call(rand(2, 3, 4)), call(rand(2, 3, 4))])


@case()
def recurrent_gru():
    return Odd(nn.GRU(4, 5), [call(rand(3, 2, 4), rand(1, 2, 5)), call(rand(3, 2, 4), rand(1, 2, 5))])


@case()
def transformer_of_torch():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = nn.TransformerEncoder(layer, 2).eval()
    return Odd(module, [call(rand(2, 5, 8)), call(rand(2, 5, 8))])


@case()
def attention_of_torch_with_weights():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, mask):
            return self.attention(x, x, x, key_padding_mask=mask, need_weights=True)

    mask = torch.tensor([[False] * 4 + [True], [False] * 5])
    return Odd(M().eval(), [call(rand(2, 5, 8), mask), call(rand(2, 5, 8), ~mask.flip(0) & mask | mask)])


@case(compiled=True)
def convolutions_and_pools():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1 = nn.Conv2d(3, 6, 3, groups=3, dilation=2, padding=2)
            self.c2 = nn.Conv2d(6, 4, (1, 3), stride=(2, 1), bias=False, padding_mode="reflect", padding=(0, 1))
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x):
            x = self.norm(self.c2(nn.functional.leaky_relu(self.c1(x))))
            peak, where = nn.functional.max_pool2d(x, 2, return_indices=True)
            return peak, where, nn.functional.adaptive_avg_pool2d(x, 1), nn.functional.pixel_shuffle(x, 2)

    return Odd(M().eval(), [call(rand(2, 3, 8, 8)), call(rand(2, 3, 8, 8))])


@case()
def convolution_in_three_dimensions():
    module = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.ConvTranspose3d(2, 1, 2), nn.MaxPool3d(2))
    return Odd(module, [call(rand(1, 1, 5, 5, 5)), call(rand(1, 1, 5, 5, 5))])


@case(compiled=True)
def sorting_and_selecting():
    class M(nn.Module):
        def forward(self, x):
            value, index = x.sort(dim=-1, stable=True)
            return (
                value,
                index,
                x.argmax(),
                x.argmin(-1),
                x.kthvalue(2).values,
                x.gather(1, index),
                x.flip(0),
                x.roll(2, 1),
            )

    return Odd(M(), [call(torch.tensor([[3.0, 1, 2, 1], [0, 0, 5, -1]])), call(rand(2, 4))])


@case()
def scattering_to_unknown_sizes():
    class M(nn.Module):
        def forward(self, x, i):
            a = torch.zeros(3, 5).scatter(1, i, x)
            b = torch.zeros(3, 5).scatter_reduce(1, i, x, "amax", include_self=False)
            c = torch.zeros(5, 3).index_copy(0, i[0], x.t()[: i.shape[1]])
            return a, b, c, torch.zeros(3, 5).masked_scatter(a > 0, x), x[i > 1], x.take_along_dim(i, 1)

    return Odd(M(), [call(rand(3, 4), torch.tensor([[0, 1, 2, 3]] * 3))], refused="cannot")


@case()
def scattering_of_known_sizes():
    class M(nn.Module):
        def forward(self, x, i):
            a = torch.zeros(3, 5).scatter(1, i, x)
            b = torch.zeros(3, 5).scatter_reduce(1, i, x, "amax", include_self=False)
            return a, b, torch.zeros(5, 3).index_copy(0, i[0], x.t()), x.take_along_dim(i, 1), x[:, i[0]], x[i[:, 0], 1]

    i = torch.tensor([[0, 1, 2, 3]] * 3)
    return Odd(M(), [call(rand(3, 4), i.clamp(max=2)), call(rand(3, 4), i.flip(1).clamp(max=2))])


@case()
def einsums():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(rand(4, 5, 6))

        def forward(self, x, y):
            return (
                torch.einsum("bi,ijk,bk->bj", x, self.w, y),
                torch.einsum("ii->i", x @ x.t()),
                torch.einsum("...i->...", x),
            )

    return Odd(M(), [call(rand(2, 4), rand(2, 6)), call(rand(2, 4), rand(2, 6))])


@case(compiled=True)
def reductions_large():
    class M(nn.Module):
        def forward(self, x):
            return (
                x.sum(),
                x.mean(0),
                x.var(1),
                x.logsumexp(-1),
                x.prod(0)[:3],
                x.abs().amax(),
                x.norm(p=3),
                x.cumsum(1)[:, -1],
            )

    return Odd(M(), [call(rand(300, 1100)), call(rand(300, 1100) + 3)])


@case()
def linear_algebra():
    class M(nn.Module):
        def forward(self, x):
            square = x @ x.t() + torch.eye(4)
            lower, info = torch.linalg.cholesky_ex(square)
            inverse = torch.linalg.inv_ex(square).inverse
            return lower, info, inverse, torch.linalg.det(square), torch.linalg.solve_triangular(lower, x, upper=False)

    return Odd(M(), [call(rand(4, 6)), call(rand(4, 6))])


@case()
def linear_algebra_that_raises():
    class M(nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x @ x.t() + torch.eye(4))

    return Odd(M(), [call(rand(4, 6))], refused="checks its result")


@case()
def fourier_transform():
    class M(nn.Module):
        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x) * 0.5, n=x.shape[-1])

    return Odd(M(), [call(rand(2, 16)), call(rand(2, 16))])


@case()
def embeddings_of_every_kind():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Embedding(9, 4, padding_idx=0)
            self.b = nn.EmbeddingBag(9, 4, mode="sum")

        def forward(self, ids, offsets):
            return self.a(ids), self.b(ids, offsets), nn.functional.one_hot(ids, 9)

    return Odd(
        M(),
        [
            call(torch.tensor([1, 0, 8, 3]), torch.tensor([0, 2])),
            call(torch.tensor([2, 2, 0, 5]), torch.tensor([0, 3])),
        ],
    )


@case()
def sizes_that_depend_on_data():
    class M(nn.Module):
        def forward(self, x):
            return x[x > 0].sum() + x.nonzero().shape[0]

    return Odd(M(), [call(rand(6))], refused="depends on the values")


@case()
def quantised_weights_by_hand():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.randint(-128, 127, (6, 8), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(6, 1) / 128)

        def forward(self, x):
            return x @ (self.w.float() * self.scale).t()

    return Odd(M(), [call(rand(2, 8)), call(rand(2, 8))])


@case()
def gradient_taken_inside():
    class M(Fn):
        def forward(self, x):
            return torch.func.grad(lambda v: self.lin(v).pow(2).sum())(x)

    return Odd(M(), [call(rand(2, 6)), call(rand(2, 6))])


# --- dynamic sizes --------------------------------------------------------------------------------------------------


@case(compiled=True)
def dynamic_batch_and_sequence():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lin = nn.Embedding(9, 8), nn.Linear(8, 8)

        def forward(self, ids):
            h = self.embed(ids)
            scores = (h @ self.lin(h).transpose(1, 2)) / math.sqrt(8)
            causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
            return scores.masked_fill(~causal, -torch.inf).softmax(-1) @ h, ids.shape[0] * ids.shape[1]

    def ids(b, t):
        return call(torch.randint(0, 9, (b, t)))

    shapes = ({0: Dim("batch", max=16), 1: Dim("seq", max=64)},)
    return Odd(
        M(), [ids(2, 5), ids(3, 7), ids(2, 64), ids(16, 2)], bad=[ids(17, 5), ids(2, 65)], more={"forward": {"dynamic_shapes": shapes}}
    )  # fmt: skip


@case()
def dynamic_sizes_that_belong_together():
    class M(nn.Module):
        def forward(self, a, b):
            return torch.cat([a, b]) + 1, a * b

    shapes = ({0: Dim("n", max=32)}, {0: Dim("n", max=32)})
    return Odd(
        M(), [call(rand(4, 3), rand(4, 3)), call(rand(7, 3), rand(7, 3))], bad=[call(rand(4, 3), rand(5, 3))],
        more={"forward": {"dynamic_shapes": shapes}},
    )  # fmt: skip


@case()
def dynamic_size_that_the_model_pins():
    class M(Fn):
        def forward(self, x):
            return self.lin(x) + torch.ones(4, 6)

    return Odd(
        M(), [call(rand(4, 6))], refused="marked dynamic", more={"forward": {"dynamic_shapes": ({0: Dim("n")},)}}
    )


@case()
def buckets_of_a_sequence():
    class M(Fn):
        def forward(self, x):
            return self.lin(x).cumsum(0)

    more = {"forward": {"dynamic_shapes": ({0: Dim("seq")},), "buckets": [{"seq": 4}, {"seq": 8}]}}
    return Odd(M(), [call(rand(4, 6)), call(rand(8, 6)), call(rand(4, 6))], bad=[call(rand(5, 6))], more=more)
