"""IBM Granite 3.3 8B by its architecture alone: no checkpoint is read, and its parameters take no memory.

    spyre-build submit examples/granite.py:build --weights external --tag granite-8b:1

Forty layers are a handful of fragments. Weights come at load: `spyre_build.load("granite-8b:1", weights=directory)`
with the published safetensors, whose names are those of transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spyre_build import Entry, ModelSpec

GRANITE_3_3_8B: dict[str, Any] = {
    "vocab_size": 49159,
    "hidden_size": 4096,
    "intermediate_size": 12800,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    # Granite scales where Llama does not: tokens in, scores, residuals, logits out.
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.0078125,
    "residual_multiplier": 0.22,
    "logits_scaling": 16.0,
}
TINY = GRANITE_3_3_8B | {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


class Granite(nn.Module):
    """transformers' Granite, its logits alone."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        from transformers import GraniteConfig, GraniteForCausalLM

        whole = GraniteForCausalLM(GraniteConfig(**config, use_cache=False))
        self.model, self.lm_head = whole.model, whole.lm_head
        self.scaling = config["logits_scaling"]

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Logits (B, T, vocabulary) of what follows each token."""
        hidden = self.model(input_ids=input_ids, use_cache=False).last_hidden_state
        return self.lm_head(hidden) / self.scaling


def spec(config: dict[str, Any], name: str, tokens: int, dtype: torch.dtype) -> ModelSpec:
    """A configuration as a model with one entry of `tokens` tokens."""
    torch.manual_seed(0)
    model = Granite(config).eval().requires_grad_(False).to(dtype)
    ids = torch.arange(tokens)[None] * 37 % config["vocab_size"]
    return ModelSpec(model, {"forward": Entry((ids,))}, name=name)


def build() -> ModelSpec:
    """The real one, for `--weights external` or `none`."""
    return spec(GRANITE_3_3_8B, "granite-8b", 512, torch.bfloat16)


def tiny() -> ModelSpec:
    """The same forty layers, each small: for tests, with random weights."""
    return spec(TINY, "granite-tiny", 16, torch.float32)
