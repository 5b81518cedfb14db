"""What changes scores inside the mask: bias, soft cap and sinks, as targets take them.

The order is that of `attention`: scale, softcap, bias, mask, softmax with sinks in its denominator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.bias import tensor
from maskwright.bias.atoms import Alibi
from maskwright.bias.expr import Bias, BoundBias, Multiple, Sum, brief
from maskwright.bias.values import Values, is_torch
from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError, SizeError
from maskwright.targets.base import Unrepresentable
from maskwright.targets.codegen import bound_code
from maskwright.targets.predicates import check_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.bound import BoundMask
    from maskwright.core.frame import Frame
    from maskwright.core.validate import BoolArray
    from maskwright.targets.base import Target

MAX_TERM_CHARS: Final = 80  # of a bias in a message; of a longer one the data is left out


class UnsupportedScore(Unrepresentable):
    """The target has no format for this term of a bias, soft cap or sinks."""

    def __init__(self, term: str, reason: str = "") -> None:
        super().__init__(reason)
        self.term = term


@dataclass(frozen=True)
class Scores:
    """The arguments `bias`, `softcap` and `sinks` of `lower`, checked."""

    bias: Bias | None = None
    softcap: float | None = None
    sinks: Values | None = None  # (heads,)

    def terms(self) -> dict[str, str]:
        """The source of each argument that is not None, by name."""
        shown = {}
        if self.bias is not None:
            text = repr(self.bias)
            shown["bias"] = text if len(text) <= MAX_TERM_CHARS else brief(self.bias)
        if self.softcap is not None:
            shown["softcap"] = f"softcap={self.softcap!r}"
        if self.sinks is not None:
            shown["sinks"] = f"sinks={self.sinks!r}" if self.sinks.shape[0] <= 8 else "sinks"
        return shown

    def dense_bias(self, bound: BoundMask) -> Any:
        """The bias of all cells, an array or a differentiable tensor; None without a bias."""
        if self.bias is None:
            return None
        batch, heads = self.bias.planes
        check_bytes((batch, heads, *bound.shape[2:]), 8)
        return self.bias.dense(bound.frame)

    def numpy_bias(self, bound: BoundMask, dtype: Any = np.float32) -> npt.NDArray[Any] | None:
        """The same as an array of this dtype, (batch or 1, heads or 1, queries, keys)."""
        dense = self.dense_bias(bound)
        if dense is None:
            return None
        values = np.asarray(dense.detach().cpu().double() if is_torch(dense) else dense)
        kind = np.dtype(dtype)
        check_bias_range(values, float(np.finfo(kind).max), kind.name)
        return values.astype(kind)

    def numpy_sinks(self) -> npt.NDArray[np.float32] | None:
        """The sinks as float32."""
        if self.sinks is None:
            return None
        data = self.sinks.data
        return np.asarray(data.detach().cpu() if is_torch(data) else data, np.float32)


NO_SCORES: Final = Scores()


def read_scores(bias: Any, softcap: Any, sinks: Any, frame: Frame) -> Scores:
    """Checks the arguments against the sizes of the mask.

    Raises:
        ArgumentError: If one is invalid.
        FrameError: If the bias does not fit the frame.
    """
    if bias is None and softcap is None and sinks is None:
        return NO_SCORES
    if isinstance(bias, BoundBias):
        raise ArgumentError("lower: bias is bound to a size. Pass the bias itself: bound.bias.")
    if bias is not None and not isinstance(bias, Bias):
        bias = tensor(bias)
    if bias is not None:
        bias._fit(frame)
    held = None if sinks is None else Values(sinks, "lower: sinks")
    if held is not None and held.shape != (frame.heads,):
        raise ArgumentError(
            f"lower: sinks has shape {held.shape}. Pass one logit per head, ({frame.heads},)"
            + (", and heads= to lower." if frame.heads == 1 else ".")
        )
    return Scores(bias, _read_softcap(softcap), held)


def merged(visible: BoolArray, bias: npt.NDArray[Any] | None, value: float, dtype: Any) -> Any:
    """An additive mask: the bias, or 0, of visible cells, else `value`. One select, never a sum."""
    if bias is None:
        return np.where(visible, dtype.type(0), dtype.type(value))
    shape = np.broadcast_shapes(visible.shape, bias.shape)
    check_bytes(shape, dtype.itemsize)
    check_fill(float(bias.min(initial=0.0)), value)
    return np.where(visible, bias, dtype.type(value))


def check_bias_range(values: npt.NDArray[Any], largest: float, dtype: str) -> None:
    """Raises ArgumentError for a bias that would become infinite in the dtype."""
    if values.size and not float(np.abs(values).max()) <= largest:
        raise ArgumentError(
            f"lower: the bias contains {values.flat[np.abs(values).argmax()]:g}, which does not fit "
            f"{dtype}. Pass another dtype, or a bias of smaller values."
        )


def check_fill(least_bias: float, fill: float) -> None:
    """Raises ArgumentError if a visible cell would have a score as low as a masked one."""
    if least_bias <= fill:
        raise ArgumentError(
            f"lower: the bias contains {least_bias:g}, not above the fill {fill:g} of masked cells. "
            "Pass fill='-inf', or mask these cells instead."
        )


def alibi_slopes(bias: Bias) -> Any:
    """The slopes, (heads,), of a bias that is ALiBi, a multiple of it, or a sum of such.

    Raises:
        UnsupportedScore: For any other term of the bias.
    """
    if isinstance(bias, Alibi):
        data = bias.slope_values
        return np.asarray(data.detach().cpu().double() if is_torch(data) else data, np.float64)
    if isinstance(bias, Multiple):
        return bias.factor * alibi_slopes(bias.term)
    if isinstance(bias, Sum):
        return sum(alibi_slopes(term) for term in bias.terms)
    raise UnsupportedScore(repr(bias), "the only bias that it has is ALiBi")


def usage(bound: BoundMask, target: Target, scores: Scores, options: dict[str, Any]) -> list[str]:
    """Lines that lower the mask with bias, soft cap and sinks, and call the framework."""
    arguments = [f'mask, "{target.name}"']
    if scores.bias is not None:
        text = repr(scores.bias)
        if len(text) > 10_000:
            raise SizeError(
                f"explain_lowering: the bias has {len(text)} characters of source. Call lower()."
            )
        arguments.append(f'bias=mw.bias.parse("{text}")')
    if scores.softcap is not None:
        arguments.append(f"softcap={scores.softcap!r}")
    if scores.sinks is not None:
        arguments.append(f"sinks={scores.sinks!r}")
    arguments += [f"{name}={value!r}" for name, value in options.items()]
    return [
        "import maskwright as mw",
        "",
        f"mask = {bound_code(bound)}",
        f"lowered = mw.lower({', '.join(arguments)})",
        *target.score_call.splitlines(),
    ]


def _read_softcap(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise ArgumentError(
            f"lower: softcap is {describe_type(value)}. Pass a positive number, or None."
        )
    number = float(value)
    if not (number > 0 and math.isfinite(number)):
        raise ArgumentError(
            f"lower: softcap={number:g} is not positive and finite. Pass None for no soft cap."
        )
    return number
