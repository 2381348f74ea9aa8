"""A mixture of experts: a router sends every token to two of eight, and all experts are one fragment.

spyre-build submit examples/moe.py:build --tag moe:1
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from spyre_build import Entry, ModelSpec


class Expert(nn.Module):
    """A gated feed-forward part."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """All tokens."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Every expert sees every token and counts by its share, so that no shape depends on the router's choice."""

    def __init__(self, width: int = 64, inner: int = 128, experts: int = 8, chosen: int = 2) -> None:
        super().__init__()
        self.chosen = chosen
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Expert(width, inner) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (T, width)."""
        h = self.norm(x)
        scores = self.router(h).softmax(-1)
        share, index = scores.topk(self.chosen, dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, index, share / share.sum(-1, keepdim=True))
        for number, expert in enumerate(self.experts):
            x = x + weights[:, number : number + 1] * expert(h)
        return x


def build() -> ModelSpec:
    """Four layers over 32 tokens."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Mixture() for _ in range(4))).eval().requires_grad_(False)
    return ModelSpec(model, {"forward": Entry((torch.randn(32, 64),))}, name="moe")
