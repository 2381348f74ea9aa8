"""Odd arithmetic: where vectorised code is known to differ from what torch says."""

import torch
from odd import Odd, call, case
from odd_values import rand
from torch import nn
from torch.nn import functional as F


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def of(function, *calls):
    return Odd(Of(function), [call(*args) for args in calls])


NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.5, -2.5, 0.5, 1e-40, -1e38, INF, -INF, NAN, 3.5, 1e-8, 88.0, -104.0, 7.0])


@case(compiled=True)
def arithmetic_of_edges():
    def function(x):
        return (
            x.round(), x.floor(), x.trunc(), x.frac(), x.sign(), torch.sgn(x), x * 1e-3, x // 2, x % 2, torch.fmod(x, 2),
            x.clamp(-1, 2), torch.maximum(x, x.flip(0)), torch.minimum(x, x.flip(0)), x == x, x.isinf(), x.signbit(),
            torch.fmax(x, x.flip(0)), torch.copysign(x, x.flip(0)), x.relu(), torch.nan_to_num(x), x.reciprocal(),
        )  # fmt: skip

    return of(function, (EDGES,), (EDGES.flip(0) * 3,))


@case(compiled=True)
def arithmetic_of_special_functions():
    def function(x):
        return (
            x.exp(), x.expm1(), x.log1p(), x.tanh(), x.sigmoid(), torch.erf(x), F.gelu(x), F.silu(x), F.mish(x), F.softplus(x),
            x.sin(), x.cos(), x.atan(), x.sqrt(), x.rsqrt(), torch.logaddexp(x, -x), F.logsigmoid(x), torch.special.entr(x),
            torch.atan2(x, x.flip(0)), torch.hypot(x, x.flip(0)), x.pow(3), x.abs().pow(0.3), torch.sinc(x),
        )  # fmt: skip

    small = torch.logspace(-9, 1, 40)
    return of(function, (small,), (-small,), (EDGES[:9].repeat(5)[:40],))


@case(compiled=True)
def integers_that_wrap():
    def function(a, b, c):
        return (
            a * a,
            a + 100,
            b * 3,
            b - 200,
            c * 3037000500,
            c + c,
            (b.int() << 20),
            -b,
            a.sum(),
            b.sum(),
            a.float().mean(),
        )

    first = (
        torch.arange(-128, 128, 5).to(torch.int8),
        torch.arange(0, 256, 5).to(torch.uint8),
        torch.arange(52) * (1 << 57) + 3,
    )
    return of(function, first, tuple(t.flip(0) for t in first))


@case(compiled=True)
def reals_divided_downwards():
    def function(a, b):
        return (
            a // b,
            b // a,
            a // 0.1,
            torch.div(a, b, rounding_mode="floor"),
            a.double() // 0.3,
            7 // b,
        )

    a = torch.cat([torch.arange(-20, 21) / 10, torch.tensor([INF, -INF, NAN, 1e30])])
    b = torch.cat([torch.tensor([0.1, -0.1, 0.3, 2.0, -7.0, 0.0, -0.0, 1e-3, INF]).repeat(5)])
    return of(function, (a, b), (b, a))


@case()
def casts_that_round():
    def function(x):
        half = x.half()
        return half.float(), (half * half).float(), x.bfloat16().double(), half // 0.3, x.double().float() - x

    return of(function, (rand(40) * 1e3,), (torch.tensor([1e30, 1e-9, 65519.0, 1 / 3] * 10),))


@case()
def integers_divided_and_shifted():
    def function(a, b):
        return (
            a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc"), a / b, a >> 1, a.abs(), a.float() / 3,
            torch.gcd(a, b), a.bitwise_not(), torch.bitwise_xor(a, b), a.clamp(-3, 3), a**2, torch.where(a > b, a, b).double(),
        )  # fmt: skip

    a = torch.arange(-9, 9)
    return of(function, (a, torch.full_like(a, -4)), (a.flip(0), torch.arange(1, 19)))


@case()
def booleans_counted():
    def function(x):
        flag = x > 0
        return (
            flag.sum(),
            flag.cumsum(0),
            flag.any(0),
            flag.all(1),
            flag ^ flag.flip(0),
            flag * x,
            flag + flag,
            flag.float().mean(),
            ~flag,
        )

    return of(function, (rand(5, 7),), (rand(5, 7),))


@case()
def statistics_of_few():
    def function(x, empty):
        return (
            x.var(), x.std(1), x.var(1, correction=0), empty.mean(), empty.sum(0), empty.prod(), x.median(), x.quantile(0.3),
            x.logsumexp(0), x.cumprod(0), torch.cummax(x, 0).values, torch.logcumsumexp(x, 0), x.diff(dim=0),
        )  # fmt: skip

    return of(function, (rand(4, 1), rand(0, 3)), (rand(4, 1), rand(0, 3)))


@case()
def ties_and_order():
    def function(x):
        return (
            x.argmax(),
            x.argmin(),
            x.max(0).indices,
            x.sort(stable=True).indices,
            x.argsort(descending=True, stable=True),
            x.mode().values,
        )

    return of(function, (torch.tensor([2.0, 1, 2, 1, 0, 0, 2]),), (torch.tensor([1.0, NAN, 1, NAN, 0, 1, 0]),))


@case(compiled=True)
def images_resampled():
    def function(x, grid):
        return (
            F.interpolate(x, size=(5, 9), mode="bicubic"), F.interpolate(x, scale_factor=0.5, mode="nearest-exact"),
            F.grid_sample(x, grid, align_corners=False), F.unfold(x, 2, stride=2), F.pad(x, (1, 2, 0, 1), mode="reflect"),
            F.pad(x, (2, 1, 1, 1), mode="circular"), F.pad(x, (-1, 1), value=3.0), x.roll((1, -2), (2, 3)), x.rot90(1, (2, 3)),
            F.adaptive_max_pool2d(x, (2, 3)), F.lp_pool2d(x.abs(), 2, 2), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            F.local_response_norm(x, 2), F.pixel_unshuffle(x, 2), F.fold(F.unfold(x, 2), (6, 6), 2),
        )  # fmt: skip

    return of(function, (rand(1, 2, 6, 6), rand(1, 4, 4, 2).tanh()), (rand(1, 2, 6, 6), rand(1, 4, 4, 2) * 2))


@case()
def windows_and_grids():
    def function(x):
        rows, columns = torch.meshgrid(torch.arange(3.0), torch.linspace(0, 1, 4), indexing="ij")
        return (
            x.unfold(0, 3, 2), x.tril(-1), x.triu(1), x.diagonal(1), torch.diag_embed(x[0]), rows * columns, torch.eye(3, 4),
            torch.bucketize(x, torch.tensor([-1.0, 0, 1])), torch.searchsorted(torch.tensor([-1.0, 0, 1]), x, right=True),
            x.repeat(2, 1), x.repeat_interleave(2, 0), torch.tril_indices(3, 3), x[::2, [0, 2]], x[None, ..., -1], x.flip(0, 1),
            torch.cat([x, torch.ones(1, 5, dtype=torch.long)]), torch.stack([x.sum(), x.max()]), torch.cdist(x, x), x.movedim(0, 1),
        )  # fmt: skip

    return of(function, (rand(7, 5),), (rand(7, 5),))


@case()
def losses_and_distances():
    def function(x, y, label):
        return (
            F.cross_entropy(x, label), F.mse_loss(x, y), F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
            F.cosine_similarity(x, y), F.smooth_l1_loss(x, y), F.nll_loss(x.log_softmax(1), label, ignore_index=1),
            F.pairwise_distance(x, y), F.binary_cross_entropy_with_logits(x, y.sigmoid()), F.normalize(x, p=1),
        )  # fmt: skip

    return of(
        function,
        (rand(4, 5), rand(4, 5), torch.tensor([0, 1, 4, 2])),
        (rand(4, 5), rand(4, 5), torch.tensor([3, 3, 0, 1])),
    )


@case()
def half_precision_accumulates():
    def function(x):
        return x.sum(), x.mean(1), x.softmax(-1), F.layer_norm(x, [64]), x @ x.t(), x.cumsum(0), x.norm(dim=1), x.var(0)

    return of(function, ((rand(96, 64) * 3).half(),), (rand(96, 64).half() + 4,))


@case()
def attention_in_every_form():
    def function(q, k, v, mask):
        return (
            F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True),
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask), F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True),
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask.logical_not().float() * -1e9, scale=0.3),
        )  # fmt: skip

    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    return of(function, *((rand(1, 2, 5, 8), rand(1, 2, 5, 8), rand(1, 2, 5, 8), m) for m in (mask, mask.t() | mask)))
