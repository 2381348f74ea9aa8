"""A small Llama that generates: a prompt in one call, then token by token, over a key/value cache in its buffers.

    spyre-build submit examples/llama.py:build --tag llama:1

Both entries are the same forward at two shapes. They share weights and the cache: what `prefill` writes, `decode`
reads. A loaded copy owns its cache; another copy starts with an empty one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from spyre_build import Entry, ModelSpec

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Config:
    """Sizes of a model; `longest` is the number of tokens its cache holds, `prompt` that of a first call."""

    vocab: int = 512
    width: int = 128
    inner: int = 352
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    longest: int = 64
    prompt: int = 16
    theta: float = 10000.0


class Attention(nn.Module):
    """Grouped-query attention that keeps the keys and values of every call."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = config.heads, config.kv_heads, config.width // config.heads
        self.q = nn.Linear(config.width, config.heads * self.size, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * self.size, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * self.size, bias=False)
        self.o = nn.Linear(config.heads * self.size, config.width, bias=False)
        empty = torch.zeros(1, config.kv_heads, config.longest, self.size)
        self.register_buffer("keys", empty, persistent=False)
        self.register_buffer("values", empty.clone(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attends to everything written up to each token's own position."""
        q, k, v = (project(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for project in (self.q, self.k, self.v))
        self.keys.index_copy_(2, positions, _rotate(k, cos, sin))
        self.values.index_copy_(2, positions, v)
        seen = torch.arange(self.keys.shape[2], device=x.device) <= positions[:, None]
        repeat = self.heads // self.kv_heads
        keys, values = self.keys.repeat_interleave(repeat, 1), self.values.repeat_interleave(repeat, 1)
        out = functional.scaled_dot_product_attention(_rotate(q, cos, sin), keys, values, attn_mask=seen)
        return self.o(out.transpose(1, 2).flatten(2))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(nn.Module):
    """Attention and a gated feed-forward part, each after a norm and beside a residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.before_attention = nn.RMSNorm(config.width, eps=1e-6)
        self.attention = Attention(config)
        self.before_inner = nn.RMSNorm(config.width, eps=1e-6)
        self.gate = nn.Linear(config.width, config.inner, bias=False)
        self.up = nn.Linear(config.width, config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.width, bias=False)

    def forward(self, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """One layer."""
        x = x + self.attention(self.before_attention(x), positions, cos, sin)
        h = self.before_inner(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """A decoder for one sequence; call `reset` before the next, or load another copy."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self.head.weight = self.embedding.weight
        size = config.width // config.heads
        frequencies = config.theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Logits for what follows each of `ids` (1, T), which stand at `positions` (T,)."""
        angles = positions[:, None] * self.frequencies
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos(), angles.sin()
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, positions, cos, sin)
        return self.head(self.norm(x))

    def reset(self) -> None:
        """Empties the cache."""
        for block in self.blocks:
            block.attention.keys.zero_()
            block.attention.values.zero_()


def generate(prefill: Step, decode: Step, prompt: list[int], new: int, config: Config | None = None) -> list[int]:
    """The `new` most likely tokens after a prompt, with eager's module or a loaded model's entries.

    Args:
        prefill: takes `config.prompt` ids; shorter prompts are padded behind, where nothing looks at them.
        decode: takes one id.
        prompt: at least one token, at most `config.prompt`.
        new: number of tokens.
        config: sizes that the model was made with.

    Raises:
        ValueError: the prompt or the whole does not fit.
    """
    config = config or Config()
    if not 0 < len(prompt) <= config.prompt or len(prompt) + new > config.longest:
        raise ValueError(
            f"1 to {config.prompt} tokens and {config.longest} in all fit, but {len(prompt)} and {new} came"
        )
    padded = prompt + [0] * (config.prompt - len(prompt))
    with torch.no_grad():
        logits = prefill(torch.tensor([padded]), torch.arange(config.prompt))[0, len(prompt) - 1]
        tokens: list[int] = []
        for place in range(len(prompt), len(prompt) + new):
            tokens.append(int(logits.argmax()))
            logits = decode(torch.tensor([tokens[-1:]]), torch.tensor([place]))[0, -1]
    return tokens


def make(config: Config | None = None, seed: int = 0) -> Llama:
    """The module, with random weights that depend on the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Llama(config or Config())
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        # Small beside what the layers add, or the head that is tied to it would repeat the last token for ever.
        nn.init.normal_(model.embedding.weight, std=0.02)
    return model.eval().requires_grad_(False)


def spec(config: Config) -> ModelSpec:
    """The model of a configuration with its two entries."""
    ids = torch.arange(config.prompt)[None] * 7 % config.vocab
    return ModelSpec(
        make(config),
        entries={
            "prefill": Entry((ids, torch.arange(config.prompt))),
            "decode": Entry((torch.tensor([[3]]), torch.tensor([config.prompt]))),
        },
        name="llama",
    )


def build() -> ModelSpec:
    """What `submit` takes."""
    return spec(Config())
