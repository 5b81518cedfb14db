"""The effective mask of an attention kernel, computed from the kernel's arguments.

The `*_visible` functions return a bool tensor that is True where the softmax weight is not zeroed
by the mask. An additive mask masks a cell only if it leaves no weight at all and is low enough to
be meant as a mask.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from maskwright.recognition.encoding import MAX_MASK_VALUE


class SdpaArgs(NamedTuple):
    """Arguments of scaled_dot_product_attention that the mask depends on."""

    q: Any
    k: Any
    v: Any
    mask: Any
    is_causal: bool
    scale: float | None


class FastPathArgs(NamedTuple):
    """Arguments of nn's fused self-attention that the mask depends on."""

    x: Any
    embed_dim: int
    num_heads: int
    mask: Any
    mask_type: int | None  # 0 for (queries, keys), 1 for (batch, keys), 2 for four axes


def bind_sdpa(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SdpaArgs:
    """Arguments of scaled_dot_product_attention, or of one of its fused operators."""
    given = _by_name(operator, args, kwargs)
    return SdpaArgs(
        given["query"],
        given["key"],
        given["value"],
        given.get("attn_mask", given.get("attn_bias")),
        bool(given.get("is_causal")),
        given.get("scale"),
    )


def bind_fast_path(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FastPathArgs:
    """Arguments of torch._native_multi_head_attention or torch._transformer_encoder_layer_fwd."""
    given = _by_name(operator, args, kwargs)
    x, heads = (given["src"], "num_heads") if "src" in given else (given["query"], "num_head")
    return FastPathArgs(
        x, given["embed_dim"], given[heads], given.get("mask"), given.get("mask_type")
    )


def _by_name(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an ATen operator, by the names in its schema."""
    names = (argument.name for argument in operator._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def describe_convention(mask: Any, true_means: str) -> str:
    """How a kernel interprets a mask argument; `true_means` is "keeps" or "masks"."""
    if hasattr(mask, "_materialize"):  # torch.nn.attention.bias
        return type(mask).__name__
    if getattr(mask, "dtype", None) == torch.bool:
        return f"bool, True {true_means}"
    return "added" if isinstance(mask, torch.Tensor) else "a mask"


# ── visible cells ─────────────────────────────────────────────────────────────────────────────


def sdpa_visible(call: SdpaArgs) -> torch.Tensor:
    """Cells of scaled_dot_product_attention, (…, queries, keys).

    `is_causal` is aligned at the upper left corner.
    """
    q, k, _, mask, is_causal, scale = call
    if q.is_nested:
        visible = nested_visible(q, k)
        return visible.tril() if is_causal else visible
    size = (q.shape[-2], k.shape[-2])
    visible = torch.ones(size, dtype=torch.bool, device=q.device)
    if is_causal:
        visible = visible.tril()
    if mask is not None and hasattr(mask, "_materialize"):  # torch.nn.attention.bias
        mask = mask._materialize(q.device)
    if mask is not None:
        mask = mask.detach()
        if mask.dtype != torch.bool:
            mask = ~_masked_by(mask, _scores(q, k, scale))
        visible = visible & mask
    lead = torch.broadcast_shapes(q.shape[:-2], visible.shape[:-2])
    return visible.expand(*lead, *size)


def nested_visible(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Cells of nested tensors, (batch, 1, queries, keys): all keys of the query's own sequence."""
    # The parts are (length, dim) or (heads, length, dim).
    q_lengths, k_lengths = ([int(part.shape[-2]) for part in x.unbind()] for x in (q, k))
    positions = torch.arange(max(k_lengths, default=0))
    not_padding = positions < torch.tensor(k_lengths)[:, None]
    return not_padding[:, None, None, :].expand(-1, 1, max(q_lengths, default=0), -1)


def fast_path_visible(call: FastPathArgs) -> torch.Tensor:
    """Cells of nn's fused self-attention, (batch, heads, queries, keys).

    Every nonzero value of the mask masks its cell, also where the mask is of floats.
    """
    batch, length = call.x.size(0), call.x.shape[1]
    shape = (batch, call.num_heads, length, length)
    if call.mask is None:
        return torch.ones(shape, dtype=torch.bool)
    visible = ~call.mask.detach().to(torch.bool)
    if call.mask_type == 1:
        visible = visible.reshape(batch, 1, 1, length)
    elif visible.dim() == 2:
        visible = visible.reshape(1, 1, length, length)
    return visible.expand(shape)


def flex_visible(
    score_mod: Any, mask_mod: Any, shape: tuple[int, int, int, int], device: Any
) -> torch.Tensor:
    """Cells of flex_attention, by evaluating its two functions on all cells of `shape`."""
    from torch.nn.attention.flex_attention import create_mask

    visible = create_mask(mask_mod, *shape, device=device)
    if score_mod is not None:
        visible = visible & ~is_low(_scores_of_zero(score_mod, shape, device))
    return visible.expand(shape)


def _scores_of_zero(score_mod: Any, shape: tuple[int, int, int, int], device: Any) -> torch.Tensor:
    """What a score_mod makes of scores of 0, for all cells."""
    every = score_mod
    for axis in (4, 3, 2, 1):  # keys, queries, heads, batch
        in_dims = [0, None, None, None, None]
        in_dims[axis] = 0
        every = torch.vmap(every, in_dims=tuple(in_dims))
    index = [torch.arange(size, device=device) for size in shape]
    scores: torch.Tensor = every(torch.zeros(shape, device=device), *index)
    return scores


def is_mask_value(bias: torch.Tensor) -> torch.Tensor:
    """Where values that are added to scores are meant as a mask.

    These are values up to MAX_MASK_VALUE that are far from all others, and the lower one of a tensor
    with two distinct values. The values of ALiBi decrease in small steps, so they are no mask.
    """
    lowest = bias.amin() if bias.numel() else bias.sum()
    low = is_low(bias)
    if bool(lowest < 0) and bool(((bias == lowest) | (bias == bias.amax())).all()):
        low = low | ((bias == lowest) & (bias < 0))
    return low


def is_low(values: torch.Tensor, maximum: float = MAX_MASK_VALUE) -> torch.Tensor:
    """Where values are -inf, or up to `maximum` and far below all other ones.

    Far means that no value is in the power of two above: -10,000 and 0 are, -1,010 and -1,000 not.
    """
    low = values <= maximum
    finite = low & (values > -torch.inf)
    if not bool(finite.any()):
        return low
    negative = -values[(values < 0) & (values > -torch.inf)].double()
    present = set(
        torch.frexp(negative).exponent.unique().tolist()
    )  # value = mantissa * 2**exponent
    least = int(torch.frexp(torch.tensor(-maximum)).exponent)
    starts = (e for e in sorted(present) if e >= least and e - 1 not in present)
    first = next(starts, None)
    far = torch.zeros_like(low) if first is None else values <= -(2.0 ** (first - 1))
    return low & (far | ~finite)


def _masked_by(bias: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The cells whose softmax weight becomes 0 when this bias is added to these scores."""
    bias = bias.to(scores.dtype)
    weights = torch.softmax(scores + bias, -1)
    return (bias == -torch.inf) | ((weights == 0) & is_mask_value(bias))


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Attention scores in float32 or float64, with key heads repeated for GQA groups."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, k = q.detach().to(dtype), k.detach().to(dtype)
    if q.dim() > 2 and q.shape[-3] != k.shape[-3] and k.shape[-3] > 1:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return (q @ k.transpose(-2, -1)) * factor
