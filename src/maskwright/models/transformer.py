"""Transformer blocks, the stack of them that all models share, and the initial weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from maskwright.errors import ArgumentError
from maskwright.models.attention import CrossKVCache, KVCache, MultiHeadAttention

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.models.gpt import GPTConfig
    from maskwright.models.seq2seq import Seq2SeqConfig

INIT_STD: Final = 0.02  # standard deviation of initial weights, as in GPT-2


class MLP(nn.Module):
    """Two linear layers with a GELU in between and a hidden size of 4 C: (B, T, C) → (B, T, C).

    >>> import torch
    >>> from maskwright.models.transformer import MLP
    >>> MLP(n_embd=16)(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, n_embd: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc = nn.Linear(n_embd, 4 * n_embd)
        self.gelu = nn.GELU(approximate="tanh")
        self.proj = nn.Linear(4 * n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applied to every token by itself."""
        return self.dropout(self.proj(self.gelu(self.fc(x))))


class Block(nn.Module):
    """Pre-LN Transformer block: self-attention, then MLP, both with residuals.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.transformer import Block
    >>> Block(n_embd=16, n_head=2)(torch.randn(2, 5, 16), mw.causal()).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, n_embd: int, n_head: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = MultiHeadAttention(n_embd, n_head, dropout=dropout)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = MLP(n_embd, dropout)

    def forward(
        self, x: torch.Tensor, mask: Mask | BoundMask, kv_cache: KVCache | None = None
    ) -> torch.Tensor:
        """(B, T, C) → (B, T, C)."""
        x = x + self.attn(self.ln_1(x), mask, kv_cache=kv_cache)
        return x + self.mlp(self.ln_2(x))


class CrossBlock(Block):
    """Decoder block: self-attention, cross-attention to a memory, then MLP.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.transformer import CrossBlock
    >>> x, cross = torch.randn(2, 5, 16), (torch.randn(2, 7, 16), mw.everything())
    >>> CrossBlock(n_embd=16, n_head=2)(x, mw.causal(), None, *cross).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, n_embd: int, n_head: int, dropout: float = 0.0) -> None:
        super().__init__(n_embd, n_head, dropout)
        self.ln_cross = nn.LayerNorm(n_embd)
        self.cross_attn = MultiHeadAttention(n_embd, n_head, dropout=dropout)

    def forward(  # type: ignore[override]
        self,
        x: torch.Tensor,
        mask: Mask | BoundMask,
        kv_cache: CrossKVCache | None,
        memory: torch.Tensor,
        memory_mask: Mask | BoundMask,
    ) -> torch.Tensor:
        """(B, T, C) and a memory (B, S, C) → (B, T, C)."""
        x = x + self.attn(self.ln_1(x), mask, kv_cache=kv_cache)
        cross_cache = None if kv_cache is None else kv_cache.cross
        x = x + self.cross_attn(self.ln_cross(x), memory_mask, memory=memory, kv_cache=cross_cache)
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """Token and position embeddings, blocks, and a final layer norm: (B, T) → (B, T, C).

    GPT and Bert add a head to it; Seq2Seq has one as its encoder and one as its decoder.

    Args:
        vocab_size: Number of tokens in the vocabulary.
        config: The other sizes.
        block: `Block`, or `CrossBlock` for a decoder with cross-attention.
    """

    def __init__(
        self, vocab_size: int, config: GPTConfig | Seq2SeqConfig, block: type[Block] = Block
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, config.n_embd)
        self.position_embedding = nn.Embedding(config.block_size, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            block(config.n_embd, config.n_head, config.dropout) for _ in range(config.n_layer)
        )
        self.ln_f = nn.LayerNorm(config.n_embd)

    def hidden_states(
        self,
        ids: torch.Tensor,
        mask: Mask,
        *cross: Any,
        positions: torch.Tensor | None = None,
        kv_caches: list[Any] | None = None,
    ) -> torch.Tensor:
        """Output of the last block after the layer norm.

        Args:
            ids: Token ids, (B, T). With `kv_caches`, they follow the tokens in the caches.
            mask: Mask of self-attention, the same in all layers.
            *cross: The memory (B, S, C) and its mask, with cross-attention.
            positions: Positions of `ids`, (B, T) or (T,); 0, 1, 2, ... by default.
            kv_caches: One KV cache per block, updated in place.

        Returns:
            (B, T, C).

        Raises:
            ArgumentError: There are more tokens than `block_size`.
        """
        past, T = len(kv_caches[0]) if kv_caches else 0, ids.shape[1]
        check_length(past + T, self.position_embedding.num_embeddings)
        if positions is None:
            positions = torch.arange(past, past + T, device=ids.device)
        x = self.token_embedding(ids) + self.position_embedding(positions)  # (B, T, C)
        x = self.dropout(x)
        for n, block in enumerate(self.blocks):
            x = block(x, mask, kv_caches[n] if kv_caches else None, *cross)  # (B, T, C)
        return self.ln_f(x)


def init_weights(model: nn.Module) -> None:
    """Initialises weights as GPT-2 does, with residual projections scaled by 1 / sqrt(2 n_layer).

    A weight that two modules share is initialised once.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    initialised = set()
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)) and id(module.weight) not in initialised:
            nn.init.normal_(module.weight, std=INIT_STD)
            initialised.add(id(module.weight))
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for block in blocks:
        for proj in (block.attn.out_proj, block.mlp.proj):
            nn.init.normal_(proj.weight, std=INIT_STD / math.sqrt(2 * len(blocks)))


def tied_lm_head(embedding: nn.Embedding) -> nn.Linear:
    """The LM head that shares its weight with the token embedding: (B, T, C) → (B, T, vocab_size)."""
    vocab_size, n_embd = embedding.weight.shape
    head: nn.Linear = nn.utils.skip_init(nn.Linear, n_embd, vocab_size, bias=False)
    head.weight = embedding.weight
    return head


def check_length(length: int, block_size: int) -> None:
    """Raises ArgumentError for more tokens than a model has positions."""
    if length > block_size:
        raise ArgumentError(
            f"The sequence has {length} tokens, but block_size is {block_size}. "
            "Pass fewer tokens, or make the model with a larger block_size."
        )
