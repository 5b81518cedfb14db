"""English texts of the differences between the layers of a trace."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = {
    "trace.mask_differs": "the mask of {layers} differs from that of {reference}: {mask}",
    "trace.layer_range": "{first} … {last} ({count} layers)",
}
