"""torch.mha: keyword arguments of nn.MultiheadAttention, where True means masked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright.bias.scores import NO_SCORES, Scores
from maskwright.targets._torch import additive_mask, check_options, dropping_mask, factorize
from maskwright.targets.base import Target
from maskwright.targets.codegen import mask_code
from maskwright.targets.predicates import EmptyRows, check_bytes, check_empty_rows, first_empty_row
from maskwright.targets.scores import dense_bias

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="torch.mha",
    returns="attn_mask and key_padding_mask",
    polarity="True masks",
    shape="(T, S) or (B·H, T, S), and (B, S)",
    empty_rows="NaN; zero with float masks and need_weights=False, which are used where needed",
    encoding="drop",
    accepts_additive=True,
    dtypes=("bool", "float"),
    requires="torch",
    scores={"bias": "in a float attn_mask, (B·H, T, S)"},
    score_call="output, weights = attention(x, x, x, **lowered)",
)


def lower(
    bound: BoundMask,
    *,
    device: object = None,
    dtype: object = None,
    empty_rows: EmptyRows = "zero",
    scores: Scores = NO_SCORES,
) -> dict[str, Any]:
    """One mask for all sequences with the padding of each, or a mask per sequence and head.

    The module returns NaN for a fully masked row, unless the masks are floats and `need_weights`
    is False: both are set where needed.
    """
    check_options(device, dtype)
    check_empty_rows(bound, empty_rows, returns_zero=True)
    avoid_nan = empty_rows == "zero" and first_empty_row(bound) is not None
    if scores.bias is not None:
        full = additive_mask(bound.dense(), dtype, None, device, dense_bias(scores, bound))
        size = (bound.frame.batch, bound.frame.heads)
        check_bytes((*size, *full.shape[2:]), full.itemsize)
        mask = full.expand(*size, -1, -1).flatten(0, 1)
        kwargs: dict[str, Any] = {"attn_mask": mask, "key_padding_mask": None}
        return {**kwargs, "need_weights": False} if avoid_nan else kwargs
    lowered: dict[str, Any] = {
        name: dropping_mask(visible, dtype, device, floats=avoid_nan)
        for name, visible in zip(("attn_mask", "key_padding_mask"), factorize(bound), strict=True)
    }
    return {**lowered, "need_weights": False} if avoid_nan else lowered


def usage(bound: BoundMask, lowered: dict[str, Any]) -> list[str]:
    """Lines that call it: `attention` is the module (batch_first), x its input."""
    lines = mask_code(bound, "torch")
    names: list[str] = []
    attn_mask, keys = lowered["attn_mask"], lowered["key_padding_mask"]
    if lowered.get("need_weights") is False:
        lines.insert(
            0, "# a row is fully masked: float masks and need_weights=False return zero, not NaN"
        )
    if attn_mask is not None:
        names.append("attn_mask=attn_mask")
        shape = f"{bound.frame.batch}, {bound.frame.heads}, -1, -1"
        full = f"mask.expand({shape}).flatten(0, 1)"
        part = "mask.any(0)[0]" if attn_mask.ndim == 2 else full
        lines.append(f"attn_mask = {_assigned(part, attn_mask)}")
    if keys is not None:
        names.append("key_padding_mask=key_padding_mask")
        part = f"mask.any(2)[:, 0].expand({bound.frame.batch}, -1)"
        lines.append(f"key_padding_mask = {_assigned(part, keys)}")
    if lowered.get("need_weights") is False:
        names.append("need_weights=False")
    other = "x" if bound.frame.q_len == bound.frame.kv_len else "memory"
    lines.append(f"output, weights = attention({', '.join(['x', other, other, *names])})")
    return lines


def _assigned(part: str, mask: Any) -> str:
    """Source of a mask argument from that of its visible cells."""
    shape = tuple(mask.shape)
    if not mask.is_floating_point():
        return f"~{part}  # {shape}, True masks"
    dtype = "" if str(mask.dtype) == "torch.float32" else f", dtype={mask.dtype}"
    return (
        f'torch.zeros({shape}{dtype}).masked_fill(~({part}), float("-inf"))  # 0 keeps, -inf masks'
    )
