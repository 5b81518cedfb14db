"""Cases of the Triton kernels: masks × dtypes × variants, the truth in float64, and SDPA's error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

import maskwright as mw
from maskwright.engine.backends.triton.score_args import ScoreTerms
from maskwright.engine.dropout import dropout_keep
from maskwright.engine.softmax import masked_softmax
from tests._helpers.attention_inputs import MASKS, T
from tests._helpers.calls import call_of

if TYPE_CHECKING:
    from maskwright.engine.call import AttentionShape, Call

DTYPES = ("float32", "float16", "bfloat16")
MORE_MASKS: dict[str, mw.Mask] = {
    "longformer": mw.recipes.longformer(5, range(3)),
    "bigbird": mw.recipes.bigbird(T, block=8, seed=0),
    "image": mw.image(6, 8, radius=2),
    "random blocks": mw.blocks(np.random.default_rng(1).random((6, 6)) < 0.3, 8),
}
ALL_MASKS = {**MASKS, **MORE_MASKS}
SQUARE = ("bigbird", "random blocks")  # masks whose map covers T queries


class Variant(NamedTuple):
    """Sizes, layout and options of a case."""

    group: int = 1
    dim: int = 16
    v_dim: int = 16
    q_len: int = T
    layout: str = "contiguous"
    scale: float | None = None
    softcap: float | None = None
    dropout_p: float = 0.0
    terms: str = ""  # some of "distance", "grid", "tensor", "sinks"

    @property
    def is_plain(self) -> bool:
        """Whether SDPA computes the same function."""
        return self.softcap is None and not self.dropout_p and not self.terms


VARIANTS = {
    "plain": Variant(),
    "gqa": Variant(group=2, v_dim=24),
    "odd dims": Variant(dim=20, v_dim=5, layout="strided"),
    "fewer queries": Variant(q_len=33, scale=-0.5, layout="projected"),
    "scores": Variant(softcap=3.0, terms="distance sinks", group=2),
    "bias": Variant(softcap=20.0, terms="tensor grid", q_len=40, scale=1.0),
    "dropout": Variant(dropout_p=0.3, group=2, q_len=37),
}
DECODE_VARIANTS = {
    "decode": Variant(group=2, q_len=3, dim=24, layout="strided"),
    "one query": Variant(q_len=1, group=2, terms="distance sinks", softcap=5.0),
    "decode dropout": Variant(q_len=5, dropout_p=0.4, terms="tensor"),
}


@dataclass(frozen=True)
class Case:
    """One call of the kernels."""

    mask: str
    dtype: str
    variant: str

    def __str__(self) -> str:
        return f"{self.mask}-{self.dtype}-{self.variant}".replace(" ", "_")

    @property
    def options(self) -> Variant:
        return {**VARIANTS, **DECODE_VARIANTS}[self.variant]


def _cases(variants: dict[str, Variant]) -> list[Case]:
    return [
        Case(mask, dtype, name)
        for name, variant in variants.items()
        for mask in ALL_MASKS
        for dtype in DTYPES
        if variant.q_len == T or mask not in SQUARE
    ]


CASES = _cases(VARIANTS)  # forward and backward
DECODE_CASES = _cases(DECODE_VARIANTS)  # forward


class TritonCall(NamedTuple):
    """A call of the kernels, the terms of its scores, and the incoming gradients."""

    call: Call
    terms: ScoreTerms
    grad_out: torch.Tensor
    grad_lse: torch.Tensor


def make_call(case: Case, seed: int = 0) -> TritonCall:
    """Random tensors of a case."""
    o, mask = case.options, ALL_MASKS[case.mask]
    batch, heads = mask.on(T).shape[:2]
    heads = max(heads, 2)
    bound = mask.on(o.q_len, T, batch, heads, q_start=T - o.q_len)
    dtype = getattr(torch, case.dtype)
    made = torch.Generator().manual_seed(seed)

    def fresh(number: int, length: int, dim: int) -> torch.Tensor:
        shape = (batch, number, length, dim)
        if o.layout == "projected":
            x = torch.randn(batch, length, number, dim, generator=made).transpose(1, 2)
        elif o.layout == "strided":
            x = torch.randn(batch, number, length, 2 * dim, generator=made)[..., ::2]
        else:
            x = torch.randn(shape, generator=made)
        return x.to(dtype) if o.layout != "strided" else _strided(x, dtype)

    kv_heads = heads // o.group
    tensors = (fresh(heads, o.q_len, o.dim), fresh(kv_heads, T, o.dim), fresh(kv_heads, T, o.v_dim))
    options = {"scale": o.dim**-0.5 if o.scale is None else o.scale, "dropout_p": o.dropout_p}
    call = call_of(tensors, bound, seed=0x1234_5678_9ABC_DEF0, **options)
    return TritonCall(
        call,
        _terms(o, call.shape, made, dtype),
        fresh(heads, o.q_len, o.v_dim),
        torch.randn(batch, heads, o.q_len, generator=made) * (not o.is_plain),
    )


def _strided(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values of x in `dtype`, with a last dimension of stride 2."""
    held = torch.zeros(*x.shape[:3], 2 * x.shape[3], dtype=dtype)
    held[..., ::2] = x
    return held[..., ::2]


def _terms(o: Variant, shape: AttentionShape, made: torch.Generator, dtype: Any) -> ScoreTerms:
    def values(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=made).to(dtype)

    distance = grid = sinks = None
    biases: tuple[torch.Tensor, ...] = ()
    if "distance" in o.terms:  # positions from -(T - 1) to T - 1
        distance = (values(shape.heads, 2 * T - 1), T - 1)
    if "grid" in o.terms:
        grid = (values(1, 2 * 6 - 1, 2 * 8 - 1), 6, 8)
    if "tensor" in o.terms:
        biases = (values(1, shape.heads, 1, T).expand(shape.batch, -1, shape.q_len, -1),)
    if "sinks" in o.terms:
        sinks = values(shape.heads)
    return ScoreTerms(o.softcap, distance, grid, biases, sinks)


class Exact(NamedTuple):
    """Output, logsumexp and gradients of q, k, v (and sinks, or None)."""

    out: torch.Tensor
    lse: torch.Tensor
    grads: tuple[torch.Tensor, ...]
    dsinks: torch.Tensor | None


def exact(made: TritonCall, dtype: torch.dtype = torch.float64) -> Exact:
    """Attention with all terms, step by step and dense, in a dtype, differentiated by autograd."""
    call, terms = made.call, made.terms
    leaves = [x.detach().to(dtype).requires_grad_() for x in made.call.tensors]
    q, k, v = leaves
    group = call.shape.heads // call.shape.kv_heads
    keys, v_all = (x.repeat_interleave(group, 1) for x in (k, v))
    visible = torch.from_numpy(call.mask.dense()).expand(*q.shape[:3], k.shape[2])
    scores = call.scale * (q @ keys.mT)
    if terms.softcap is not None:
        scores = terms.softcap * (scores / terms.softcap).tanh()
    scores = scores + dense_bias(made).to(dtype)
    weights, lse = masked_softmax(scores, visible)
    sinks = None
    if terms.sinks is not None:
        sinks = terms.sinks.to(dtype).requires_grad_()
        total = torch.logaddexp(lse, sinks[:, None])
        share = (lse - total).exp()
        weights = weights * share.masked_fill(lse == -math.inf, 0.0)[..., None]
    if call.dropout_p:
        rows, cols = np.arange(q.shape[2]), np.arange(k.shape[2])
        keep = dropout_keep(call.seed, call.dropout_p, *q.shape[:2], rows, cols)
        weights = weights * torch.from_numpy(keep).to(dtype) / (1 - call.dropout_p)
    out = weights @ v_all
    finite = lse.masked_fill(lse == -math.inf, 0.0)
    total = (out * made.grad_out.to(dtype)).sum() + (finite * made.grad_lse.to(dtype)).sum()
    wanted = leaves if sinks is None else [*leaves, sinks]
    grads = torch.autograd.grad(total, wanted, materialize_grads=True)
    return Exact(out.detach(), lse.detach(), grads[:3], None if sinks is None else grads[3])


def dense_bias(made: TritonCall) -> torch.Tensor:
    """The sum of all biases, broadcastable to the scores, in float64."""
    call, terms = made.call, made.terms
    frame = call.mask.frame
    rows = torch.arange(frame.q_len)[:, None] + frame.q_start
    cols = torch.arange(frame.kv_len)[None, :] + frame.k_start
    total = torch.zeros(1, 1, frame.q_len, frame.kv_len, dtype=torch.float64)
    if terms.distance is not None:
        values, zero = terms.distance
        total = total + values.double()[:, cols - rows + zero]
    if terms.grid is not None:
        values, height, width = terms.grid
        down = cols // width - rows // width + height - 1
        across = cols % width - rows % width + width - 1
        total = total + values.double()[:, down, across]
    for bias in terms.biases:
        total = total + bias.double()
    return total


def sdpa_results(made: TritonCall) -> tuple[torch.Tensor, ...]:
    """Output and gradients of SDPA with a dense mask and bias in the same dtype.

    Without soft cap, sinks, dropout and the gradient of the logsumexp, which SDPA does not have: its
    error is the measure, and these do not reduce it.
    """
    q, k, v = (x.detach().clone().requires_grad_() for x in made.call.tensors)
    group = made.call.shape.heads // made.call.shape.kv_heads
    keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
    mask = torch.from_numpy(made.call.mask.dense())
    full = torch.zeros(mask.shape).masked_fill(~mask, -math.inf) + dense_bias(made).float()
    out = scaled_dot_product_attention(
        q, keys, values, attn_mask=full.to(q.dtype), scale=made.call.scale
    )
    grads = torch.autograd.grad(out, (q, k, v), made.grad_out, materialize_grads=True)
    return (out.detach(), *grads)


def peer_errors(made: TritonCall) -> tuple[float, ...]:
    """Errors of output, dq, dk and dv that PyTorch has for the same inputs, relative to the largest entry.

    The larger of SDPA's, which differ between processors, and of those of dense attention in float32.
    SDPA's are for the call without soft cap, sinks, dropout and gradient of the logsumexp.
    """
    plain = made._replace(
        call=made.call.changed(dropout_p=0.0),
        terms=made.terms._replace(softcap=None, sinks=None),
        grad_lse=torch.zeros_like(made.grad_lse),
    )
    errors = _relative_errors(sdpa_results(made), exact(plain))
    dense = exact(made, torch.float32)
    others = _relative_errors((dense.out, *dense.grads), exact(made))
    return tuple(map(max, errors, others))


def _relative_errors(found: tuple[torch.Tensor, ...], truth: Exact) -> tuple[float, ...]:
    return tuple(
        float((a.double() - b).abs().nan_to_num(0.0).max()) / (float(b.abs().max()) or 1.0)
        for a, b in zip(found, (truth.out, *truth.grads), strict=True)
    )
