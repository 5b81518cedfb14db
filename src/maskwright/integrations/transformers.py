"""Any transformers model on maskwright's attention: `attn_implementation="maskwright"`.

    from maskwright.integrations.transformers import register

    register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="maskwright")

transformers says which keys a query may see by a function; `transformers_masks` reads it into an
expression, `transformers_tensor` carries that through the model, and here attention is computed
under it. Where a layer wants more than a mask, that is computed as exactly:

    a score cap (Gemma 2)     from the scores themselves, some rows at a time, as "eager" does
    sinks (gpt-oss)           by the engine, with its logsumexp: the sink takes its share of it
    a bias (T5, a float mask) by PyTorch's own attention, since a bias is no mask
    under torch.compile       by PyTorch's own attention, with the mask as a bool tensor

Models that keep their attention to themselves can't be given another one. `CANNOT` names some, and
why: they raise an error, or go on by themselves as if nothing had been asked of them.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from maskwright.core.atoms import causal, dense
from maskwright.errors import MissingError, Unsupported

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import torch

    from maskwright.core.bound import BoundMask

__all__ = ["CANNOT", "NAME", "attention_forward", "register"]

NAME: Final = "maskwright"

_ALONE: Final = "computes its own attention and never asks for another"
_HIDES: Final = "hides cells by a mask of numbers, whatever attn_implementation says"
_PICKS: Final = "picks its attention from a table of its own, which holds no other"
_CHOOSES: Final = "chooses keys in every layer, and tells others than eager and sdpa by indices"

# Model types that can't run on another attention, and why. Others of their kind fare alike.
CANNOT: Final = {
    "bloom": _HIDES,
    "codegen": _HIDES,
    "deberta-v2": _ALONE,
    "deepseek_v32": _CHOOSES,
    "falcon": _PICKS,
    "gpt_neo": _PICKS,
    "gptj": _PICKS,
    "mpt": _HIDES,
    "xlnet": _ALONE,
}

# What a layer may ask for that is neither a mask nor computed here.
REFUSED: Final = {
    "alibi_slopes": "a bias for each head",
    "block_indices": "blocks of keys chosen in the layer",
    "block_mask": "a mask of FlexAttention's",
    "cache": "a paged cache, as in continuous batching",
    "head_mask": "a factor for each head",
    "indices": "keys chosen in the layer",
    "score_mod": "scores changed by a function",
}

FEW_ROWS: Final = 64  # a plain mask with fewer is not worth reading
MOST_SCORES: Final = 2**25  # computed at a time, where the scores themselves are needed


def register() -> None:
    """Let every transformers model take `attn_implementation="maskwright"`.

    Calling it again changes nothing.

    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from maskwright.integrations.transformers import register
    >>> register()
    >>> config = LlamaConfig(
    ...     vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
    ...     num_attention_heads=4, num_key_value_heads=2, attn_implementation="maskwright",
    ... )
    >>> model = LlamaForCausalLM(config).eval()
    >>> tokens = torch.tensor([[0, 0, 5, 7], [3, 1, 4, 1]])
    >>> padding = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    >>> ours = model(tokens, attention_mask=padding).logits
    >>> model.set_attn_implementation("eager")
    >>> theirs = model(tokens, attention_mask=padding).logits
    >>> torch.allclose(ours[padding.bool()], theirs[padding.bool()], atol=1e-5)
    True
    """
    attention_functions, mask_functions = _interfaces()
    from maskwright.integrations.transformers_masks import mask_for_layers

    attention_functions[NAME] = attention_forward
    mask_functions[NAME] = mask_for_layers


def _interfaces() -> tuple[MutableMapping[str, Any], MutableMapping[str, Any]]:
    """The tables of attention functions and of mask functions that all models share."""
    import inspect

    fix = "Run: pip install -U 'maskwright[transformers]'"
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise MissingError(f"register: {error.name} is not installed. {fix}") from error
    try:
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
        from transformers.modeling_utils import AttentionInterface
    except ImportError as error:
        raise MissingError(
            f"register: transformers {transformers.__version__} has no attention interface. {fix}"
        ) from error
    missing = {"q_length", "q_offset", "use_vmap"} - set(inspect.signature(sdpa_mask).parameters)
    if missing:
        raise MissingError(
            f"register: transformers {transformers.__version__} is too old, its masks know no "
            f"{min(missing)}. {fix}"
        )
    # The tables that all instances share, so that models with one of their own see it too.
    return AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping


# ── attention ─────────────────────────────────────────────────────────────────────────────────


class Layer(NamedTuple):
    """What a layer gives: (batch, heads, length, head_dim) each, and what is done with them."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float | None
    dropout: float
    cap: float | None = None  # scores are bent to stay within it
    sinks: torch.Tensor | None = None  # (heads,): a score that takes weight and gives no value
    bias: torch.Tensor | None = None  # (batch or 1, heads, queries, keys), added to the scores


class Sight(NamedTuple):
    """What the queries of a layer see: a set of cells, a tensor that is no such set, or all."""

    mask: BoundMask | None = None
    tensor: torch.Tensor | None = None


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """One layer's attention: transformers' attention interface.

    A sliding window and the like are in the mask already. The second of the answer would be the
    weights, which are never all there at once.

    >>> import torch
    >>> from maskwright.integrations.transformers import attention_forward
    >>> x = torch.ones(1, 2, 3, 4)
    >>> out, _ = attention_forward(torch.nn.Identity(), x, x, x, None)
    >>> out.shape
    torch.Size([1, 3, 2, 4])
    """
    _refuse(kwargs)
    query, key, value = _in_one_dtype(query, key, value)
    query, scale = _plain_scale(query, scaling)
    layer = Layer(query, key, value, scale, dropout, softcap, s_aux, position_bias)
    if attention_mask is None:
        flag = getattr(module, "is_causal", True) if is_causal is None else is_causal
        layer, sight = _without_mask(layer, bool(flag))
    else:
        sight = _sight(attention_mask, layer)
    return _run(layer, sight).transpose(1, 2).contiguous(), None


def _run(layer: Layer, sight: Sight) -> torch.Tensor:
    """The fastest way that computes all that the layer asks for."""
    no_set = layer.bias is not None or sight.tensor is not None or _is_traced()
    if layer.cap is not None or (layer.sinks is not None and no_set):
        return _by_scores(layer, sight)
    return _by_torch(layer, sight) if no_set else _by_engine(layer, sight)


def _refuse(kwargs: dict[str, Any]) -> None:
    for name, what in REFUSED.items():
        if kwargs.get(name) is not None:
            raise Unsupported(
                f"maskwright's attention was given {name}, {what}, which it does not compute. "
                'Load the model with attn_implementation="eager" or "sdpa".'
            )
    if kwargs.get("output_attentions"):
        raise Unsupported(
            "maskwright's attention was asked for its weights, which it never has all at once. "
            'Load the model with attn_implementation="eager" to see them.'
        )


def _in_one_dtype(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Under autocast PyTorch's attention casts what it is given, and so does this one."""
    import torch

    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in tensors)


def _plain_scale(query: torch.Tensor, scale: Any) -> tuple[torch.Tensor, float | None]:
    """A scale that is a number; one that is learned is multiplied in."""
    import torch

    return (query * scale, 1.0) if isinstance(scale, torch.Tensor) else (query, scale)


def _is_traced() -> bool:
    """Is a compiler looking, which knows tensors only?"""
    import torch

    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())


# ── what is seen ──────────────────────────────────────────────────────────────────────────────


def _without_mask(layer: Layer, is_causal: bool) -> tuple[Layer, Sight]:
    """What transformers' "sdpa" does for lack of a mask: causal from the upper left, or all."""
    import torch

    q_len, kv_len = layer.query.shape[2], layer.key.shape[2]
    if not is_causal or q_len == 1:
        return layer, Sight()
    if kv_len > q_len:  # an empty static cache, of which the rest is not written yet
        bias = None if layer.bias is None else layer.bias[..., :q_len]
        key, value = layer.key[:, :, :q_len], layer.value[:, :, :q_len]
        layer, kv_len = layer._replace(key=key, value=value, bias=bias), q_len
    if not _is_traced():
        return layer, Sight(mask=_upper_left(q_len, kv_len))
    rows, keys = (torch.arange(n, device=layer.key.device) for n in (q_len, kv_len))
    return layer, Sight(tensor=rows[:, None] >= keys)


@lru_cache(maxsize=16)
def _upper_left(q_len: int, kv_len: int) -> BoundMask:
    return causal().on(q_len, kv_len, q_start=0)


def _sight(mask: torch.Tensor, layer: Layer) -> Sight:
    """What a mask says that came through the model: ours, or a tensor of somebody else's."""
    import torch

    if _is_traced():
        return Sight(tensor=mask)
    from maskwright.integrations.transformers_tensor import MaskTensor

    if isinstance(mask, MaskTensor):
        if not isinstance(mask.content, torch.Tensor):
            return Sight(mask=mask.content)
        mask = mask.content
    q_len, kv_len = layer.query.shape[2], layer.key.shape[2]
    if q_len < FEW_ROWS or mask.requires_grad or mask.is_inference():
        return Sight(tensor=mask)
    bound = _read_tensor(mask, q_len, kv_len)
    return Sight(tensor=mask) if bound is None else Sight(mask=bound)


def _read_tensor(tensor: torch.Tensor, q_len: int, kv_len: int) -> BoundMask | None:
    """The set of cells that a tensor says, if it says one; read once for all layers."""
    state = (tensor._version, q_len, kv_len)
    known = _read_tensors().get(tensor)
    if known is None or known[0] != state:
        known = _read_tensors()[tensor] = (state, _read_cells(tensor, q_len, kv_len))
    bound: BoundMask | None = known[1]
    return bound


@cache
def _read_tensors() -> Any:
    """Tensors and what was read of them, forgotten as soon as the tensor is."""
    from torch.utils.weak import WeakTensorKeyDictionary

    return WeakTensorKeyDictionary()


def _read_cells(tensor: torch.Tensor, q_len: int, kv_len: int) -> BoundMask | None:
    import torch

    if tensor.ndim != 4 or any(
        size not in (1, whole)
        for size, whole in zip(tensor.shape[2:], (q_len, kv_len), strict=True)
    ):
        return None
    seen = tensor
    if tensor.dtype != torch.bool:
        # A number that low leaves no weight, unless it is the best that a row has.
        seen = tensor == 0
        hides = bool((seen | (tensor <= torch.finfo(tensor.dtype).min)).all())
        if not hides or not bool(seen.any(-1).all()):
            return None
    cells = seen.expand(*seen.shape[:2], q_len, kv_len).cpu().numpy()
    return dense(cells).on(q_len, kv_len)


# ── the ways to compute it ────────────────────────────────────────────────────────────────────


def _by_engine(layer: Layer, sight: Sight) -> torch.Tensor:
    """By maskwright's own attention. Sinks take their share of what the softmax adds up to."""
    import torch

    from maskwright.engine.api import attention

    q, k, v = layer.query, layer.key, layer.value
    out = attention(
        q,
        k,
        v,
        sight.mask,
        scale=layer.scale,
        dropout_p=layer.dropout,
        enable_gqa=bool(q.shape[1] != k.shape[1]),
        return_lse=layer.sinks is not None,
    )
    if layer.sinks is None:
        return out
    out, lse = out
    share = torch.sigmoid(lse - layer.sinks.view(1, -1, 1).to(lse.dtype))
    return (out * share.unsqueeze(-1)).to(q.dtype)


def _by_torch(layer: Layer, sight: Sight) -> torch.Tensor:
    """By PyTorch's own attention, which takes a bias, and a compiler's tensors."""
    import torch
    from torch.nn import functional

    q, k, v = layer.query, layer.key, layer.value
    mask = _seen_or_bias(layer, sight, slice(None))
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


def _by_scores(layer: Layer, sight: Sight) -> torch.Tensor:
    """From the scores of some rows at a time, as "eager" has them: slow, and exact."""
    import torch

    q, k, v = layer.query, layer.key, layer.value
    shared = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    batch, heads, q_len, size = q.shape
    step = max(1, MOST_SCORES // max(1, batch * heads * k.shape[2]))
    scale = size**-0.5 if layer.scale is None else layer.scale
    parts = []
    for top in range(0, q_len, step):
        rows = slice(top, min(top + step, q_len))
        scores = (q[:, :, rows] @ k.transpose(-2, -1)) * scale
        weights = _weights(scores, layer, _seen_or_bias(layer, sight, rows), rows)
        weights = torch.dropout(weights.to(q.dtype), layer.dropout, train=layer.dropout > 0)
        parts.append(weights @ v)
    return torch.cat(parts, dim=2) if parts else q.new_zeros(batch, heads, 0, v.shape[3])


def _weights(
    scores: torch.Tensor, layer: Layer, mask: torch.Tensor | None, rows: slice
) -> torch.Tensor:
    """Softmax weights of some rows, with soft cap, bias, mask and sinks."""
    import torch

    from maskwright.engine.softmax import masked_softmax

    if layer.cap is not None:
        scores = torch.tanh(scores / layer.cap) * layer.cap
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


def _seen_or_bias(layer: Layer, sight: Sight, rows: slice) -> torch.Tensor | None:
    """Some rows of the mask: bool, or numbers to add; None if they see everything."""
    import torch

    if sight.mask is not None:
        start, stop, _ = rows.indices(layer.query.shape[2])
        return torch.from_numpy(sight.mask.rows(start, stop).dense()).to(layer.query.device)
    if sight.tensor is None or sight.tensor.ndim < 2 or sight.tensor.shape[-2] == 1:
        return sight.tensor
    return sight.tensor[..., rows, :]
