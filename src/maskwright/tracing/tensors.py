"""Tensors on their way: the first of some, its shape, a copy that nobody changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskwright.tracing.nodes import is_plain

if TYPE_CHECKING:
    from maskwright.tracing.calls import Shape


def first_of(values: Any) -> torch.Tensor | None:
    """The first tensor in what a module takes or gives."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        inside = value.values() if isinstance(value, dict) else value
        if isinstance(value, (tuple, list, dict)):
            found = first_of(inside)
            if found is not None:
                return found
    return None


def shape_of(x: Any) -> Shape | None:
    """The shape of a tensor; of a nested one, the one that holds all of it."""
    if x is None:
        return None
    if not x.is_nested:
        return tuple(x.shape)
    parts = [tuple(part.shape) for part in x.unbind()]
    return (len(parts), *(max(sizes) for sizes in zip(*parts, strict=True)))


def is_real(x: Any) -> bool:
    """Has it numbers that can be read?"""
    return is_plain(x) or (isinstance(x, torch.Tensor) and x.is_nested)


def kept(x: Any) -> Any:
    """A copy of a tensor, which nobody changes; anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.is_nested:
        return x.detach().to_padded_tensor(0.0)
    return x.detach().clone() if is_plain(x) else x.detach()
