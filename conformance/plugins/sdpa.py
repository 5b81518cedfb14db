"""maskwright in place of `F.scaled_dot_product_attention`."""

from __future__ import annotations

from typing import get_type_hints

import torch
from torch import Tensor

from conformance import shims


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """SDPA by maskwright; torch.jit.script compiles this call, and calls the shim as it is."""
    return attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


attend = shims.scaled_dot_product_attention
for function in (attend, scaled_dot_product_attention):  # TorchScript reads no strings as types
    function.__annotations__ = get_type_hints(function)
torch.jit.ignore(attend)
torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
torch._C._nn.scaled_dot_product_attention = scaled_dot_product_attention
