"""What changes the scores inside the mask: soft cap, bias and sinks, read once for all backends.

    s = scale * q · k
    s = softcap * tanh(s / softcap)
    s = s + bias, one term after the other
    weights = exp(s) / (sum of exp(s) over the visible keys + exp(sink))

The logsumexp of a call is over the visible keys without the sink, so a sink is a factor of the
output: sigmoid(lse - sink).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm, dense_term
from maskwright.bias.values import MASK_HINT, check_memory, is_torch, wrong_dtype
from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError, AttentionError, FrameError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from maskwright.bias.expr import Bias
    from maskwright.bias.terms import Positions, Term
    from maskwright.core.frame import Frame

MAX_SCALE: Final = 1e30  # of scale and softcap, so that float32 scores can be multiplied by them
MIN_SOFTCAP: Final = 1e-30
KINDS: Final = (
    DistanceTerm,
    GridTerm,
    TensorTerm,
)  # by the integer that stands for them in a graph


@dataclass(eq=False)
class Scores:
    """Soft cap, bias and sinks of a call, checked against its sizes.

    Attributes:
        softcap: The scores become softcap * tanh(scores / softcap) before a bias is added, or None.
        terms: The terms of the bias, with their values.
        sinks: One logit per head, (heads,), that joins the denominator of the softmax, or None.
        learnable: For each term whether the backward pass computes the gradient of its values.
        bias: For targets the expression, from which they make terms or text.
    """

    softcap: float | None = None
    terms: tuple[Term, ...] = ()
    sinks: Any = None
    learnable: tuple[bool, ...] = ()
    bias: Bias | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes the scores."""
        return self.softcap is None and not self.terms and self.sinks is None

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The values of each term, then the sinks if there are any."""
        values = tuple(term.values for term in self.terms)
        return values if self.sinks is None else (*values, self.sinks)

    def with_tensors(self, tensors: Sequence[Any]) -> Scores:
        """The same with other tensors, in the order of `tensors`: one after the terms has the sinks."""
        count = len(self.terms)
        terms = tuple(
            term._replace(values=values)
            for term, values in zip(self.terms, tensors[:count], strict=True)
        )
        sinks = tensors[count] if len(tensors) > count else None
        return Scores(self.softcap, terms, sinks, self.learnable)

    def lowered(self, frame: Frame) -> Scores:
        """With the terms of `bias` in a frame."""
        return self if self.bias is None else replace(self, terms=self.bias.lower(frame))

    def layout(self) -> list[int]:
        """Kind, two sizes and learnability of each term, as integers for a graph."""
        numbers: list[int] = []
        for term, learnable in zip(self.terms, self.learnable, strict=True):
            _, *sizes = term
            numbers += [KINDS.index(type(term)), *(*sizes, 0, 0)[:2], int(learnable)]
        return numbers

    @classmethod
    def from_layout(
        cls, softcap: float | None, layout: Sequence[int], tensors: Sequence[Any]
    ) -> Scores:
        """The inverse of `layout`; a tensor after the values of the terms has the sinks."""
        terms: list[Term] = []
        learnable = []
        for n in range(len(layout) // 4):
            kind, first, second, learns = layout[4 * n : 4 * n + 4]
            number = len(KINDS[kind]._fields) - 1
            terms.append(KINDS[kind](tensors[n], *(first, second)[:number]))
            learnable.append(bool(learns))
        sinks = tensors[len(terms)] if len(tensors) > len(terms) else None
        return cls(softcap, tuple(terms), sinks, tuple(learnable))

    def dense(self, positions: Positions, like: torch.Tensor, dtype: torch.dtype) -> Any:
        """The sum of the terms, broadcastable to (batch, heads, queries, keys); 0.0 without terms."""
        total: Any = 0.0
        for term in self.terms:
            total = total + dense_term(term, positions).to(like.device, dtype)
        return total

    def score_mod(self, q_start: int) -> Callable[..., torch.Tensor] | None:
        """Soft cap and bias as a score_mod of FlexAttention, or None if there is neither.

        Args:
            q_start: Position of the first query.
        """
        softcap = self.softcap
        if softcap is None and not self.terms:
            return None
        lookups = [term.lookup(q_start) for term in self.terms]

        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> torch.Tensor:
            if softcap is not None:
                score = softcap * (score / softcap).tanh()
            for lookup in lookups:
                score = score + lookup(b, h, q, k).to(score.dtype)
            return score

        return score_mod


NO_SCORES: Final = Scores()


def read_scores(bias: Any, softcap: Any, sinks: Any, frame: Frame, q: Any) -> Scores:
    """Soft cap, bias and sinks of a call of `attention`.

    Args:
        bias: A bias, a tensor or an array, or None.
        softcap: The soft cap, or None.
        sinks: One logit per head, or None.
        frame: Sizes and positions of the call, with the batch size and heads of q.
        q: The queries, a tensor or an array; bias and sinks are of the same kind. None for any kind.

    Raises:
        AttentionError: An argument has the wrong type, dtype, device or shape.
        FrameError: The bias does not match the sizes.
    """
    if bias is softcap is sinks is None:
        return NO_SCORES
    softcap = read_softcap(softcap, "attention: softcap", AttentionError)
    terms, learnable = [], []
    for term in () if bias is None else _lower(bias, frame, q):
        matched = term._replace(values=_match_framework(term.values, q, "bias"))
        required = matched.required_shape(frame)
        if required is not None:
            raise FrameError(
                f"attention: a bias term of {type(matched).__name__} has values of shape "
                f"{tuple(matched.values.shape)}. q and k need {required}."
            )
        terms.append(matched)
        learnable.append(_is_learnable(matched.values))
    if sinks is not None:
        sinks = _match_framework(sinks, q, "sinks")
        check_sinks(sinks, frame.heads, "attention: sinks", AttentionError)
    return Scores(softcap, tuple(terms), sinks, tuple(learnable))


def read_softcap(value: Any, what: str, error: type[ArgumentError] = ArgumentError) -> float | None:
    """A soft cap as a Python number, or None.

    Args:
        value: What the user passed.
        what: The argument, for the message.
        error: The class of the error.
    """
    if value is None:
        return None
    number = value.item() if isinstance(value, np.generic) else value
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not is_number or not MIN_SOFTCAP <= number <= MAX_SCALE:
        raise error(
            f"{what} is {describe_number(value)}. Pass a positive number between {MIN_SOFTCAP} and "
            f"{MAX_SCALE}, or None for no soft cap."
        )
    return float(number)


def check_sinks(
    sinks: Any, heads: int, what: str, error: type[ArgumentError] = ArgumentError, fix: str = ""
) -> None:
    """Raise if sinks are not one number per head, or NaN where that can be read at low cost."""
    if tuple(sinks.shape) != (heads,):
        raise error(
            f"{what} has shape {tuple(sinks.shape)}. Expected ({heads},): one logit per head{fix}."
        )
    if _is_readable(sinks) and bool((sinks != sinks).any()):  # only NaN differs from itself
        raise error(f"{what} contains NaN. Pass one logit per head; -inf is no sink.")


def describe_number(value: Any) -> str:
    """A number, or the type of what is no Python number; an integer of many digits as its size."""
    if isinstance(value, int) and abs(value) > 10**40:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (int, float, str, np.generic)):
        return repr(value)
    return describe_type(value)


def _lower(bias: Any, frame: Frame, q: Any) -> tuple[Term, ...]:
    """The terms of a bias expression, or of a plain tensor or array."""
    if is_torch(bias):
        check_memory(bias, "bias")
    if hasattr(bias, "lower") and hasattr(bias, "dense"):
        return tuple(bias.lower(frame))
    if not hasattr(bias, "shape") or not hasattr(bias, "ndim"):
        raise AttentionError(
            f"attention: bias is {describe_type(bias)}. Pass a bias such as mw.bias.alibi(8), or a "
            "tensor that broadcasts to (batch, heads, q_len, kv_len)."
        )
    if bias.ndim > 4:
        raise AttentionError(
            f"attention: bias has shape {tuple(bias.shape)}. Expected at most four dimensions: "
            "(batch, heads, q_len, kv_len)."
        )
    _check_finite(bias, q)
    return (TensorTerm(bias.reshape((1,) * (4 - bias.ndim) + tuple(bias.shape))),)


def _check_finite(bias: Any, q: Any) -> None:
    """Raise for NaN and infinities, also as float32, where the values can be read at low cost."""
    if not _is_readable(bias):
        return
    narrows = bias.dtype.itemsize == 8 and q is not None and q.dtype.itemsize < 8
    values = bias.detach() if is_torch(bias) else bias
    if narrows:
        with np.errstate(over="ignore"):
            values = values.float() if is_torch(bias) else values.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        # The sum is finite if all values are, except for an overflow.
        if math.isfinite(float(values.sum())):
            return
    finite = values.isfinite() if is_torch(bias) else np.isfinite(values)
    if not bool(finite.all()):
        first = float(values[~finite].flatten()[0])
        dtype = " as float32" if narrows else ""
        raise AttentionError(f"attention: bias contains {first}{dtype}. {MASK_HINT}")


def _is_readable(x: Any) -> bool:
    """Whether these are floating-point values that can be read at low cost."""
    if isinstance(x, np.ndarray):
        return bool(x.dtype.kind == "f")
    from maskwright._torch_state import has_values

    return bool(x.device.type == "cpu" and x.is_floating_point() and has_values(x))


def _match_framework(x: Any, q: Any, name: str) -> Any:
    """`x` as a floating-point tensor on the device of q, or as an array if q is one."""
    if isinstance(q, np.ndarray) or (q is None and not is_torch(x)):
        if not isinstance(x, np.ndarray):
            raise AttentionError(
                f"attention: {name} is {describe_type(x)} but q is a numpy array. Pass {name} as a "
                "numpy array, or q, k and v as torch tensors."
            )
        if x.dtype.kind != "f":
            raise wrong_dtype(name, x.dtype)
        return x
    from maskwright._torch_state import is_fake

    torch = sys.modules["torch"]
    if isinstance(x, np.ndarray):
        if not torch.compiler.is_compiling():
            native = x.dtype.newbyteorder("=")  # torch reads no other; it warns of read-only arrays
            x = np.require(x, native, requirements=["C", "A", "W"])
        x = torch.as_tensor(x).to(q.device)
    if not isinstance(x, torch.Tensor):
        raise AttentionError(
            f"attention: {name} is {describe_type(x)}. Pass a torch tensor or a numpy array."
        )
    check_memory(x, name)
    if not x.is_floating_point():
        raise wrong_dtype(name, x.dtype)
    if q is None:
        return x
    if not torch.compiler.is_compiling() and is_fake(x) and not is_fake(q):
        raise AttentionError(
            f"attention: {name} is a FakeTensor, which has no values, and q is not. "
            f"Pass {name} as a tensor with values, or all tensors as FakeTensors."
        )
    if x.device != q.device:
        raise AttentionError(
            f"attention: {name} is on {x.device} and q on {q.device}. Move both to one device."
        )
    return x


def _is_learnable(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return False
    from maskwright._torch_state import may_require_grad

    return may_require_grad(values)


# ── sinks ─────────────────────────────────────────────────────────────────────────────────────────


def sink_factor(lse: Any, sinks: Any) -> Any:
    """The factor of the output with sinks, (batch, heads, rows): 1 - weight of the sink."""
    finite = lse.masked_fill(lse == -math.inf, 0.0)  # the output of these rows is 0
    return (finite - sinks.to(lse).unsqueeze(-1)).sigmoid()


def sink_row_gradient(lse: Any, sinks: Any, grad_out: Any, out: Any) -> Any:
    """The gradient of the sinks by row, (batch, heads, rows), in the dtype of lse."""
    weight = 1 - sink_factor(lse, sinks)
    delta = (grad_out * out).sum(-1)
    return -(weight * delta).masked_fill(lse == -math.inf, 0.0)
