"""A residual network with batch norm, as for small images.

spyre-build submit examples/resnet.py:build --tag resnet:1
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spyre_build import Entry, ModelSpec


class Block(nn.Module):
    """Two convolutions beside a shortcut, which is a convolution where the size changes."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """One residual block."""
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, three stages of equal blocks, and a classifier."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64), depth: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
        blocks: list[nn.Module] = []
        before = widths[0]
        for stage, width in enumerate(widths):
            for number in range(depth):
                blocks.append(Block(before, width, 2 if stage and not number else 1))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """Scores (B, classes) of images (B, 3, H, W)."""
        x = self.blocks(self.stem(pixels))
        return self.head(x.mean((2, 3)))


def build() -> ModelSpec:
    """Twenty layers, with statistics as training would leave them."""
    torch.manual_seed(0)
    model = ResNet().eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 1.5)
    return ModelSpec(model, {"forward": Entry((torch.randn(2, 3, 32, 32),))}, name="resnet")
