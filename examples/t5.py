"""An encoder-decoder in two entries: `encode` once, `decode` for each longer answer, over shared embeddings.

spyre-build submit examples/t5.py:build --tag t5:1
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spyre_build import Entry, ModelSpec

VOCABULARY = 400


class Translator(nn.Module):
    """transformers' T5 with its two halves callable apart."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        config = T5Config(
            vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=3, num_decoder_layers=3, num_heads=4,
            decoder_start_token_id=0, use_cache=False,
        )  # fmt: skip
        self.t5 = T5ForConditionalGeneration(config)

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """States (B, S, width) of a sentence."""
        return self.t5.encoder(input_ids=ids, attention_mask=mask).last_hidden_state

    def decode(self, answer: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """Scores (B, T, vocabulary) of what follows each token of an answer."""
        hidden = self.t5.decoder(
            input_ids=answer, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=False
        ).last_hidden_state
        return self.t5.lm_head(hidden)


def build() -> ModelSpec:
    """Sentences of 24 tokens, answers of 8."""
    torch.manual_seed(0)
    model = Translator().eval().requires_grad_(False)
    ids = torch.arange(24)[None] * 17 % VOCABULARY
    mask = (torch.arange(24) < 20).long()[None]
    answer = torch.arange(8)[None] * 5 % VOCABULARY
    return ModelSpec(
        model,
        entries={
            "encode": Entry((ids, mask), method="encode"),
            "decode": Entry((answer, torch.randn(1, 24, 64), mask), method="decode"),
        },
        name="t5",
    )
