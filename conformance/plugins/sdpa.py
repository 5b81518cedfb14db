"""maskwright in place of `F.scaled_dot_product_attention`."""

from __future__ import annotations

import torch

from conformance.shims import scaled_dot_product_attention

torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
torch._C._nn.scaled_dot_product_attention = scaled_dot_product_attention
