"""tensorflow: a bool tensor, or a float tensor that is added to the scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright.errors import ArgumentError
from maskwright.targets.base import Target, invalid_device, invalid_dtype, mask_value
from maskwright.targets.codegen import fill_code, mask_code
from maskwright.targets.predicates import EmptyRows, check_empty_rows

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="tensorflow",
    returns="a bool tensor; with a dtype, a float tensor",
    polarity="True keeps; as floats 0 keeps, -inf masks",
    empty_rows="left to the softmax",
    encoding="keep",
    accepts_additive=True,
    requires="tensorflow",
)


def lower(
    bound: BoundMask,
    *,
    device: str | None = None,
    dtype: Any = None,
    fill: Any = None,
    empty_rows: EmptyRows = "native",
) -> Any:
    """The dense mask as a tensor: bool for tf.where, or with `dtype` a float tensor to add."""
    import tensorflow as tf

    check_empty_rows(bound, empty_rows, returns_zero=False)
    if dtype is None and fill is not None:
        raise ArgumentError(
            "lower: fill applies to float masks. Pass dtype too, such as 'float32'."
        )
    kind = None if dtype is None else _parse_dtype(dtype)
    with _device(device):
        mask = tf.constant(bound.dense())
        if kind is None:
            return mask
        value = mask_value(fill, float(kind.min), kind.name)
        return tf.where(mask, tf.constant(0, kind), tf.constant(value, kind))


def usage(bound: BoundMask, lowered: Any) -> list[str]:
    """Lines that apply it to scores of (batch, heads, T, S)."""
    lines = ["import tensorflow as tf", *mask_code(bound, "np")]
    if lowered.dtype.name == "bool":
        return [*lines, 'scores = tf.where(mask, scores, float("-inf"))  # True keeps']
    lowest = float(lowered.numpy().min(initial=0))
    value = fill_code(lowest, float(lowered.dtype.min), f"tf.{lowered.dtype.name}")
    bias = f'tf.where(mask, tf.constant(0, "{lowered.dtype.name}"), {value})'
    return [*lines, f"scores = scores + {bias}  # 0 keeps"]


def _parse_dtype(dtype: Any) -> Any:
    import tensorflow as tf

    try:
        kind = tf.as_dtype(dtype)
    except TypeError:
        kind = None
    if kind is None or not kind.is_floating:
        raise invalid_dtype(kind.name if kind else dtype, "'float32'")
    return kind


def _device(device: object) -> Any:
    import tensorflow as tf

    try:
        if device is not None:
            tf.DeviceSpec.from_string(device)
        return tf.device(device)
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid_device(device, "TensorFlow", "'CPU:0'") from error
