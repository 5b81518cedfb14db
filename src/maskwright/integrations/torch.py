"""Masks in PyTorch's own code: `F.scaled_dot_product_attention` and `nn.MultiheadAttention`.

    F.scaled_dot_product_attention(q, k, v, attn_mask=mask)   nothing to import, nothing to edit
    MultiheadAttention(…)(x, x, x, attn_mask=mask)            nn's layer, with its parameters
    carry(mask)                                               through nn.Transformer and its parts

In all of them the last query sits at the last key (lower right), which is the masks' own default;
`mask.on(q_len, kv_len, q_start=0)` gives the upper-left alignment of SDPA's `is_causal`. Any other
function of torch's refuses a mask, and says what to do.

torch.compile(fullgraph=True) can't import while it traces: import this module before, if nothing
was computed with a mask yet.
"""

from __future__ import annotations

from maskwright.integrations.torch_calls import carry
from maskwright.integrations.torch_multihead import MultiheadAttention

__all__ = ["MultiheadAttention", "carry"]
