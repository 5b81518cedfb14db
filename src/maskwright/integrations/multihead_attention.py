"""nn.MultiheadAttention that accepts a mask of maskwright as `attn_mask`."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn

from maskwright.core.atoms import dense, padding
from maskwright.core.validate import describe_type
from maskwright.engine.api import attention
from maskwright.engine.softmax import masked_matmul, masked_scores, masked_softmax
from maskwright.engine.validate import bind, check_inputs, default_scale
from maskwright.errors import ArgumentError
from maskwright.integrations.torch_function import unwrap_mask, wrap_mask

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray
    from maskwright.integrations.torch_function import AnyMask

Shape: TypeAlias = tuple[int, int, int, int]


class MultiheadAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention that accepts a mask of maskwright as `attn_mask`.

    Arguments, parameters and state dict are those of nn.MultiheadAttention, and so is the computation
    with tensors as masks or without a mask. A mask of maskwright contains the visible cells, while
    True in a bool tensor of nn.MultiheadAttention means masked. An unbound mask is aligned at the
    last key. The attention output of a fully masked row is 0 before the output projection.

    torch.jit.script compiles it as nn.MultiheadAttention, with tensors as masks: TorchScript has no
    masks of maskwright. It also puts that module, with the same parameters, into the place of this one
    in the model that is scripted; script a copy of a model that is called with masks afterwards.

    >>> import torch, maskwright as mw
    >>> from maskwright.integrations import MultiheadAttention
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
        """The output and the attention weights or None, as nn.MultiheadAttention returns them.

        With a mask, pass `need_weights=False` for speed: weights are dense. A `key_padding_mask`,
        True at padding, is combined with the mask.
        """
        mask = unwrap_mask(attn_mask)
        if unwrap_mask(key_padding_mask) is not None:
            raise ArgumentError(
                "MultiheadAttention: key_padding_mask is a mask of maskwright, expected a tensor. Pass "
                "it as attn_mask, combined with other masks by &."
            )
        if mask is None:
            if attn_mask is not None and not isinstance(attn_mask, torch.Tensor):
                raise ArgumentError(
                    f"MultiheadAttention: attn_mask is {describe_type(attn_mask)}, expected a "
                    "mask of maskwright or a tensor."
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
                "MultiheadAttention: is_causal=True cannot be combined with a mask. "
                "Remove is_causal, and pass mask & mw.causal()."
            )
        _check_inputs(query, key, value)
        q, k, v = self._project(query, key, value)
        shape = (*q.shape[:3], k.shape[2])
        k, v = self._append_bias_kv(k, v)
        if key_padding_mask is not None or k.shape[2] > shape[3]:
            mask = _append_visible_keys(_bind(mask, key_padding_mask, shape), k.shape[2] - shape[3])
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            out, weights = _attention_with_weights(q, k, v, mask, dropout)
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
        """Both masks as one, for the fused inference path of nn.TransformerEncoderLayer."""
        mask = unwrap_mask(attn_mask)
        if mask is None:
            return super().merge_masks(attn_mask, key_padding_mask, query)  # type: ignore[no-any-return]
        batch, length, _ = query.shape
        shape = (batch, self.num_heads, length, length)
        return wrap_mask(_bind(mask, key_padding_mask, shape), query.dtype), 2

    def __prepare_scriptable__(self) -> nn.MultiheadAttention:
        """The module that torch.jit.script compiles; a subclass is compiled as it is."""
        if type(self) is not MultiheadAttention:
            return self
        plain = copy.copy(self)  # with the same parameters
        plain.__class__ = nn.MultiheadAttention
        return plain

    def _project(
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

    def _append_bias_kv(
        self, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values followed by those of add_bias_kv and add_zero_attn."""
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
            "MultiheadAttention: an input is a nested tensor. Pass padded tensors "
            "and mask & mw.padding(lengths=...)."
        )
    axes = len(shapes[0])
    if axes not in (2, 3) or any(len(shape) != axes for shape in shapes):
        raise ArgumentError(
            f"MultiheadAttention: query, key and value have shapes {shapes[0]}, {shapes[1]}, "
            f"{shapes[2]}, expected two dimensions for each, or three with a batch."
        )


def _bind(mask: AnyMask, key_padding_mask: torch.Tensor | None, shape: Shape) -> BoundMask:
    """The mask without padded keys, on (batch, heads, q_len, kv_len)."""
    bound = bind(mask, shape, None)
    if key_padding_mask is None:
        return bound
    batch, heads, q_len, kv_len = shape
    keep = _read_key_padding_mask(key_padding_mask, batch, kv_len)
    if bound.frame == bound._home:
        joined = bound.mask & padding(keep=keep)
    else:  # the data of the mask covers more rows or keys than this part of it
        joined = dense(bound.dense() & keep[:, None, None, :])
    return joined.on(q_len, kv_len, batch, heads, bound.frame.q_start)


def _read_key_padding_mask(key_padding_mask: torch.Tensor, batch: int, kv_len: int) -> BoolArray:
    """The keys that are not padding, (batch, keys); nn marks padding by True or -inf."""
    marks = key_padding_mask.detach().cpu()
    if marks.dim() == 1:
        marks = marks[None]
    if marks.shape != (batch, kv_len):
        raise ArgumentError(
            f"MultiheadAttention: key_padding_mask has shape {tuple(key_padding_mask.shape)}, "
            f"expected (batch, keys) = ({batch}, {kv_len})."
        )
    if marks.dtype == torch.bool:
        return np.asarray(~marks)
    if not (marks.is_floating_point() and bool(((marks == 0) | (marks == -math.inf)).all())):
        raise ArgumentError(
            "MultiheadAttention: key_padding_mask has values other than 0 and -inf, which a mask "
            "cannot represent. Pass a bool tensor, True at padding."
        )
    return np.asarray(marks == 0)


def _append_visible_keys(bound: BoundMask, more: int) -> BoundMask:
    """The same mask with `more` keys appended, visible in all rows."""
    if not more:
        return bound
    # Cached, so that the spans of the wider mask are computed once.
    return bound.cached(("visible_keys", more), lambda: _wider_mask(bound, more))


def _wider_mask(bound: BoundMask, more: int) -> BoundMask:
    frame, visible = bound.frame, bound.dense()
    wide = dense(np.concatenate([visible, np.ones((*visible.shape[:3], more), np.bool_)], axis=3))
    return wide.on(frame.q_len, frame.kv_len + more, frame.batch, frame.heads)


def _attention_with_weights(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: AnyMask, dropout: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention with its weights, (batch, heads, queries, keys), which are 0 in masked cells."""
    check_inputs(q, k, v, enable_gqa=False)
    bound = bind(mask, (*q.shape[:3], k.shape[2]), None)
    visible = torch.from_numpy(bound.dense()).to(q.device)
    scores = masked_scores(q, k, visible) * default_scale(q.shape[3])
    weights, _ = masked_softmax(scores, visible)
    weights = F.dropout(weights, dropout)
    return masked_matmul(weights, v, visible), weights
