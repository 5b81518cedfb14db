"""What `attention` was given, checked and made plain: tensors that fit, and a bound mask."""

from __future__ import annotations

import math
from typing import Any

from maskwright.core.arrays import kind_of
from maskwright.core.atoms import everything
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.errors import ArgumentError, FrameError

KEPT_FRAMES = 16  # bound masks that a mask remembers


def check_tensors(q: Any, k: Any, v: Any, enable_gqa: bool) -> None:
    """Refuse tensors that attention can't be computed of, in one sentence."""
    import torch

    if _fit_together(q, k, v, enable_gqa, torch.strided):
        return
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(
                f"attention: {name} is {kind_of(x)}. Give a torch tensor of shape "
                "(batch, heads, length, head_dim)."
            )
        if x.layout != torch.strided or x.is_nested:
            raise ArgumentError(
                f"attention: {name} is a sparse or nested tensor. Give a plain one, and pad or pack "
                "sequences of different lengths: mw.pad, mw.pack."
            )
        if x.dim() != 4:
            raise ArgumentError(
                f"attention: {name} has shape {tuple(x.shape)}. "
                "Give (batch, heads, length, head_dim)."
            )
    if not (q.dtype == k.dtype == v.dtype and _is_computable(q.dtype)):
        kinds = ", ".join(str(x.dtype).removeprefix("torch.") for x in (q, k, v))
        raise ArgumentError(
            f"attention: q, k, v are of dtype {kinds}. Give all three in one floating-point dtype."
        )
    if not q.device == k.device == v.device:
        raise ArgumentError(
            f"attention: q, k, v are on {q.device}, {k.device}, {v.device}. "
            "Move all three to one device."
        )
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.shape[0] != k.shape[0] or q.shape[0] != v.shape[0]:
        raise ArgumentError(f"attention: the batches of {shapes} differ. Give all three the same.")
    if k.shape[1:3] != v.shape[1:3]:
        raise ArgumentError(
            f"attention: heads or lengths of k and v differ, {shapes}. Give one value for each key."
        )
    if q.shape[3] != k.shape[3]:
        raise ArgumentError(
            f"attention: head_dim of q and k differ, {shapes}. Give both the same; only v may differ."
        )
    if q.shape[1] != k.shape[1]:
        if not enable_gqa:
            raise ArgumentError(
                f"attention: heads of q and k differ, {shapes}. Pass enable_gqa=True where groups "
                "of query heads share a key head."
            )
        if not k.shape[1] or q.shape[1] % k.shape[1]:
            raise ArgumentError(
                f"attention: q's heads are no multiple of k's, {shapes}. Give each key head to the "
                "same number of query heads."
            )


def _fit_together(q: Any, k: Any, v: Any, enable_gqa: bool, layout: Any) -> bool:
    """Are these tensors as they should be? One quick look, since most are."""
    try:
        (b, h, _, d), (kb, kh, s, kd), (vb, vh, vs, _) = q.shape, k.shape, v.shape
        return bool(
            b == kb == vb
            and kh == vh
            and s == vs
            and d == kd
            and (h == kh or (enable_gqa and kh and h % kh == 0))
            and q.dtype == k.dtype == v.dtype
            and _is_computable(q.dtype)
            and q.layout == k.layout == v.layout == layout
            and q.device == k.device == v.device
        )
    except (AttributeError, TypeError, ValueError):
        return False


def _is_computable(dtype: Any) -> bool:
    """Is it a floating-point dtype of at least two bytes? Smaller ones are for keeping only."""
    return bool(dtype.is_floating_point and dtype.itemsize > 1)


def check_numbers(scale: Any, dropout_p: Any) -> None:
    """Refuse a scale or a dropout that is no usable number."""
    if scale is not None and not (isinstance(scale, (int, float)) and math.isfinite(scale)):
        raise ArgumentError(
            f"attention: scale is {scale!r}. Give a finite number, or leave it out."
        )
    if not isinstance(dropout_p, (int, float)) or not 0.0 <= dropout_p < 1.0:
        raise ArgumentError(
            f"attention: dropout_p is {dropout_p!r}. Give a number from 0 to below 1."
        )


def bind(mask: Any, shape: tuple[int, int, int, int], q_start: int | None) -> BoundMask:
    """The mask on the frame (batch, heads, q_len, kv_len); a bound one must already fit it."""
    batch, heads, q_len, kv_len = shape
    if mask is None:
        mask = EVERYTHING
    if isinstance(mask, BoundMask):
        _check_fit(mask, shape, q_start)
        return mask
    if not isinstance(mask, Mask):
        raise ArgumentError(
            f"attention: the mask is {kind_of(mask)}. Give a mask of maskwright's; "
            "wrap an array in mw.dense(...)."
        )
    # A mask is the same object in every layer and step, so it remembers what it was bound to.
    kept: dict[Any, BoundMask] = mask.__dict__.setdefault("_bound_to", {})
    frame = (*shape, q_start)
    bound = kept.get(frame)
    if bound is None:
        bound = _bound(mask, q_len, kv_len, batch, heads, q_start)
        while len(kept) >= KEPT_FRAMES:
            kept.pop(next(iter(kept)), None)
        kept[frame] = bound
    return bound


EVERYTHING = everything()


def _bound(
    mask: Mask, q_len: int, kv_len: int, batch: int, heads: int, q_start: int | None
) -> BoundMask:
    try:
        return mask.on(q_len, kv_len, batch, heads, q_start)
    except FrameError as error:
        what, _, _ = str(error).partition(". ")
        if not what.startswith("on: "):
            raise
        raise FrameError(
            f"attention: {what.removeprefix('on: ')}. Give q, k and v as the mask's data has it, "
            "or a mask of theirs."
        ) from None


def _check_fit(bound: BoundMask, shape: tuple[int, int, int, int], q_start: int | None) -> None:
    batch, heads, q_len, kv_len = shape
    frame = bound.frame
    if (frame.q_len, frame.kv_len) != (q_len, kv_len):
        raise FrameError(
            f"attention: the mask is bound to {frame.q_len} queries and {frame.kv_len} keys, but "
            f"q and k have {q_len} and {kv_len}. Bind it to those, or pass the mask unbound."
        )
    planes = bound.shape[:2]
    if planes[0] not in (1, batch) or planes[1] not in (1, heads):
        raise FrameError(
            f"attention: the mask has batch {planes[0]} and heads {planes[1]}, but q has {batch} "
            f"and {heads}. Bind it to those, or to 1 where it is the same for all."
        )
    if q_start is not None and q_start != frame.q_start:
        raise FrameError(
            f"attention: q_start={q_start}, but the mask is bound with q_start={frame.q_start}. "
            "Leave q_start out, or pass the mask unbound."
        )
