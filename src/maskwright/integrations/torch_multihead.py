"""nn.MultiheadAttention whose `attn_mask` may be a mask."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn

from maskwright.core.atoms import dense, padding
from maskwright.core.validate import describe_type
from maskwright.engine.api import attention
from maskwright.engine.softmax import masked_matmul, masked_scores, masked_softmax
from maskwright.engine.validate import bind, check_tensors, default_scale
from maskwright.errors import ArgumentError
from maskwright.integrations.torch_calls import carried_by, carry

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray
    from maskwright.integrations.torch_calls import AnyMask

Shape: TypeAlias = tuple[int, int, int, int]


class MultiheadAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention whose `attn_mask` may be a mask of maskwright's.

    Arguments, parameters and state dict are nn's. With tensors as masks, or none, so is all that
    is computed. A mask of maskwright's is read the other way round than nn's tensors: it holds
    what may be seen. The last query sits at the last key, unless the mask is bound otherwise, and
    a row that sees nothing gives what zeros give.

    >>> import torch, maskwright as mw
    >>> from maskwright.integrations.torch import MultiheadAttention
    >>> layer, x = MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 4, 8)
    >>> mask = mw.causal() & mw.padding(lengths=[4, 2, 3])
    >>> out, weights = layer(x, x, x, attn_mask=mask, need_weights=False)
    >>> out.shape, weights
    (torch.Size([3, 4, 8]), None)
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: AnyMask | torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention as nn.MultiheadAttention has it: (output, weights or None).

        With a mask, `need_weights=False` is the fast way: weights, nn's default, are dense. A
        `key_padding_mask`, True at padding, is taken out of the mask's keys.
        """
        mask = carried_by(attn_mask)
        if carried_by(key_padding_mask) is not None:
            raise ArgumentError(
                "MultiheadAttention: key_padding_mask is a mask of maskwright's. Give it as "
                "attn_mask, joined to others by &."
            )
        if mask is None:
            if attn_mask is not None and not isinstance(attn_mask, torch.Tensor):
                raise ArgumentError(
                    f"MultiheadAttention: attn_mask is {describe_type(attn_mask)}. Give a mask of "
                    "maskwright's, or a tensor as nn.MultiheadAttention takes it."
                )
            return super().forward(  # type: ignore[no-any-return]
                query,
                key,
                value,
                key_padding_mask,
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
            )
        if is_causal:
            raise ArgumentError(
                "MultiheadAttention: is_causal=True was given together with a mask. "
                "Leave is_causal out, and pass mask & mw.causal()."
            )
        _check_inputs(query, key, value)
        q, k, v = self._heads_of(query, key, value)
        shape = (*q.shape[:3], k.shape[2])
        k, v = self._with_own_keys(k, v)
        if key_padding_mask is not None or k.shape[2] > shape[3]:
            mask = _with_more_keys(_bind(mask, key_padding_mask, shape), k.shape[2] - shape[3])
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            out, weights = _weigh(q, k, v, mask, dropout)
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            out, weights = attention(q, k, v, mask, dropout_p=dropout), None
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if query.dim() == 2:
            return out[0], None if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights

    def merge_masks(
        self,
        attn_mask: torch.Tensor | None,
        key_padding_mask: torch.Tensor | None,
        query: torch.Tensor,
    ) -> tuple[torch.Tensor | None, int | None]:
        """As nn has it: both as one, for nn.TransformerEncoderLayer's fused inference."""
        mask = carried_by(attn_mask)
        if mask is None:
            return super().merge_masks(attn_mask, key_padding_mask, query)  # type: ignore[no-any-return]
        batch, length, _ = query.shape
        shape = (batch, self.num_heads, length, length)
        return carry(_bind(mask, key_padding_mask, shape), query.dtype), 2

    def _heads_of(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> list[torch.Tensor]:
        """The projections, (batch, heads, length, head_dim) each."""
        if self._qkv_same_embed_dim and query is key and key is value:
            parts = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            weights = (
                self.in_proj_weight.chunk(3)
                if self._qkv_same_embed_dim
                else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            )
            biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
            inputs = (query, key, value)
            parts = [F.linear(*part) for part in zip(inputs, weights, biases, strict=True)]
        if query.dim() == 2:
            parts = [x[None] for x in parts]
        elif not self.batch_first:
            parts = [x.transpose(0, 1) for x in parts]
        heads = (self.num_heads, self.head_dim)
        return [x.unflatten(-1, heads).transpose(1, 2) for x in parts]

    def _with_own_keys(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, and after them those of add_bias_kv and of add_zero_attn."""
        batch, heads, _, dim = k.shape
        more_k, more_v = [k], [v]
        if self.bias_k is not None:
            for bias, more in ((self.bias_k, more_k), (self.bias_v, more_v)):
                more.append(bias.to(k.dtype).view(1, heads, 1, dim).expand(batch, -1, -1, -1))
        if self.add_zero_attn:
            zeros = k.new_zeros(batch, heads, 1, dim)
            more_k.append(zeros)
            more_v.append(zeros)
        return (k, v) if len(more_k) == 1 else (torch.cat(more_k, 2), torch.cat(more_v, 2))


def _check_inputs(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    shapes = [tuple(x.shape) for x in (query, key, value) if not x.is_nested]
    if len(shapes) < 3:
        raise ArgumentError(
            "MultiheadAttention: an input is a nested tensor. Give padded tensors, "
            "and mask & mw.padding(lengths=...)."
        )
    axes = len(shapes[0])
    if axes not in (2, 3) or any(len(shape) != axes for shape in shapes):
        raise ArgumentError(
            f"MultiheadAttention: query, key and value have shapes {shapes[0]}, {shapes[1]}, "
            f"{shapes[2]}. Give two axes for each, or three with a batch."
        )


def _bind(mask: AnyMask, key_padding_mask: torch.Tensor | None, shape: Shape) -> BoundMask:
    """The mask without padded keys, on (batch, heads, q_len, kv_len)."""
    bound = bind(mask, shape, None)
    if key_padding_mask is None:
        return bound
    batch, heads, q_len, kv_len = shape
    keep = _keep_of(key_padding_mask, batch, kv_len)
    if bound.frame == bound._home:
        joined = bound.mask & padding(keep=keep)
    else:  # the mask's data tells of more rows or keys than are held
        joined = dense(bound.dense() & keep[:, None, None, :])
    return joined.on(q_len, kv_len, batch, heads, bound.frame.q_start)


def _keep_of(key_padding_mask: torch.Tensor, batch: int, kv_len: int) -> BoolArray:
    """True at real keys, (batch, keys), of nn's padding: True, or -inf, at padded ones."""
    given = key_padding_mask.detach().cpu()
    if given.dim() == 1:
        given = given[None]
    if given.shape != (batch, kv_len):
        raise ArgumentError(
            f"MultiheadAttention: key_padding_mask has shape {tuple(key_padding_mask.shape)} for "
            f"batch {batch} and {kv_len} keys. Give (batch, keys)."
        )
    if given.dtype == torch.bool:
        return np.asarray(~given)
    if not (given.is_floating_point() and bool(((given == 0) | (given == -math.inf)).all())):
        raise ArgumentError(
            "MultiheadAttention: key_padding_mask holds other values than 0 and -inf, which no mask "
            "can say. Give truth values, True at padding."
        )
    return np.asarray(given == 0)


def _with_more_keys(bound: BoundMask, more: int) -> BoundMask:
    """The same rows, which see `more` keys after the last one, too."""
    if not more:
        return bound
    # Cached, so that what is computed from it is computed once for all steps.
    return bound.cached(("more keys", more), lambda: _widened(bound, more))


def _widened(bound: BoundMask, more: int) -> BoundMask:
    frame, seen = bound.frame, bound.dense()
    wide = dense(np.concatenate([seen, np.ones((*seen.shape[:3], more), np.bool_)], axis=3))
    return wide.on(frame.q_len, frame.kv_len + more, frame.batch, frame.heads)


def _weigh(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: AnyMask, dropout: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention with its weights, (batch, heads, queries, keys), which are 0 in masked cells."""
    shape = check_tensors(q, k, v, enable_gqa=False)
    bound = bind(mask, (*q.shape[:3], k.shape[2]), None)
    visible = torch.from_numpy(bound.dense()).to(q.device)
    scores = masked_scores(q, k, visible) * default_scale(shape.head_dim)
    weights, _ = masked_softmax(scores, visible)
    weights = F.dropout(weights, dropout)
    return masked_matmul(weights, v, visible), weights
