"""A BERT encoder from its configuration, with an attention mask and two outputs.

spyre-build submit examples/bert.py:build --tag bert:1
"""

from __future__ import annotations

import torch

from spyre_build import Entry, ModelSpec


def build() -> ModelSpec:
    """Six layers with random weights; sequences of 32 and 128 tokens, one static program each."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000, hidden_size=128, intermediate_size=512, num_hidden_layers=6, num_attention_heads=4
    )
    model = BertModel(config).eval().requires_grad_(False)
    ids = torch.arange(32)[None] * 31 % 1000
    mask = (torch.arange(32) < 24).long()[None]
    seq = torch.export.Dim("seq")
    entry = Entry(
        (),
        {"input_ids": ids, "attention_mask": mask},
        dynamic_shapes={"input_ids": {1: seq}, "attention_mask": {1: seq}},
        buckets=[{"seq": 32}, {"seq": 128}],
    )
    return ModelSpec(model, {"forward": entry}, name="bert")
