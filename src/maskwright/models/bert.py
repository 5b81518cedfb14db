"""A bidirectional encoder: every token attends to all tokens but padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from maskwright.core.atoms import everything
from maskwright.models.gpt import GPTConfig
from maskwright.models.transformer import Transformer, init_weights, tied_lm_head

if TYPE_CHECKING:
    from maskwright.core.expr import Mask


@dataclass(frozen=True)
class BertConfig(GPTConfig):
    """Sizes of a Bert; the fields are those of `GPTConfig`.

    >>> from maskwright.models.bert import BertConfig
    >>> BertConfig(vocab_size=65, block_size=16, n_embd=32).n_layer
    4
    """


class Bert(Transformer):
    """An encoder with a masked-language-model head and a pooler.

    Args:
        config: Sizes of the model.
        mask: Mask of all layers; no mask by default.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.bert import Bert, BertConfig
    >>> model = Bert(BertConfig(vocab_size=100, n_layer=2, n_head=2, n_embd=32))
    >>> ids, padding = torch.randint(100, (2, 6)), mw.padding(lengths=[4, 6])
    >>> model(ids, padding).shape, model.pooled(ids, padding).shape
    (torch.Size([2, 6, 100]), torch.Size([2, 32]))
    >>> model.encode(ids, padding).shape
    torch.Size([2, 6, 32])
    """

    def __init__(self, config: BertConfig, mask: Mask | None = None) -> None:
        super().__init__(config.vocab_size, config, bidirectional=True)
        self.config, self.mask = config, everything() if mask is None else mask
        self.mlm_transform = nn.Sequential(
            nn.Linear(config.n_embd, config.n_embd), nn.GELU(), nn.LayerNorm(config.n_embd)
        )
        self.lm_head = tied_lm_head(self.token_embedding)
        self.pooler = nn.Sequential(nn.Linear(config.n_embd, config.n_embd), nn.Tanh())
        init_weights(self)

    def forward(self, ids: torch.Tensor, padding: Mask | None = None) -> torch.Tensor:
        """Logits of the token at every position: (B, T) → (B, T, vocab_size)."""
        return self.lm_head(self.mlm_transform(self.encode(ids, padding)))

    def encode(self, ids: torch.Tensor, padding: Mask | None = None) -> torch.Tensor:
        """Contextual embeddings of the tokens: (B, T) → (B, T, C)."""
        return self.hidden_states(ids, self.mask if padding is None else self.mask & padding)

    def pooled(self, ids: torch.Tensor, padding: Mask | None = None) -> torch.Tensor:
        """Embedding of the whole sequence, from its first token: (B, T) → (B, C)."""
        return self.pooler(self.encode(ids, padding)[:, 0])
