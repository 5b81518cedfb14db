"""maskwright in place of `F.scaled_dot_product_attention`."""

from __future__ import annotations

from typing import get_type_hints

import torch

from conformance.shims import scaled_dot_product_attention

# torch.jit.script calls it without compiling it; it needs types as annotations, not strings.
scaled_dot_product_attention.__annotations__ = get_type_hints(scaled_dot_product_attention)
torch.jit.ignore(scaled_dot_product_attention)
torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
torch._C._nn.scaled_dot_product_attention = scaled_dot_product_attention
