"""Odd state: buffers that are written, views that are written through, entries that share, attributes."""

import torch
from odd import Odd, call, case
from odd_values import Fn, rand
from torch import nn


@case(compiled=True)
def buffer_counts_calls():
    class M(Fn):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            self.count += 1
            self.mean.lerp_(x.mean(0), 0.25)
            return self.lin(x) - self.mean, self.count, self.count.float() / 2

    class Forgets(M):
        def forward(self, x):
            out, count, half = super().forward(x)
            self.count.zero_()
            return out, count, half

    decoy = Forgets()
    module = M()
    decoy.load_state_dict(module.state_dict())
    return Odd(module, [call(rand(3, 6)) for _ in range(4)], decoy=decoy, stateful=True)


@case(compiled=True)
def buffer_written_by_slices():
    class M(Fn):
        def __init__(self):
            super().__init__()
            self.register_buffer("ring", torch.zeros(4, 6), persistent=False)

        def forward(self, x, place):
            self.ring[place] = self.lin(x)
            self.ring[:, 0] += 1
            self.ring[1:3, 2:4].mul_(0.5)
            return self.ring.sum(0), self.ring[place]

    return Odd(M(), [call(rand(1, 6), torch.tensor([i % 4])) for i in range(5)], stateful=True)


@case()
def buffer_written_where():
    class M(Fn):
        def __init__(self):
            super().__init__()
            self.register_buffer("best", torch.full((6,), -1.0))

        def forward(self, x):
            h = self.lin(x)
            self.best.copy_(torch.where(h > self.best, h, self.best))
            return self.best * 1

    return Odd(M(), [call(rand(6)) for _ in range(4)], stateful=True)


@case()
def buffer_read_before_and_after():
    class M(Fn):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.zeros(2, 6))

        def forward(self, x):
            before = self.last * 1
            self.last.copy_(x)
            middle = self.lin(self.last)
            self.last.add_(middle)
            return before, middle, self.last

    return Odd(M(), [call(rand(2, 6)) for _ in range(3)], stateful=True)


@case()
def buffer_returned_itself():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            self.total += x
            return self.total

    return Odd(M(), [call(rand(3)) for _ in range(3)], stateful=True)


@case()
def buffers_shared_by_two_modules():
    class Half(nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.register_buffer("shared", shared)

        def forward(self, x):
            self.shared.add_(x)
            return self.shared * 2

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            shared = torch.zeros(4)
            self.a, self.b = Half(shared), Half(shared)

        def forward(self, x):
            return self.a(x) + self.b(x * 3)

    return Odd(M(), [call(rand(4)) for _ in range(3)], stateful=True)


@case()
def parameter_written():
    class M(Fn):
        def forward(self, x):
            with torch.no_grad():
                self.lin.bias.mul_(0.5)
            return self.lin(x)

    return Odd(M(), [call(rand(2, 6)) for _ in range(3)], stateful=True)


@case(compiled=True)
def entries_share_state_and_weights():
    class M(Fn):
        def __init__(self):
            super().__init__()
            self.register_buffer("memory", torch.zeros(6))

        def write(self, x):
            self.memory.add_(self.lin(x).sum(0))
            return self.memory.norm()

        def forward(self, x):
            return self.lin(x) + self.memory

    calls = [
        call(rand(2, 6)),
        call(rand(3, 6), entry="write"),
        call(rand(2, 6)),
        call(rand(3, 6), entry="write"),
        call(rand(2, 6)),
    ]
    return Odd(M(), calls, more={"write": {"method": "write"}}, stateful=True)


@case()
def method_that_is_not_forward():
    class M(Fn):
        def embed(self, x, *, normalise):
            h = self.lin(x)
            return h / h.norm(dim=-1, keepdim=True) if normalise else h

    return Odd(
        M(),
        [call(rand(2, 6), normalise=True, entry="embed"), call(rand(2, 6), normalise=True, entry="embed")],
        more={"embed": {"method": "embed"}},
    )


@case()
def attribute_tensor_not_registered():
    class M(Fn):
        def __init__(self):
            super().__init__()
            self.table = torch.arange(12.0).reshape(2, 6)
            self.more = [torch.ones(6), {"x": 1}]
            self.lookup = {"shift": torch.full((6,), 0.5)}

        def forward(self, x):
            return self.lin(x) * self.table[1] + self.more[0] - self.lookup["shift"]

    return Odd(M(), [call(rand(2, 6)), call(rand(2, 6))])


@case()
def attribute_cached_when_first_used():
    class M(Fn):
        def __init__(self):
            super().__init__()
            self.cached = None

        def forward(self, x):
            if self.cached is None:
                self.cached = torch.arange(6.0)
            return self.lin(x) + self.cached

    return Odd(M(), [call(rand(2, 6))], refused="cached")


@case()
def attribute_that_counts_in_python():
    class M(Fn):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.lin(x) * self.calls

    return Odd(M(), [call(rand(2, 6))], refused="calls")


@case()
def view_of_an_argument_written():
    class M(nn.Module):
        def forward(self, x):
            x[:, 0] += 1
            x.view(-1)[3] = 7
            x.t()[1].mul_(2)
            return x.sum()

    return Odd(M(), [call(rand(3, 4)), call(rand(3, 4))])


@case(compiled=True)
def view_of_a_temporary_written():
    class M(Fn):
        def forward(self, x):
            h = self.lin(x).clone()
            h[:, ::2] = 0
            h[0] += x[0]
            left, right = h.chunk(2, -1)
            left.add_(right)
            h.diagonal().fill_(9)
            return h, left

    return Odd(M(), [call(rand(4, 6)), call(rand(4, 6))])


@case()
def index_put_accumulates():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("bins", torch.zeros(5))

        def forward(self, where, what):
            self.bins.index_put_((where,), what, accumulate=True)
            return self.bins.scatter_add(0, where, what), torch.zeros(5).index_add(0, where, what)

    def one():
        return call(torch.tensor([0, 3, 3, 1, 0, 3]), rand(6))

    return Odd(M(), [one(), one(), one()], stateful=True)


@case()
def recurrent_state_kept_between_calls():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(4, 4)
            self.register_buffer("hidden", torch.zeros(1, 4))

        def forward(self, x):
            self.hidden.copy_(self.cell(x, self.hidden))
            return self.hidden * 1

    return Odd(M(), [call(rand(1, 4)) for _ in range(4)], stateful=True)


@case()
def batch_norm_in_evaluation():
    module = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.InstanceNorm1d(4, affine=True)).eval()
    with torch.no_grad():
        module[1].running_mean.uniform_(-1, 1)
        module[1].running_var.uniform_(0.5, 2)
    return Odd(module, [call(rand(2, 3, 9)), call(rand(2, 3, 9))])


@case()
def batch_norm_in_training():
    return Odd(nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)), [call(rand(2, 3, 9))], refused="training mode")


@case()
def noise_drawn_in_forward():
    class M(Fn):
        def forward(self, x):
            return self.lin(x) + torch.randn_like(x)

    return Odd(M(), [call(rand(2, 6))], refused="random")
