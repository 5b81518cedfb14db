"""torch.transformer: the six mask arguments of nn.Transformer, where True means masked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.targets._torch import dropping_mask, factorize
from maskwright.targets.base import Target
from maskwright.targets.codegen import bound_code
from maskwright.targets.predicates import EmptyRows, check_empty_rows, first_empty_row, visible_keys

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.targets.base import EncDecMasks

TARGET = Target(
    name="torch.transformer",
    returns="the six mask arguments, from three masks",
    supports="every triple of masks",
    polarity="True masks",
    shape="(T, S) or (B·H, T, S), and (B, S), for each of the three attentions",
    empty_rows="NaN in eval mode; zero with float masks, except in the encoder",
    encoding="drop",
    accepts_additive=True,
    dtypes=("bool", "float"),
    num_masks=3,
    requires="torch",
    alternatives=("torch.bool",),
)

NAMES = (
    ("src_mask", "src_key_padding_mask"),
    ("tgt_mask", "tgt_key_padding_mask"),
    ("memory_mask", "memory_key_padding_mask"),
)


def lower(
    bound: EncDecMasks,
    *,
    device: object = None,
    dtype: object = None,
    empty_rows: EmptyRows = "zero",
) -> dict[str, Any]:
    """The masks of the encoder, of the decoder and of cross-attention."""
    lowered: dict[str, Any] = {}
    for part, names in zip(bound, NAMES, strict=True):
        in_encoder = names is NAMES[0]
        check_empty_rows(part, empty_rows, returns_zero=not in_encoder)
        floats = empty_rows == "zero" and first_empty_row(part) is not None
        factors = _factorize_encoder(part, bound[2]) if in_encoder else factorize(part)
        for name, visible in zip(names, factors, strict=True):
            lowered[name] = dropping_mask(visible, dtype, device, floats=floats)
    return lowered


def usage(bound: EncDecMasks, lowered: dict[str, Any]) -> list[str]:
    """Lines that call it: `transformer` is the module (batch_first)."""
    encoder, decoder, cross = (bound_code(part) for part in bound)
    masks = [mask for mask in lowered.values() if mask is not None]
    floats = bool(masks) and all(mask.is_floating_point() for mask in masks)
    options = f', dtype="{str(masks[0].dtype).removeprefix("torch.")}"' if floats else ""
    options += "" if first_empty_row(bound[0]) is None else ', empty_rows="native"'
    polarity = "0 keeps, -inf masks" if floats else "True masks"
    return [
        "import maskwright as mw",
        "",
        "masks = (",
        f"    {encoder},  # encoder",
        f"    {decoder},  # decoder",
        f"    {cross},  # cross-attention",
        ")",
        f'masks = mw.lower(masks, "torch.transformer"{options})  # {polarity}',
        "output = transformer(source, target, **masks)",
    ]


def _factorize_encoder(encoder: BoundMask, cross: BoundMask) -> Any:
    """The encoder's factors, with an all-visible `src_mask` where its padding is attended to.

    In eval mode an encoder that has only a padding mask returns zero for padded tokens, whatever
    they attend to. Passing `src_mask` too disables that fast path.
    """
    common, keys = factorize(encoder)
    if common is None and keys is not None and bool((visible_keys(cross) & ~keys).any()):
        common = np.ones(encoder.shape[2:], np.bool_)
    return common, keys
