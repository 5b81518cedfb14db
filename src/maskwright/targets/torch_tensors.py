"""numpy to torch: what the torch targets share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError
from maskwright.targets.facts import check_bytes
from maskwright.targets.fills import read_fill

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from maskwright.core.validate import BoolArray


def tensor(array: npt.NDArray[Any], device: object = None, dtype: Any = None) -> torch.Tensor:
    """The array's values as a tensor of its own."""
    import torch

    check_bytes(array.shape, array.itemsize if dtype is None else dtype.itemsize)
    try:
        return torch.tensor(array, device=read_device(device), dtype=dtype)
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        raise ArgumentError(
            f"lower: device={device!r} can't be used here ({str(error).splitlines()[0]:.80}). "
            "Give one that this machine has."
        ) from error


def check_options(device: object, dtype: object) -> None:
    """Refuse options that would be refused if a tensor were needed, also where none is."""
    read_device(device)
    float_dtype(dtype)


def numbers(values: npt.NDArray[Any], device: object = None) -> torch.Tensor:
    """Whole numbers as the int32 that attention kernels take."""
    import torch

    return tensor(values, device, torch.int32)


def float_dtype(dtype: object) -> torch.dtype:
    """A floating-point dtype, given as torch's own or by its name; float32 if not given."""
    import torch

    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found is None and dtype is None:
        return torch.float32
    if found not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        given = dtype if isinstance(dtype, (str, torch.dtype)) else describe_type(dtype)
        raise ArgumentError(
            f"lower: dtype is {given}. Give a floating-point dtype, such as torch.float32."
        )
    assert isinstance(found, torch.dtype)
    return found


def additive(
    allowed: BoolArray, dtype: object = None, fill: object = None, device: object = None
) -> torch.Tensor:
    """0 where a key may be seen, else the fill: one select, never a sum."""
    import torch

    kind = float_dtype(dtype)
    hides = read_fill(fill, torch.finfo(kind).min, str(kind).removeprefix("torch."))
    check_bytes(allowed.shape, kind.itemsize)
    shown = tensor(allowed, device)
    return torch.zeros(shown.shape, dtype=kind, device=shown.device).masked_fill_(~shown, hides)


def least(bias: torch.Tensor) -> tuple[float, float]:
    """The least number of an additive mask, 0 where it can't be read, and that of its dtype."""
    import torch

    readable = bias.numel() > 0 and bias.device.type != "meta"
    return float(bias.min()) if readable else 0.0, torch.finfo(bias.dtype).min


def read_device(device: Any) -> Any:
    """A device of torch's, or None for the default one."""
    import torch

    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(
            f"lower: device={device!r} is none of torch's. Give a device such as 'cpu' or 'cuda:0'."
        ) from error
