"""A pointer into the source: what is written next may be a word of the text that was read.

Names, numbers and rare words are better copied than guessed. The pointer looks at the source once
more; the weights of that look are the chances of its words, and a gate says how much they count.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from maskwright.engine.softmax import masked_softmax


class Pointer(nn.Module):
    """Mixes the chances of all words with those of the words that stand in the source.

    >>> import torch
    >>> from maskwright.models.pointer import Pointer
    >>> source, seen = torch.tensor([[7, 8, 9]]), torch.tensor([[True, True, False]])
    >>> x, memory, logits = torch.randn(1, 4, 16), torch.randn(1, 3, 16), torch.randn(1, 4, 30)
    >>> found = Pointer(width=16)(x, memory, source, seen, logits)
    >>> found.shape, bool(found.exp().sum(-1).isclose(torch.tensor(1.0)).all())
    (torch.Size([1, 4, 30]), True)
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.gate = nn.Linear(width, 1)

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor,
        source: torch.Tensor,
        seen: torch.Tensor,
        logits: torch.Tensor,
    ) -> torch.Tensor:
        """Log-chances of the next word: (B, T, C), (B, S, C), (B, S) → (B, T, vocabulary).

        `seen` (B, S) is True where the source has a real token.
        """
        scores = self.query(x) @ self.key(memory).transpose(-2, -1) / math.sqrt(x.shape[-1])
        weights, _ = masked_softmax(scores, seen[:, None])  # (B, T, S)
        at = source[:, None].expand_as(weights)
        copied = torch.zeros_like(logits).scatter_add(-1, at, weights)  # (B, T, vocabulary)
        gate = self.gate(x)  # (B, T, 1)
        least = torch.finfo(logits.dtype).tiny
        return torch.logaddexp(
            logsigmoid(gate) + copied.clamp(min=least).log(),
            logsigmoid(-gate) + logits.log_softmax(-1),
        )
