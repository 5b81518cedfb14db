"""Masks in PyTorch's own functions and modules, and in transformers models.

    F.scaled_dot_product_attention(q, k, v, attn_mask=mask)   no change of the code
    MultiheadAttention(...)(x, x, x, attn_mask=mask)          the module of nn, with its parameters
    wrap_mask(mask)                                           for nn.Transformer and its layers
    integrations.transformers.register()                      attn_implementation="maskwright"

An unbound mask is aligned at the last key; `mask.on(q_len, kv_len, q_start=0)` has the upper-left
alignment of `is_causal=True`. Other torch functions refuse a mask with an error.
"""

from maskwright._optional_deps import require

with require("maskwright.integrations"):
    import torch  # noqa: F401

from maskwright.integrations.multihead_attention import MultiheadAttention
from maskwright.integrations.torch_function import wrap_mask

__all__ = ["MultiheadAttention", "wrap_mask"]
