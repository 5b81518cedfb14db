"""Attention of a transformers layer from dense scores, or by SDPA with a mask tensor.

Both are for inputs that the engine cannot take, see `maskwright.integrations.transformers`. The dense
scores also give the attention weights, which a model returns with `output_attentions=True`.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.nn import functional

from maskwright._torch_state import is_fake, is_in_transform
from maskwright.engine.softmax import masked_softmax

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask

MAX_SCORES: Final = 2**25  # dense scores per block of rows
MAX_WEIGHT_BYTES: Final = 2**30  # attention weights of one layer, before a warning


class LayerInputs(NamedTuple):
    """The inputs of one attention layer; tensors are (batch, heads, length, head_dim)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float | None
    dropout: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # (heads,): a logit per head that has no value
    bias: torch.Tensor | None = None  # (batch or 1, heads, queries, keys), added to the scores


class MaskInput(NamedTuple):
    """The mask of a layer: a mask, its handle, a tensor with other values, or none: all visible."""

    mask: Mask | BoundMask | None = None
    tensor: torch.Tensor | None = None
    handle: torch.Tensor | None = None  # of a mask that is bound while a graph runs
    q_start: int | None = None  # of a mask that is not bound


def has_values(x: torch.Tensor) -> bool:
    """Whether the values of a tensor can be read: not on the meta device, and not those of a FakeTensor.

    Within transforms of torch.func (grad, vmap) they cannot be read either.

    >>> has_values(torch.ones(2)), has_values(torch.ones(2, device="meta"))
    (True, False)
    """
    if x.is_meta or is_in_transform():
        return False
    return type(x) is torch.Tensor or not is_fake(x)


def run_sdpa(layer: LayerInputs, mask_input: MaskInput) -> torch.Tensor:
    """SDPA with a bool or additive mask tensor."""
    q, k, v = layer.query, layer.key, layer.value
    mask = _mask_rows(layer, mask_input, slice(None))
    if layer.bias is not None:
        if mask is None:
            mask = layer.bias
        elif mask.dtype == torch.bool:
            mask = torch.where(mask, layer.bias, torch.finfo(layer.bias.dtype).min)
        else:
            mask = layer.bias + mask
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(q.dtype)
    return functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=layer.dropout,
        scale=layer.scale,
        enable_gqa=bool(q.shape[1] != k.shape[1]),
    )


def run_dense(layer: LayerInputs, mask_input: MaskInput) -> torch.Tensor:
    """Dense scores in blocks of rows, for soft cap and sinks: exact, but slower."""
    batch, heads, q_len, _ = layer.query.shape
    step = max(1, MAX_SCORES // max(1, batch * heads * layer.key.shape[2]))
    parts = [
        _run_rows(layer, mask_input, slice(top, min(top + step, q_len)))[0]
        for top in range(0, q_len, step)
    ]
    empty = layer.query.new_empty(batch, heads, 0, layer.value.shape[3])
    return torch.cat(parts, dim=2) if parts else empty


def run_with_weights(
    layer: LayerInputs, mask_input: MaskInput
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the attention weights (batch, heads, queries, keys), after dropout.

    A fully masked row has weights of 0; "eager" of transformers returns the same weight for all keys.
    """
    if not torch.compiler.is_compiling():
        _warn_if_large(layer)
    return _run_rows(layer, mask_input, slice(0, layer.query.shape[2]))


def wants_weights(arguments: Mapping[str, Any]) -> bool:
    """Whether the attention weights of a layer are requested.

    Args:
        arguments: Keyword arguments of the attention interface. Models that record the outputs of their
            layers by hooks (`_can_record_outputs`) may not pass `output_attentions` on, and
            `config.output_attentions` is not an argument; both are read from the active recording.

    >>> wants_weights({"output_attentions": True}), wants_weights({})
    (True, False)
    """
    if arguments.get("output_attentions"):
        return True
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # a release without recording
        return False
    if torch.compiler.is_compiling() and not _active_collector.compiling:
        return False  # the recording began outside of the graph, which cannot read it
    recording = _active_collector.get()
    return recording is not None and any(key.endswith("attentions") for key in recording)


def _warn_if_large(layer: LayerInputs) -> None:
    query, key = layer.query, layer.key
    shape = (*query.shape[:3], key.shape[2])
    size = math.prod(shape) * query.element_size()
    if size > MAX_WEIGHT_BYTES:
        warnings.warn(
            f'attn_implementation="maskwright": the attention weights {tuple(shape)} that '
            f"output_attentions=True requests take {size / 2**30:.1f} GiB per layer. "
            "Pass fewer tokens, or leave out output_attentions.",
            UserWarning,
            stacklevel=4,
        )


def _run_rows(
    layer: LayerInputs, mask_input: MaskInput, rows: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of some rows, and their weights."""
    q, k, v = layer.query, layer.key, layer.value
    shared = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    scale = q.shape[3] ** -0.5 if layer.scale is None else layer.scale
    scores = (q[:, :, rows] @ k.transpose(-2, -1)) * scale
    weights = _weights(scores, layer, _mask_rows(layer, mask_input, rows), rows)
    weights = torch.dropout(weights.to(q.dtype), layer.dropout, train=layer.dropout > 0)
    return weights @ v, weights


def _weights(
    scores: torch.Tensor, layer: LayerInputs, mask: torch.Tensor | None, rows: slice
) -> torch.Tensor:
    """Softmax weights of some rows, with soft cap, bias, mask and sinks."""
    if layer.softcap is not None:
        scores = torch.tanh(scores / layer.softcap) * layer.softcap
    if layer.bias is not None:
        scores = scores + layer.bias[..., rows if layer.bias.shape[-2] > 1 else slice(None), :]
    visible = mask if mask is not None and mask.dtype == torch.bool else None
    if mask is not None and visible is None:
        scores = scores + mask
    if layer.sinks is None:
        weights, _ = masked_softmax(scores.float(), visible)
        return weights
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    sinks = layer.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    weights, _ = masked_softmax(scores.float())
    return weights[..., :-1]


def _mask_rows(layer: LayerInputs, mask_input: MaskInput, rows: slice) -> torch.Tensor | None:
    """Some rows of the mask as a tensor, bool or additive; None if all keys are visible."""
    if mask_input.mask is not None:
        start, stop, _ = rows.indices(layer.query.shape[2])
        rows_mask = mask_input.mask.rows(start, stop)
        return torch.from_numpy(rows_mask.dense()).to(layer.query.device)
    if mask_input.tensor is None or mask_input.tensor.ndim < 2 or mask_input.tensor.shape[-2] == 1:
        return mask_input.tensor
    return mask_input.tensor[..., rows, :]
