"""Decoder-only language models: BabyGPT with one layer of attention, and GPT.

The model has its own mask, causal unless another is given, as in `GPT(config, window(back=63))`;
the caller passes padding only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from maskwright.core.atoms import causal
from maskwright.errors import ArgumentError
from maskwright.models.attention import Head, KVCache, NaiveMultiHeadAttention
from maskwright.models.sampling import SamplingParams, sample
from maskwright.models.transformer import Transformer, check_length, init_weights, tied_lm_head

if TYPE_CHECKING:
    from maskwright.core.expr import Mask


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT.

    Args:
        vocab_size: Number of tokens in the vocabulary.
        block_size: Maximum sequence length; no limit with `position="alibi"` or `"t5"`.
        n_layer: Number of blocks.
        n_head: Number of attention heads; must divide `n_embd`.
        n_embd: Size of the embeddings.
        dropout: Dropout probability.
        position: How positions are encoded: "learned" position embeddings, as in GPT-2; "alibi", a
            bias of the scores that falls linearly with the distance; or "t5", a learned bias per
            bucket of distances.

    >>> from maskwright.models.gpt import GPTConfig
    >>> GPTConfig(vocab_size=65, block_size=16, n_embd=32).position
    'learned'
    """

    vocab_size: int
    block_size: int = 128
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    dropout: float = 0.0
    position: str = "learned"


class BabyGPT(nn.Module):
    """The smallest GPT: embeddings, one attention layer, and a linear layer to the logits.

    It has no residuals, no layer norm and no MLP, and learned position embeddings. `n_head=1` uses a
    single `Head`, otherwise `NaiveMultiHeadAttention`; `n_layer` and `dropout` are ignored.

    >>> import torch
    >>> from maskwright.models.gpt import BabyGPT, GPTConfig
    >>> model = BabyGPT(GPTConfig(vocab_size=65, block_size=16, n_head=1, n_embd=32))
    >>> model(torch.randint(65, (2, 10))).shape
    torch.Size([2, 10, 65])
    >>> model.generate(torch.zeros(1, 1, dtype=torch.long), max_new_tokens=3).shape
    torch.Size([1, 4])
    """

    def __init__(self, config: GPTConfig, mask: Mask | None = None) -> None:
        super().__init__()
        if config.position != "learned":
            raise ArgumentError(
                f'BabyGPT: position="{config.position}", but it has learned position embeddings. '
                'Use GPT, or position="learned".'
            )
        self.config, self.mask = config, causal() if mask is None else mask
        n_embd, n_head = config.n_embd, config.n_head
        self.token_embedding = nn.Embedding(config.vocab_size, n_embd)
        self.position_embedding = nn.Embedding(config.block_size, n_embd)
        self.attn: Head | NaiveMultiHeadAttention
        self.attn = Head(n_embd, n_embd) if n_head == 1 else NaiveMultiHeadAttention(n_embd, n_head)
        self.lm_head = nn.Linear(n_embd, config.vocab_size)

    def forward(self, ids: torch.Tensor, padding: Mask | None = None) -> torch.Tensor:
        """Logits of the next token at every position: (B, T) → (B, T, vocab_size)."""
        T = ids.shape[1]
        check_length(T, self.config.block_size)
        x = self.token_embedding(ids)  # (B, T, C)
        x = x + self.position_embedding(torch.arange(T, device=ids.device))  # (B, T, C)
        mask = self.mask if padding is None else self.mask & padding
        return self.lm_head(self.attn(x, mask))  # (B, T, vocab_size)

    @torch.no_grad()
    def generate(
        self,
        ids: torch.Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> torch.Tensor:
        """Appends `max_new_tokens` sampled tokens: (B, T) → (B, T + max_new_tokens)."""
        params = SamplingParams(temperature, top_k, top_p, seed)
        generator = params.generator(ids.device)
        for _ in range(max_new_tokens):
            logits = self(ids[:, -self.config.block_size :])[:, -1]  # (B, vocab_size)
            ids = torch.cat([ids, sample(logits, params, generator)[:, None]], dim=1)
        return ids


class GPT(Transformer):
    """A decoder-only Transformer with the architecture of GPT-2: pre-LN blocks, tied embeddings.

    Args:
        config: Sizes of the model.
        mask: Mask of all layers; causal by default.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.gpt import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=65, block_size=32, n_layer=2, n_head=2, n_embd=32))
    >>> model(torch.randint(65, (2, 10)), padding=mw.padding(lengths=[7, 10])).shape
    torch.Size([2, 10, 65])
    >>> model.generate(torch.zeros(1, 3, dtype=torch.long), max_new_tokens=5, top_k=10).shape
    torch.Size([1, 8])

    With ALiBi, a sequence may be longer than those of training:

    >>> model = GPT(GPTConfig(vocab_size=65, block_size=32, n_layer=2, position="alibi"))
    >>> model(torch.randint(65, (1, 100))).shape
    torch.Size([1, 100, 65])
    """

    def __init__(self, config: GPTConfig, mask: Mask | None = None) -> None:
        super().__init__(config.vocab_size, config)
        self.config, self.mask = config, causal() if mask is None else mask
        self.lm_head = tied_lm_head(self.token_embedding)
        init_weights(self)

    def forward(
        self,
        ids: torch.Tensor,
        padding: Mask | None = None,
        *,
        positions: torch.Tensor | None = None,
        kv_caches: list[KVCache] | None = None,
    ) -> torch.Tensor:
        """Logits of the next token at every position.

        Args:
            ids: Token ids, (B, T). With `kv_caches`, they follow the tokens in the caches.
            padding: Mask of the real tokens, combined with the model's mask by `&`. With
                `kv_caches` it covers the cached tokens too.
            positions: Positions of `ids`, (B, T) or (T,); 0, 1, 2, ... by default. Only with
                `position="learned"`.
            kv_caches: The caches of `new_kv_caches()`, one per layer, updated in place.

        Returns:
            (B, T, vocab_size).

        Raises:
            ArgumentError: There are more tokens than `block_size`, or `positions` are given for a
                model without position embeddings.
        """
        mask = self.mask if padding is None else self.mask & padding
        x = self.hidden_states(ids, mask, positions=positions, kv_caches=kv_caches)  # (B, T, C)
        return self.lm_head(x)  # (B, T, vocab_size)

    def new_kv_caches(self) -> list[KVCache]:
        """Empty KV caches, one per layer.

        >>> import torch
        >>> from maskwright.models.gpt import GPT, GPTConfig
        >>> model = GPT(GPTConfig(vocab_size=65, n_layer=2))
        >>> caches, ids = model.new_kv_caches(), torch.randint(65, (1, 4))
        >>> prefill, step = model(ids[:, :3], kv_caches=caches), model(ids[:, 3:], kv_caches=caches)
        >>> step.shape, len(caches), len(caches[0])
        (torch.Size([1, 1, 65]), 2, 4)
        """
        return [KVCache() for _ in self.blocks]

    @torch.no_grad()
    def generate(
        self,
        ids: torch.Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop_token: int | None = None,
        mask: Mask | None = None,
    ) -> torch.Tensor:
        """Appends up to `max_new_tokens` sampled tokens, one at a time with KV caches.

        With learned position embeddings, generation continues from the last `block_size // 2`
        tokens when `block_size` is reached. Other models keep all tokens in their caches.

        Args:
            ids: The prompts, (B, T).
            max_new_tokens: Maximum number of tokens to append.
            temperature: Divides the logits; 0 chooses the most likely token.
            top_k: Sample from the `top_k` most likely tokens only.
            top_p: Sample from the fewest tokens whose probabilities add up to `top_p` only.
            seed: Seed of the random numbers.
            stop_token: A row that has produced this token is filled up with it; generation ends
                when all rows have.
            mask: Combined with the model's mask by `&`; it must fit every length, as
                `window(back=63)` does. Positions are those of the tokens in the KV caches, which
                begin again at 0 when `block_size` is reached.

        Returns:
            Prompts and new tokens, (B, up to T + max_new_tokens).
        """
        block_size, is_limited = self.config.block_size, self.position == "learned"
        if is_limited:
            check_length(ids.shape[1], block_size)
        params = SamplingParams(temperature, top_k, top_p, seed)
        generator = params.generator(ids.device)
        done = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
        kv_caches, new, past = self.new_kv_caches(), ids, 0
        for _ in range(max_new_tokens):
            if is_limited and past + new.shape[1] > block_size:
                kv_caches, new, past = self.new_kv_caches(), ids[:, -max(block_size // 2, 1) :], 0
            logits = self(new, mask, kv_caches=kv_caches)[:, -1]  # (B, vocab_size)
            past += new.shape[1]
            new = sample(logits, params, generator)[:, None]  # (B, 1)
            if stop_token is not None:
                new = new.masked_fill(done[:, None], stop_token)
                done |= new[:, 0] == stop_token
            ids = torch.cat([ids, new], dim=1)
            if bool(done.all()):
                break
        return ids
