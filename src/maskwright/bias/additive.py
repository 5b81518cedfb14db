"""Additive masks read as a mask and a bias."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.bias.atoms import tensor as bias_of_tensor
from maskwright.bias.values import is_torch
from maskwright.core.atoms import dense, everything
from maskwright.core.validate import read_array
from maskwright.errors import ArgumentError, Unsupported

if TYPE_CHECKING:
    from maskwright.bias.expr import BiasAtom
    from maskwright.core.expr import Mask


def from_additive(tensor: Any) -> tuple[Mask, BiasAtom | None]:
    """The mask and the bias of a tensor that is added to the attention scores.

    Only -inf masks a cell, and the bias is 0 there. A finite value, `torch.finfo(dtype).min`
    included, is a bias: in a row of nothing but that value the weights are uniform. To read such
    values as masked, use `recognize`.

    Args:
        tensor: Floating-point values that broadcast to (batch, heads, queries, keys), aligned at
            the last axis, as `attn_mask` of `F.scaled_dot_product_attention`.

    Returns:
        The mask, and the bias; None if all finite values are 0 and need no gradient. The gradient
        of a bias reaches `tensor`.

    Raises:
        ArgumentError: If the values contain NaN or +inf, are not floating-point numbers, or have
            more than four axes.
        Unsupported: If the values are not available, as in a compiled function.

    >>> import maskwright as mw
    >>> mask, bias = mw.from_additive([[0.5, float("-inf")], [0.0, 1.0]])
    >>> mask.on(2).equals(mw.causal())
    equal
    >>> bias
    tensor([[[[0.5, 0.0], [0.0, 1.0]]]])
    """
    what = "from_additive: tensor"
    if is_torch(tensor):
        return _from_tensor(tensor, what)
    array = read_array(tensor, what)
    _check(array.dtype, array.dtype.kind == "f", array.shape, what)
    values = array.reshape((1,) * (4 - array.ndim) + array.shape)
    _check_values(values, np.isnan(values) | np.isposinf(values), what)
    masked = np.isneginf(values)
    return _mask_of(masked), _bias_of(np.where(masked, array.dtype.type(0), values))


def _from_tensor(tensor: Any, what: str) -> tuple[Mask, BiasAtom | None]:
    from maskwright._torch_state import has_values

    if not has_values(tensor):
        raise Unsupported(
            f"{what} has values that are not available: the function is compiled, transformed, or "
            "the tensor is fake. Call from_additive outside, and pass the mask and the bias.",
            target="from_additive",
        )
    _check(tensor.dtype, tensor.is_floating_point(), tensor.shape, what)
    values = tensor.reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape))
    content = values.detach()
    _check_values(content, content.isnan() | content.isposinf(), what)
    masked = content.isneginf()
    mask = _mask_of(masked.cpu().numpy())
    return mask, _bias_of(values.masked_fill(masked, 0) if bool(masked.any()) else values)


def _check(dtype: Any, is_float: bool, shape: Any, what: str) -> None:
    if not is_float:
        raise ArgumentError(
            f"{what} has dtype {dtype}. Pass floating-point numbers; for booleans use dense(...)."
        )
    if len(shape) > 4:
        raise ArgumentError(
            f"{what} has shape {tuple(shape)}. Pass up to four axes: (batch, heads, queries, keys)."
        )


def _check_values(values: Any, wrong: Any, what: str) -> None:
    """Raises ArgumentError for NaN and +inf, where `wrong` is true."""
    if bool(wrong.any()):
        raise ArgumentError(
            f"{what} contains {float(values[wrong][0])}. "
            "Pass -inf for masked cells and finite numbers for the others."
        )


def _mask_of(masked: Any) -> Mask:
    return dense(~masked) if masked.any() else everything()


def _bias_of(values: Any) -> BiasAtom | None:
    """None if the values are all 0 and need no gradient."""
    if not getattr(values, "requires_grad", False) and not bool((values != 0).any()):
        return None
    return bias_of_tensor(values)
