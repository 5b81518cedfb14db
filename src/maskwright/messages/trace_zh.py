"""Chinese texts of the differences between the layers of a trace."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = {
    "trace.mask_differs": "{layers} 的掩码与 {reference} 的不同：{mask}",
    "trace.layer_range": "{first} … {last}（{count} 层）",
}
