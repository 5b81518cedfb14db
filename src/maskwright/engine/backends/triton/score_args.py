"""What changes the scores after q · k, as arguments of the Triton kernels: soft cap, biases, sinks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from maskwright.bias.terms import DistanceTerm, GridTerm, dense_term

if TYPE_CHECKING:
    from maskwright.engine.call import Call

LOG2E = math.log2(math.e)


class ScoreTerms(NamedTuple):
    """What changes the scores after q · k, and the softmax's denominator.

    Attributes:
        softcap: Bound of the scores, softcap * tanh(score / softcap), or None.
        distance: Values (heads | 1, num_distances) by key position - query position, and the index
            of distance 0.
        grid: Values (heads | 1, 2 * height - 1, 2 * width - 1), height and width.
        biases: Tensors (batch, heads, q_len, kv_len), any strides, also 0.
        sinks: Logits (heads,) that are only in the denominator.
    """

    softcap: float | None = None
    distance: tuple[torch.Tensor, int] | None = None
    grid: tuple[torch.Tensor, int, int] | None = None
    biases: tuple[torch.Tensor, ...] = ()
    sinks: torch.Tensor | None = None


NO_TERMS = ScoreTerms()


def score_terms(call: Call) -> ScoreTerms:
    """Soft cap, bias and sinks of a call.

    The kernels read one table of distances, one grid, and any number of tensors. Tables of distances
    are added to one, and so are grids of one size. A grid of another size becomes a tensor.
    """
    scores = call.scores
    sinks = None if scores.sinks is None else scores.sinks.contiguous()
    terms = ScoreTerms(scores.softcap, sinks=sinks)
    sizes = (call.shape.batch, call.shape.heads, call.shape.q_len, call.shape.kv_len)
    for term in scores.terms:
        if isinstance(term, DistanceTerm):
            terms = terms._replace(distance=_add_distances(terms.distance, term.values, term.zero))
        elif isinstance(term, GridTerm) and (terms.grid is None or terms.grid[1:] == term[1:]):
            total = term.values if terms.grid is None else terms.grid[0].float() + term.values
            terms = terms._replace(grid=(total.contiguous(), term.height, term.width))
        else:
            dense = dense_term(term, call.bias_positions())
            terms = terms._replace(biases=(*terms.biases, dense.expand(sizes)))
    return terms


def _add_distances(
    table: tuple[torch.Tensor, int] | None, values: torch.Tensor, zero: int
) -> tuple[torch.Tensor, int]:
    """The sum of two tables of distances, 0 where a distance is in neither."""
    if table is None:
        return values.contiguous(), zero
    other, other_zero = table
    heads = max(values.shape[0], other.shape[0])
    middle = max(zero, other_zero)
    size = max(values.shape[1] - zero, other.shape[1] - other_zero) + middle
    total = values.new_zeros((heads, size), dtype=torch.float32)
    for part, at in ((other, other_zero), (values, zero)):
        total[:, middle - at : middle - at + part.shape[1]] += part
    return total, middle


def score_args(call: Call, terms: ScoreTerms) -> tuple[Any, ...]:
    """The arguments of `score_tile`."""
    cap = terms.softcap
    unit = LOG2E if is_base2(call) else 1.0
    factor = call.scale * unit if cap is None else call.scale / cap
    distance: tuple[Any, ...] = (None, 0, 0, 0)
    if terms.distance is not None:
        values, zero = terms.distance
        shift = zero - call.mask.frame.q_start
        distance = (values, _head_stride(values), shift, values.shape[1])
    biases = tuple((bias, *bias.stride()) for bias in terms.biases)
    grid: tuple[Any, ...] = (None, 0, 0, 0, 0)
    if terms.grid is not None:
        values, height, width = terms.grid
        grid = (values, _head_stride(values), height, width, call.mask.frame.q_start)
    return factor, (cap or 0.0) * unit, *distance, biases, *grid


def _head_stride(values: torch.Tensor) -> int:
    return values.stride(0) if values.shape[0] > 1 else 0


def is_base2(call: Call) -> bool:
    """Whether scores are kept in base 2: in half precision, where the rounding does not matter."""
    return call.dtype != "float32"
