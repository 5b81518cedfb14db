"""tensorflow: a bool tensor, or floats that are added to the scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError
from maskwright.targets.code import fill_code, mask_code
from maskwright.targets.facts import EmptyRows, check_empty_rows
from maskwright.targets.fills import read_fill
from maskwright.targets.target import Target

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="tensorflow",
    gives="a bool tensor; with a dtype, a float tensor",
    says="every mask",
    polarity="True keeps; as floats 0 keeps, -inf hides",
    shape="(B or 1, H or 1, T, S)",
    alignment="the frame's",
    empty_rows="left to the softmax",
    reads="keep",
    adds_floats=True,
    needs="tensorflow",
)


def lower(
    bound: BoundMask,
    *,
    device: str | None = None,
    dtype: Any = None,
    fill: Any = None,
    empty_rows: EmptyRows = "native",
) -> Any:
    """The dense mask as a tensor: for tf.where, or to be added."""
    import tensorflow as tf

    check_empty_rows(bound, empty_rows, gives_zero=False)
    if dtype is None and fill is not None:
        raise ArgumentError("lower: fill is for floats. Pass a dtype too, such as 'float32'.")
    kind = None if dtype is None else _float_dtype(dtype)
    with _device(device):
        mask = tf.constant(bound.dense())
        if kind is None:
            return mask
        hides = read_fill(fill, float(kind.min), kind.name)
        return tf.where(mask, tf.constant(0, kind), tf.constant(hides, kind))


def usage(bound: BoundMask, given: Any) -> list[str]:
    """The lines that use it by hand, on scores of (batch, heads, T, S)."""
    lines = ["import tensorflow as tf", *mask_code(bound, "np")]
    if given.dtype.name == "bool":
        return [*lines, 'scores = tf.where(mask, scores, float("-inf"))  # True keeps']
    least = float(given.numpy().min(initial=0))
    hides = fill_code(least, float(given.dtype.min), f"tf.{given.dtype.name}")
    bias = f'tf.where(mask, tf.constant(0, "{given.dtype.name}"), {hides})'
    return [*lines, f"scores = scores + {bias}  # 0 keeps, the fill hides"]


def _float_dtype(dtype: Any) -> Any:
    import tensorflow as tf

    try:
        kind = tf.as_dtype(dtype)
    except TypeError:
        kind = None
    if kind is None or not kind.is_floating:
        given = dtype if isinstance(dtype, str) else kind.name if kind else describe_type(dtype)
        raise ArgumentError(
            f"lower: dtype is {given}. Give a floating-point dtype, such as 'float32'."
        )
    return kind


def _device(device: object) -> Any:
    import tensorflow as tf

    try:
        if device is not None:
            tf.DeviceSpec.from_string(device)
        return tf.device(device)
    except (TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(
            f"lower: device={device!r} is none of TensorFlow's. Give a device such as 'CPU:0'."
        ) from error
