"""Attention layers: a textbook implementation, a fast one, and the KV cache.

`Head` and `NaiveMultiHeadAttention` are for reading: one operation per line, with its shape. Models
are built of `MultiHeadAttention`, which computes the same with `maskwright.attention`, never builds
a (T, T) tensor, and supports cross-attention and KV caches.
"""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import nn

from maskwright.engine.api import attention
from maskwright.engine.softmax import masked_softmax
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.bias.expr import Bias
    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask


MIN_CAPACITY = 64  # tokens of a new buffer, at least


class Head(nn.Module):
    """One head of self-attention: (B, T, C) → (B, T, head_dim).

    Args:
        n_embd: Size of the embeddings, C.
        head_dim: Size of the queries, keys and values.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.attention import Head
    >>> Head(n_embd=16, head_dim=4)(torch.randn(2, 5, 16), mw.causal()).shape
    torch.Size([2, 5, 4])
    """

    def __init__(self, n_embd: int, head_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(n_embd, head_dim, bias=False)
        self.key = nn.Linear(n_embd, head_dim, bias=False)
        self.value = nn.Linear(n_embd, head_dim, bias=False)

    def forward(self, x: torch.Tensor, mask: Mask) -> torch.Tensor:
        """Weighted sum of the visible values."""
        B, T, _ = x.shape
        q, k, v = self.query(x), self.key(x), self.value(x)  # (B, T, head_dim) each
        visible = torch.from_numpy(mask.on(T, batch=B).dense()[:, 0])  # (B or 1, T, T)
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])  # (B, T, T)
        weights, _ = masked_softmax(scores, visible)  # (B, T, T), 0 in a fully masked row
        return weights @ v  # (B, T, head_dim)


class NaiveMultiHeadAttention(nn.Module):
    """Several independent heads, concatenated and projected: (B, T, C) → (B, T, C).

    Args:
        n_embd: Size of the embeddings, C.
        n_head: Number of heads; must divide `n_embd`.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.attention import NaiveMultiHeadAttention
    >>> NaiveMultiHeadAttention(n_embd=16, n_head=4)(torch.randn(2, 5, 16), mw.causal()).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        _check_heads(n_embd, n_head)
        self.heads = nn.ModuleList(Head(n_embd, n_embd // n_head) for _ in range(n_head))
        self.out_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x: torch.Tensor, mask: Mask) -> torch.Tensor:
        """Runs one head after the other."""
        out = torch.cat([head(x, mask) for head in self.heads], dim=-1)  # (B, T, C)
        return self.out_proj(out)  # (B, T, C)


class KVCache:
    """Keys and values of the tokens so far, of one attention layer: (B, H, T, head_dim) each.

    `k` and `v` are views of buffers with room for more tokens, which double when they are full, so
    a decode step copies the new token only. Where gradients are recorded, they are concatenated.

    >>> import torch
    >>> from maskwright.models.attention import KVCache
    >>> cache, one = KVCache(), torch.ones(2, 4, 1, 8)
    >>> k, v = cache.update(one, one)
    >>> k, v = cache.update(one, one)
    >>> len(cache), tuple(k.shape)
    (2, (2, 4, 2, 8))
    >>> cache.reorder(torch.tensor([1]))
    >>> tuple(cache.k.shape)
    (1, 4, 2, 8)
    """

    def __init__(self) -> None:
        self.k: torch.Tensor | None = None
        self.v: torch.Tensor | None = None
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None
        self._views: tuple[torch.Tensor, torch.Tensor] | None = None

    def __copy__(self) -> KVCache:
        copied = type(self)()
        # Not the buffers: two caches must not write to the same memory.
        copied.k, copied.v = self.k, self.v
        return copied

    def __len__(self) -> int:
        return 0 if self.k is None else self.k.shape[2]

    def update(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends keys and values of new tokens, and returns those of all tokens."""
        if self.k is not None and self.v is not None:
            if torch.is_grad_enabled() and any(x.requires_grad for x in (k, v, self.k, self.v)):
                k, v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
            else:
                k, v = self._append(k, v)
        self.k, self.v = k, v
        return k, v

    def _append(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new tokens into the buffers, and return views with those of all tokens."""
        assert self.k is not None
        assert self.v is not None
        if (k.dtype, k.device) != (self.k.dtype, self.k.device):
            raise ArgumentError(
                f"KVCache.update: new tokens are {k.dtype} on {k.device}, those in the cache "
                f"{self.k.dtype} on {self.k.device}. Use one dtype and device, or a new cache."
            )
        start, stop = self.k.shape[2], self.k.shape[2] + k.shape[2]
        if not self._has_room(stop):
            length = max(2 * start, stop, MIN_CAPACITY)
            self._buffers = (_buffer(self.k, length), _buffer(self.v, length))
        assert self._buffers is not None
        keys, values = self._buffers
        keys[:, :, start:stop], values[:, :, start:stop] = k, v
        self._views = (keys[:, :, :stop], values[:, :, :stop])
        return self._views

    def _has_room(self, count: int) -> bool:
        """Whether `k` and `v` are still the views of the buffers, and `count` tokens fit."""
        if self._buffers is None or self._views is None or count > self._buffers[0].shape[2]:
            return False
        writable = torch.is_inference_mode_enabled() or not self._buffers[0].is_inference()
        return writable and self.k is self._views[0] and self.v is self._views[1]

    def reorder(self, rows: torch.Tensor) -> None:
        """Keeps these batch rows, in this order, as beam search needs it."""
        if self.k is not None and self.v is not None:
            self.k, self.v, self._buffers = self.k[rows], self.v[rows], None


class CrossKVCache(KVCache):
    """KV cache of a decoder layer, with that of its cross-attention, which holds the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cross = KVCache()

    def __copy__(self) -> CrossKVCache:
        copied = CrossKVCache()
        copied.k, copied.v, copied.cross = self.k, self.v, copy(self.cross)
        return copied


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention or cross-attention: (B, T, C) → (B, T, C).

    Args:
        n_embd: Size of the embeddings, C.
        n_head: Number of heads; must divide `n_embd`.
        bias: Whether the projections of queries, keys and values have a bias.
        dropout: Dropout probability of the softmax weights and of the output.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.attention import MultiHeadAttention, NaiveMultiHeadAttention
    >>> layer = MultiHeadAttention(n_embd=16, n_head=4)
    >>> layer(torch.randn(2, 5, 16), mw.causal()).shape
    torch.Size([2, 5, 16])
    >>> layer.load_from_naive(NaiveMultiHeadAttention(n_embd=16, n_head=4))
    """

    def __init__(
        self, n_embd: int, n_head: int, *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        _check_heads(n_embd, n_head)
        self.n_head, self.dropout = n_head, dropout
        self.q_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.k_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.v_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.out_proj = nn.Linear(n_embd, n_embd)
        self.out_dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: torch.Tensor,
        mask: Mask | BoundMask,
        *,
        memory: torch.Tensor | None = None,
        kv_cache: KVCache | None = None,
        bias: Bias | None = None,
    ) -> torch.Tensor:
        """Attention of all heads at once.

        Args:
            x: Queries, and keys and values too without `memory`, (B, T, C).
            mask: Which keys each query attends to.
            memory: Output of an encoder for cross-attention, (B, S, C).
            kv_cache: With self-attention, the tokens of `x` follow those in the cache. With
                cross-attention, it is filled once and holds the keys and values of `memory`.
            bias: Added to the scores, such as `mw.bias.alibi(n_head)`.

        Returns:
            (B, T, C).
        """
        q = self._split_heads(self.q_proj(x))  # (B, H, T, head_dim)
        if memory is not None and kv_cache is not None and kv_cache.k is not None:
            k, v = kv_cache.k, kv_cache.v  # the memory is the same at every step
        else:
            source = x if memory is None else memory
            k = self._split_heads(self.k_proj(source))  # (B, H, S, head_dim)
            v = self._split_heads(self.v_proj(source))  # (B, H, S, head_dim)
            if kv_cache is not None:
                k, v = kv_cache.update(k, v)
        dropout_p = self.dropout if self.training else 0.0
        out = attention(q, k, v, mask, bias=bias, dropout_p=dropout_p)  # (B, H, T, head_dim)
        out = out.transpose(1, 2).flatten(2)  # (B, T, C)
        return self.out_dropout(self.out_proj(out))  # (B, T, C)

    def load_from_naive(self, naive: NaiveMultiHeadAttention) -> None:
        """Copies the weights of the textbook implementation; the outputs are then equal."""
        with torch.no_grad():
            for ours, theirs in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
                layer = getattr(self, ours)
                layer.weight.copy_(
                    torch.cat([getattr(head, theirs).weight for head in naive.heads])
                )
                if layer.bias is not None:
                    layer.bias.zero_()
            self.out_proj.load_state_dict(naive.out_proj.state_dict())

    def _split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, C) → (B, H, T, head_dim)."""
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)


def _buffer(x: torch.Tensor, length: int) -> torch.Tensor:
    """A buffer for `length` tokens that begins with those of `x`."""
    buffer = x.new_empty((*x.shape[:2], length, x.shape[3]))
    buffer[:, :, : x.shape[2]] = x
    return buffer


def _check_heads(n_embd: int, n_head: int) -> None:
    if n_head < 1 or n_embd % n_head:
        raise ArgumentError(
            f"n_embd={n_embd} is not divisible by n_head={n_head}. "
            "Pass an n_embd that is a multiple of n_head."
        )
