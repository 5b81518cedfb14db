"""torch.transformer: the six mask arguments of nn.Transformer. Here True drops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright.targets.facts import EmptyRows, check_empty_rows, first_empty_row
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
    empty_rows="NaN in eval mode; floats give zero, but not for the encoder's src_mask",
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
        allowed = factors(part)
        in_encoder = names[0] == "src_mask"
        sayable = not in_encoder or allowed[0] is None
        check_empty_rows(part, empty_rows, gives_zero=sayable)
        floats = empty_rows == "zero" and first_empty_row(part) is not None
        for name, cells in zip(names, allowed, strict=True):
            if cells is None:
                lowered[name] = None
            elif floats or dtype is not None:
                lowered[name] = additive(cells, dtype, None, device)
            else:
                lowered[name] = tensor(~cells, device)
    return lowered


def usage(bound: tuple[BoundMask, BoundMask, BoundMask], given: dict[str, Any]) -> list[str]:
    """The lines that call it: `transformer` is the module (batch_first)."""
    masks = ", ".join(f'mw.parse("{part.mask!r}")' for part in bound)
    target, source = bound[2].frame.q_len, bound[2].frame.kv_len
    sizes = f"q_len={target}, kv_len={source}, batch={bound[2].frame.batch}"
    if any(cells is not None and cells.ndim == 3 for cells in given.values()):
        sizes += f", heads={bound[2].frame.heads}"
    return [
        "import maskwright as mw",
        "",
        "# encoder, decoder, and the decoder's look at the encoder",
        f"masks = ({masks})",
        f'given = mw.lower(masks, "torch.transformer", {sizes})  # True drops',
        "output = transformer(source, target, **given)",
    ]
