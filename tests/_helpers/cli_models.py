"""Models for `audit` and `trace`. Tests copy this file to the current directory of the command."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Toy(nn.Module):
    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.causal = causal

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        return x + scaled_dot_product_attention(x, x, x, is_causal=self.causal)


class WithMask(Toy):
    def forward(self, tokens: Any, attention_mask: Any = None) -> Any:
        x = self.embedding(tokens)
        visible = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        if attention_mask is not None:
            visible = visible & attention_mask.bool()[:, None]
        return x + scaled_dot_product_attention(x, x, x, attn_mask=visible)


class Numbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.places = nn.Embedding(8, 3)


class Inner:
    model = Toy()


model = Toy()
pair = (model, torch.ones(1, 3, dtype=torch.long))
number = 7
build = WithMask


def leaky() -> Any:
    return Toy(causal=False)


def both() -> Any:
    return Toy(), {"ids": torch.ones(2, 5, dtype=torch.long)}


def function() -> Any:
    return lambda x: x


def sized(vocab_size: int) -> Any:
    return nn.Embedding(vocab_size, 2)


def broken() -> Any:
    raise RuntimeError("no weights")


def three() -> Any:
    return 1, 2, 3


def nothing() -> None:
    return None
