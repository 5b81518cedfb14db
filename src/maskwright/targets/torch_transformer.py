"""torch.transformer: the six mask arguments of nn.Transformer. Here True drops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.targets.code import bound_code
from maskwright.targets.facts import (
    EmptyRows,
    check_empty_rows,
    first_empty_row,
    seen_keys,
)
from maskwright.targets.target import Target
from maskwright.targets.torch_factors import factors
from maskwright.targets.torch_tensors import additive, tensor

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="torch.transformer",
    gives="the six mask arguments, from three masks",
    says="every three masks",
    polarity="True drops",
    shape="(T, S) or (B·H, T, S), and (B, S), for each of the three attentions",
    alignment="the frame's",
    empty_rows="NaN in eval mode; floats give zero, but not in the encoder",
    reads="drop",
    adds_floats=True,
    masks=3,
    needs="torch",
    instead=("torch.bool",),
)

NAMES = (
    ("src_mask", "src_key_padding_mask"),
    ("tgt_mask", "tgt_key_padding_mask"),
    ("memory_mask", "memory_key_padding_mask"),
)


def lower(
    bound: tuple[BoundMask, BoundMask, BoundMask],
    *,
    device: object = None,
    dtype: object = None,
    empty_rows: EmptyRows = "zero",
) -> dict[str, Any]:
    """The encoder's mask, the decoder's, and the one of the decoder's look at the encoder."""
    lowered: dict[str, Any] = {}
    for part, names in zip(bound, NAMES, strict=True):
        in_encoder = names is NAMES[0]
        check_empty_rows(part, empty_rows, gives_zero=not in_encoder)
        floats = empty_rows == "zero" and first_empty_row(part) is not None
        allowed = _past_the_padding(part, bound[2]) if in_encoder else factors(part)
        for name, cells in zip(names, allowed, strict=True):
            if cells is None:
                lowered[name] = None
            elif floats or dtype is not None:
                lowered[name] = additive(cells, dtype, None, device)
            else:
                lowered[name] = tensor(~cells, device)
    return lowered


def _past_the_padding(encoder: BoundMask, cross: BoundMask) -> Any:
    """The encoder's factors; with a mask that hides nothing, where its padding is looked at.

    In eval mode an encoder that is told of padding alone gives zero for padded tokens, whatever
    they see. A mask beside it leads past that.
    """
    common, keys = factors(encoder)
    if common is None and keys is not None and bool((seen_keys(cross) & ~keys).any()):
        common = np.ones(encoder.shape[2:], np.bool_)
    return common, keys


def usage(bound: tuple[BoundMask, BoundMask, BoundMask], given: dict[str, Any]) -> list[str]:
    """The lines that call it: `transformer` is the module (batch_first)."""
    encoder, decoder, cross = (bound_code(part) for part in bound)
    masks = [mask for mask in given.values() if mask is not None]
    floats = bool(masks) and all(mask.is_floating_point() for mask in masks)
    wish = f', dtype="{str(masks[0].dtype).removeprefix("torch.")}"' if floats else ""
    wish += "" if first_empty_row(bound[0]) is None else ', empty_rows="native"'
    said = "0 keeps, -inf drops" if floats else "True drops"
    return [
        "import maskwright as mw",
        "",
        "masks = (",
        f"    {encoder},  # the encoder's",
        f"    {decoder},  # the decoder's",
        f"    {cross},  # of the decoder's look at the encoder",
        ")",
        f'given = mw.lower(masks, "torch.transformer"{wish})  # {said}',
        "output = transformer(source, target, **given)",
    ]
