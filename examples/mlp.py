"""The smallest model worth compiling: three layers and any batch up to 256.

spyre-build submit examples/mlp.py:build --tag mlp:1
"""

from __future__ import annotations

import torch
from torch import nn

from spyre_build import Entry, ModelSpec


def build() -> ModelSpec:
    """What `submit` takes: a classifier whose batch is dynamic."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 128),
        nn.GELU(),
        nn.LayerNorm(128),
        nn.Linear(128, 128),
        nn.GELU(),
        nn.Linear(128, 10),
        nn.Softmax(-1),
    )
    batch = torch.export.Dim("batch", max=256)
    example = torch.randn(4, 64)
    return ModelSpec(model.eval(), {"forward": Entry((example,), dynamic_shapes={"input": {0: batch}})}, name="mlp")
