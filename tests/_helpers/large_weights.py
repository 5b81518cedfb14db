"""Weights that show a wrong mask."""

from __future__ import annotations

from typing import Any

import torch


def with_large_weights(model: Any, scale: float = 0.2) -> Any:
    """Random weights so large that one cell of the mask changes the logits visibly."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * scale)
    return model.eval()
