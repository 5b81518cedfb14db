"""What changes scores inside the mask: bias, soft cap and sinks, as targets take them.

The order is that of `attention`: scale, softcap, bias, mask, softmax with sinks in its denominator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.bias import tensor
from maskwright.bias.atoms import Alibi
from maskwright.bias.expr import Bias, BoundBias, Multiple, Sum, brief
from maskwright.bias.scores import Scores, check_sinks, read_softcap
from maskwright.bias.values import Values, to_numpy
from maskwright.errors import ArgumentError, SizeError
from maskwright.targets.base import Unrepresentable
from maskwright.targets.codegen import bound_code
from maskwright.targets.predicates import check_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.bound import BoundMask
    from maskwright.core.frame import Frame
    from maskwright.targets.base import Target

MAX_TERM_CHARS: Final = 80  # of a bias in a message; of a longer one the data is left out


class UnsupportedScore(Unrepresentable):
    """The target has no format for this term of a bias, soft cap or sinks."""

    def __init__(self, term: str, reason: str = "") -> None:
        super().__init__(reason)
        self.term = term


def read_target_scores(bias: Any, softcap: Any, sinks: Any, frame: Frame) -> Scores:
    """The arguments of `lower`, checked against the sizes of the mask.

    The bias stays an expression: some targets need its text, or its slopes.

    Raises:
        ArgumentError: If one is invalid.
        FrameError: If the bias does not fit the frame.
    """
    if isinstance(bias, BoundBias):
        raise ArgumentError("lower: bias is bound to a size. Pass the bias itself: bound.bias.")
    if bias is not None and not isinstance(bias, Bias):
        bias = tensor(bias)
    if bias is not None:
        bias._fit(frame)
    if sinks is not None:
        sinks = Values(sinks, "lower: sinks").data
        fix = ". Pass heads= to lower" if frame.heads == 1 else ""
        check_sinks(sinks, frame.heads, "lower: sinks", fix=fix)
    return Scores(read_softcap(softcap, "lower: softcap"), sinks=sinks, bias=bias)


def source_of(scores: Scores) -> dict[str, str]:
    """The source of each argument that is not None, by name."""
    shown = {}
    if scores.bias is not None:
        text = repr(scores.bias)
        shown["bias"] = text if len(text) <= MAX_TERM_CHARS else brief(scores.bias)
    if scores.softcap is not None:
        shown["softcap"] = f"softcap={scores.softcap!r}"
    if scores.sinks is not None:
        few = scores.sinks.shape[0] <= 8
        shown["sinks"] = f"sinks={scores.sinks.tolist()}" if few else "sinks"
    return shown


def dense_bias(scores: Scores, bound: BoundMask) -> Any:
    """The bias of all cells, an array or a differentiable tensor; None without a bias."""
    if scores.bias is None:
        return None
    batch, heads = scores.bias.planes
    check_bytes((batch, heads, *bound.shape[2:]), 8)
    return scores.bias.dense(bound.frame)


def numpy_bias(
    scores: Scores, bound: BoundMask, dtype: Any = np.float32
) -> npt.NDArray[Any] | None:
    """The same as an array of this dtype, (batch or 1, heads or 1, queries, keys)."""
    dense = dense_bias(scores, bound)
    if dense is None:
        return None
    values, kind = to_numpy(dense, np.float64), np.dtype(dtype)
    check_bias_range(values, float(np.finfo(kind).max), kind.name)
    array: npt.NDArray[Any] = values.astype(kind)
    return array


def additive_array(scores: Scores, bound: BoundMask, value: float, dtype: Any) -> npt.NDArray[Any]:
    """An additive mask: the bias, or 0, of visible cells, else `value`. One select, never a sum."""
    visible, bias = bound.dense(), numpy_bias(scores, bound, dtype)
    if bias is None:
        bias = np.zeros((), dtype)
    else:
        check_bytes(np.broadcast_shapes(visible.shape, bias.shape), dtype.itemsize)
        check_fill(float(bias.min(initial=0.0)), value)
    added: npt.NDArray[Any] = np.where(visible, bias, dtype.type(value))
    return added


def check_bias_range(values: npt.NDArray[Any], largest: float, dtype: str) -> None:
    """Raises ArgumentError for a bias that would become infinite in the dtype."""
    if values.size and not float(np.abs(values).max()) <= largest:
        raise ArgumentError(
            f"lower: the bias contains {values.flat[np.abs(values).argmax()]:g}, which does not fit "
            f"{dtype}. Pass another dtype, or a bias of smaller values."
        )


def check_fill(min_bias: float, fill: float) -> None:
    """Raises ArgumentError if a visible cell would have a score as low as a masked one."""
    if min_bias <= fill:
        raise ArgumentError(
            f"lower: the bias contains {min_bias:g}, not above the fill {fill:g} of masked cells. "
            "Pass fill='-inf', or mask these cells instead."
        )


def alibi_slopes(bias: Bias) -> Any:
    """The slopes, (heads,), of a bias that is ALiBi, a multiple of it, or a sum of such.

    Raises:
        UnsupportedScore: For any other term of the bias.
    """
    if isinstance(bias, Alibi):
        return to_numpy(bias.slope_values, np.float64)
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
        arguments.append(f"sinks={scores.sinks.tolist()}")
    arguments += [f"{name}={value!r}" for name, value in options.items()]
    return [
        "import maskwright as mw",
        "",
        f"mask = {bound_code(bound)}",
        f"lowered = mw.lower({', '.join(arguments)})",
        *target.score_call.splitlines(),
    ]
