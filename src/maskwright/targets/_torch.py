"""Tensors from numpy arrays, and the split into attn_mask and key_padding_mask, for torch targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError
from maskwright.targets.base import invalid_device, invalid_dtype, mask_value
from maskwright.targets.predicates import check_bytes
from maskwright.targets.scores import check_bias_range, check_fill

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray


def to_tensor(array: npt.NDArray[Any], device: object = None, dtype: Any = None) -> torch.Tensor:
    """Returns a copy of the array as a tensor."""
    import torch

    check_bytes(array.shape, array.itemsize if dtype is None else dtype.itemsize)
    if any(stride < 0 for stride in array.strides):  # a flipped view, which torch does not take
        array = array.copy()
    try:
        return torch.tensor(array, device=parse_device(device), dtype=dtype)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        raise ArgumentError(
            f"lower: device={device!r} is not available ({str(error).splitlines()[0]:.80}). "
            "Pass a device of this machine."
        ) from error


def int32_tensor(values: npt.NDArray[Any], device: object = None) -> torch.Tensor:
    """Returns integers as an int32 tensor, as attention kernels take them."""
    import torch

    return to_tensor(values, device, torch.int32)


def additive_mask(
    visible: BoolArray,
    dtype: object = None,
    fill: object = None,
    device: object = None,
    bias: Any = None,
) -> torch.Tensor:
    """Returns a float tensor: the bias, or 0, of a visible key, else `fill`.

    One select, never a sum. Gradients reach a bias that is a tensor.
    """
    import torch

    kind = parse_dtype(dtype)
    value = mask_value(fill, torch.finfo(kind).min, str(kind).removeprefix("torch."))
    check_bytes(visible.shape, kind.itemsize)
    keep = to_tensor(visible, device)
    if bias is not None:
        check_bytes(np.broadcast_shapes(visible.shape, tuple(bias.shape)), kind.itemsize)
        bias_array = torch.as_tensor(bias).detach().cpu().double().numpy()
        check_bias_range(bias_array, torch.finfo(kind).max, str(kind).removeprefix("torch."))
        check_fill(float(bias_array.min(initial=0.0)), value)
        scores = torch.as_tensor(bias).to(device=keep.device, dtype=kind)
        return torch.where(keep, scores, torch.tensor(value, dtype=kind, device=keep.device))
    return torch.zeros(keep.shape, dtype=kind, device=keep.device).masked_fill_(~keep, value)


def dropping_mask(
    visible: BoolArray | None, dtype: object, device: object, *, floats: bool
) -> torch.Tensor | None:
    """Returns a mask in which True masks; an additive one with `floats` or a dtype."""
    if visible is None:
        return None
    if floats or dtype is not None:
        return additive_mask(visible, dtype, None, device)
    return to_tensor(~visible, device)


def additive_range(bias: torch.Tensor) -> tuple[float, float]:
    """The minimum of an additive mask, 0 if it has no data, and the minimum of its dtype."""
    import torch

    has_data = bias.numel() > 0 and bias.device.type != "meta"
    return float(bias.min()) if has_data else 0.0, torch.finfo(bias.dtype).min


def factorize(bound: BoundMask) -> tuple[BoolArray | None, BoolArray | None]:
    """Splits a mask into an attention mask (T, S) and key padding (B, S), as torch's modules do.

    The mask is the intersection of the two; None stands for one that masks nothing. If there is
    such a pair, this one is: the smallest mask that is common to all sequences, and the smallest
    set of keys of each. Otherwise the first is the full mask (B·H, T, S), and the second None.
    """
    visible, frame = bound.dense(), bound.frame
    if bool((visible == visible[:, :1]).all()):
        visible = visible[:, :1]
        common = np.any(visible, axis=(0, 1))  # (T, S)
        keys = np.any(visible, axis=(1, 2))  # (B or 1, S)
        if bool((visible == (common & keys[:, None, None, :])).all()):
            if bool((visible == keys[:, None, None, :]).all()):
                common = np.ones_like(common)
            if len(keys) == 1 and bool((visible == common).all()):
                keys = np.ones_like(keys)
            padding = np.broadcast_to(keys, (frame.batch, keys.shape[1]))
            return None if common.all() else common, None if keys.all() else padding
    check_bytes((frame.batch, frame.heads, *visible.shape[2:]), 1)
    full = np.broadcast_to(visible, (frame.batch, frame.heads, *visible.shape[2:]))
    return full.reshape(frame.batch * frame.heads, *visible.shape[2:]), None


def check_options(device: object, dtype: object) -> None:
    """Raises for an invalid device or dtype, also where the mask needs no tensor."""
    parse_device(device)
    parse_dtype(dtype)


def parse_dtype(dtype: object) -> torch.dtype:
    """Returns a floating-point dtype, from a torch.dtype or its name; float32 for None."""
    import torch

    torch_dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if torch_dtype is None and dtype is None:
        return torch.float32
    if torch_dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        named = isinstance(dtype, (str, torch.dtype))
        raise invalid_dtype(str(dtype) if named else describe_type(dtype), "torch.float32")
    assert isinstance(torch_dtype, torch.dtype)
    return torch_dtype


def parse_device(device: Any) -> Any:
    """Returns a torch.device, or None for the default device."""
    import torch

    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise invalid_device(device, "torch", "'cpu' or 'cuda:0'") from error
