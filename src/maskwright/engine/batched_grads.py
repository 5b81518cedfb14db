"""Gradients in batches: `torch.autograd.grad(..., is_grads_batched=True)`, `jacobian(vectorize=True)`.

PyTorch maps the backward pass by its older vmap, which does not know the `vmap` of an autograd
function, and whose tensors have no memory that a kernel can read. A backward function finds
such a gradient with `is_batched` and computes with `map_batched`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._C._functorch import is_legacy_batchedtensor

from maskwright.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable


def is_batched(*grads: torch.Tensor | None) -> bool:
    """Whether a gradient is a batch of gradients."""
    return any(x is not None and is_legacy_batchedtensor(x) for x in grads)


def map_batched(
    function: Callable[..., tuple[torch.Tensor | None, ...]], *grads: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    """The results of a function of gradients whose first dimension is that of the batch.

    Args:
        function: Takes the gradients, (count, ...) each, or None. It returns tensors (count, ...),
            or None.
        *grads: Gradients, of which `is_batched` is true.

    Returns:
        The results, as batches.

    Raises:
        Unsupported: The gradients are batches of batches.
    """
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    present = [x for x in grads if x is not None]
    # A tensor that is no batch at this level is expanded to the size that is passed, 0.
    count = max(torch._remove_batch_dim(x, level, 0, 0).shape[0] for x in present)
    plain = [x if x is None else torch._remove_batch_dim(x, level, count, 0) for x in grads]
    if is_batched(*plain):
        raise Unsupported(
            "attention: gradients are batches of batches. Call torch.autograd.grad with "
            "is_grads_batched=True once, or use torch.func.jacrev and torch.func.vmap.",
            target="is_grads_batched",
        )
    results = function(*plain)
    return tuple(x if x is None else torch._add_batch_dim(x, 0, level) for x in results)
