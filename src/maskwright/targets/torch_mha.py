"""torch.mha: keyword arguments of nn.MultiheadAttention. Here True drops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright.targets.code import mask_code
from maskwright.targets.facts import EmptyRows, check_empty_rows, first_empty_row
from maskwright.targets.target import Target
from maskwright.targets.torch_factors import factors
from maskwright.targets.torch_tensors import additive, check_options, tensor

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="torch.mha",
    gives="attn_mask and key_padding_mask",
    says="every mask",
    polarity="True drops",
    shape="(T, S) or (B·H, T, S), and (B, S)",
    alignment="the frame's",
    empty_rows="NaN; with floats and need_weights=False zero, which is given where it is needed",
    reads="drop",
    adds_floats=True,
    needs="torch",
)


def lower(
    bound: BoundMask,
    *,
    device: object = None,
    dtype: object = None,
    empty_rows: EmptyRows = "zero",
) -> dict[str, Any]:
    """One mask for all and the keys of each sequence, or a mask for every sequence and head.

    A row that sees nothing would come out as NaN; then the masks are floats, and `need_weights`
    is off: together they lead past the paths that do so.
    """
    check_options(device, dtype)
    check_empty_rows(bound, empty_rows, gives_zero=True)
    attention, keys = factors(bound)
    repair = empty_rows == "zero" and first_empty_row(bound) is not None

    def said(allowed: Any) -> Any:
        if allowed is None:
            return None
        if repair or dtype is not None:
            return additive(allowed, dtype, None, device)
        return tensor(~allowed, device)

    lowered = {"attn_mask": said(attention), "key_padding_mask": said(keys)}
    return {**lowered, "need_weights": False} if repair else lowered


def usage(bound: BoundMask, given: dict[str, Any]) -> list[str]:
    """The lines that call it by hand: `attention` is the module (batch_first), x its input."""
    lines = mask_code(bound, "torch")
    names: list[str] = []
    attention, keys = given["attn_mask"], given["key_padding_mask"]
    floats = any(part is not None and part.is_floating_point() for part in (attention, keys))
    form = "" if floats else "~"
    if given.get("need_weights") is False:
        lines.insert(
            0, "# a row that sees nothing: floats and need_weights=False give zero, not NaN"
        )
    if attention is not None:
        names.append("attn_mask=attn_mask")
        part = "mask.any(0)[0]" if attention.ndim == 2 else _spread(bound)
        lines.append(f"attn_mask = {_as(form, part, attention)}")
    if keys is not None:
        names.append("key_padding_mask=key_padding_mask")
        part = f"mask.any(2)[:, 0].expand({bound.frame.batch}, -1)"
        lines.append(f"key_padding_mask = {_as(form, part, keys)}")
    if given.get("need_weights") is False:
        names.append("need_weights=False")
    other = "x" if bound.frame.q_len == bound.frame.kv_len else "memory"
    lines.append(f"output, weights = attention({', '.join(['x', other, other, *names])})")
    return lines


def _spread(bound: BoundMask) -> str:
    frame = bound.frame
    return f"mask.expand({frame.batch}, {frame.heads}, -1, -1).flatten(0, 1)"


def _as(form: str, part: str, given: Any) -> str:
    shape = tuple(given.shape)
    if form:
        return f"~{part}  # {shape}, True drops"
    hide = 'masked_fill(~allowed, float("-inf"))'
    kind = "" if str(given.dtype) == "torch.float32" else f", dtype={given.dtype}"
    return (
        f"torch.zeros({shape}{kind}).{hide.replace('allowed', f'({part})')}  # 0 keeps, -inf drops"
    )
