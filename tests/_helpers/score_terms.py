"""Shared by the tests of soft cap, bias and sinks: random terms, and attention by their definition."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st

from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm
from maskwright.engine.reference import reference

if TYPE_CHECKING:
    import maskwright as mw
    from maskwright.core.frame import Frame

KINDS = ("distance", "grid", "tensor")


@dataclass
class TermBias:
    """A bias of given terms, with the dense truth by the definition of each term."""

    terms: tuple[Any, ...] = ()

    def lower(self, frame: Frame) -> tuple[Any, ...]:
        del frame
        return self.terms

    @property
    def tensors(self) -> tuple[Any, ...]:
        return tuple(term.values for term in self.terms)

    def dense(self, frame: Frame) -> torch.Tensor:
        """The sum of the terms in float64, (batch, heads, q_len, kv_len)."""
        b = torch.arange(frame.batch)[:, None, None, None]
        h = torch.arange(frame.heads)[:, None, None]
        row, key = torch.arange(frame.q_len)[:, None], torch.arange(frame.kv_len)
        query = row + frame.q_start
        total: Any = torch.zeros((frame.batch, frame.heads, frame.q_len, frame.kv_len)).double()
        for term in self.terms:
            values = term.values.double()
            if isinstance(term, DistanceTerm):
                part = values[h * (values.shape[0] > 1), key - query + term.zero]
            elif isinstance(term, GridTerm):
                y = key // term.width - query // term.width + term.height - 1
                x = key % term.width - query % term.width + term.width - 1
                part = values[h * (values.shape[0] > 1), y, x]
            else:
                cell = [i * (n > 1) for i, n in zip((b, h, row, key), values.shape, strict=True)]
                part = values[tuple(cell)]
            total = total + part
        return total

    def leaves(self, dtype: torch.dtype | None = None) -> TermBias:
        """The same terms with values that are leaves and require a gradient."""
        return TermBias(
            tuple(
                term._replace(values=_leaf(term.values, dtype or term.values.dtype))
                for term in self.terms
            )
        )


def _leaf(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.detach().to(dtype).requires_grad_()


@dataclass
class ScoreOptions:
    """Soft cap, bias and sinks of one call."""

    softcap: float | None = None
    bias: TermBias = field(default_factory=TermBias)
    sinks: torch.Tensor | None = None

    def __repr__(self) -> str:
        terms = [(type(term).__name__, *term[1:], tuple(term[0].shape)) for term in self.bias.terms]
        return f"ScoreOptions(softcap={self.softcap}, {terms}, sinks={self.sinks})"

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `attention`."""
        bias = self.bias if self.bias.terms else None
        return {"softcap": self.softcap, "bias": bias, "sinks": self.sinks}

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors that have gradients."""
        return (*self.bias.tensors, *([] if self.sinks is None else [self.sinks]))

    def leaves(self, dtype: torch.dtype | None = None) -> ScoreOptions:
        sinks = None if self.sinks is None else _leaf(self.sinks, dtype or self.sinks.dtype)
        return replace(self, bias=self.bias.leaves(dtype), sinks=sinks)


@st.composite
def score_options(draw: st.DrawFn, frame: Frame, dtype: torch.dtype) -> ScoreOptions:
    """Random terms that fit a frame, with any broadcast axes and memory layouts."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    size = draw(st.sampled_from([1.0, 1.0, 8.0]))

    def values(*shape: int) -> torch.Tensor:
        return (size * torch.randn(shape, generator=generator)).to(dtype)

    kinds = list(draw(st.sampled_from([(), *KINDS, *KINDS, ("distance", "tensor"), KINDS])))
    kinds = [draw(st.sampled_from(KINDS))] if kinds and len(kinds[0]) == 1 else kinds
    terms: list[Any] = []
    for kind in kinds:
        heads = draw(st.sampled_from([1, frame.heads, frame.heads]))
        if kind == "distance":
            # Every distance of the frame, and some more on both sides.
            low, high = draw(st.integers(0, 3)), draw(st.integers(0, 3))
            first, last = 1 - frame.q_stop, frame.kv_len - 1 - frame.q_start
            terms.append(
                DistanceTerm(values(heads, max(last - first + 1, 0) + low + high), low - first)
            )
        elif kind == "grid" and frame.q_start >= 0:
            width = draw(st.integers(1, 7))
            height = -(-max(frame.q_stop, frame.kv_len, 1) // width)
            terms.append(GridTerm(values(heads, 2 * height - 1, 2 * width - 1), height, width))
        else:
            full = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
            shape = [draw(st.sampled_from([1, n, n])) for n in full]
            terms.append(TensorTerm(_laid_out(values, shape, full, draw)))
    sinks = None
    if draw(st.booleans()):
        sinks = 3 * values(frame.heads) / size
    return ScoreOptions(
        draw(st.sampled_from([None, None, 0.5, 5.0, 50.0])), TermBias(tuple(terms)), sinks
    )


def _laid_out(
    values: Any, shape: list[int], full: tuple[int, ...], draw: st.DrawFn
) -> torch.Tensor:
    """A tensor of a shape, perhaps transposed, with gaps, or expanded along some axes."""
    layout = draw(st.sampled_from(["contiguous", "transposed", "gaps", "expanded"]))
    if layout == "transposed":
        b, h, q, k = shape
        return values(b, h, k, q).transpose(2, 3)
    if layout == "gaps":
        return values(*shape[:3], 2 * shape[3])[..., ::2]
    made = values(*shape)
    if layout == "expanded":
        made = made.expand(
            [f if draw(st.booleans()) else n for n, f in zip(shape, full, strict=True)]
        )
    return made


def exact_attention(
    given: tuple[torch.Tensor, ...], bound: mw.BoundMask, options: ScoreOptions, scale: float | None
) -> Any:
    """The reference on leaves in float64."""
    bias = None
    if options.bias.terms:
        frame = replace(bound.frame, batch=given[0].shape[0], heads=given[0].shape[1])
        bias = options.bias.dense(frame)
    return reference(*given, bound, scale, softcap=options.softcap, bias=bias, sinks=options.sinks)


def attention_by_loops(
    q: Any, k: Any, v: Any, bound: mw.BoundMask, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logsumexp by the definition, one row after the other; for equal heads."""
    frame = replace(bound.frame, batch=q.shape[0], heads=q.shape[1])
    bias, visible = options.bias.dense(frame), torch.from_numpy(bound.dense())
    visible = visible.expand(bias.shape)
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    lse = torch.full(q.shape[:3], -math.inf, dtype=torch.float64)
    for b in range(frame.batch):
        for h in range(frame.heads):
            for row in range(frame.q_len):
                keys = visible[b, h, row].nonzero().flatten()
                if not keys.numel():
                    continue
                scores = (k[b, h, keys] @ q[b, h, row]).double() / math.sqrt(q.shape[3])
                if options.softcap is not None:
                    scores = options.softcap * torch.tanh(scores / options.softcap)
                scores = scores + bias[b, h, row, keys]
                lse[b, h, row] = scores.logsumexp(0)
                sink = [] if options.sinks is None else [options.sinks[h].reshape(1).double()]
                weights = torch.cat([scores, *sink]).softmax(0)[: keys.numel()]
                out[b, h, row] = weights @ v[b, h, keys].double()
    return out, lse
