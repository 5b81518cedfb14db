"""Attention in one process and over ranks, and the bytes that are exchanged."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

import maskwright as mw
from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm
from maskwright.engine.reference import reference
from maskwright.parallel.context_parallel import context_parallel_attention
from maskwright.parallel.layout import balance
from maskwright.parallel.ulysses import ulysses_attention
from tests._helpers.attention_inputs import MASKS, tensors
from tests._helpers.score_terms import ScoreOptions, TermBias, exact_attention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.parallel.layout import ShardLayout


class Case(NamedTuple):
    """An attention to be computed in one process and in several."""

    mask: Any  # a name of `MASKS`, or a mask
    tokens: int
    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    dim: int = 4
    value_dim: int = 4
    dtype: str = "float64"
    strategy: str = "auto"
    exchange: str = "all_to_all"

    def bound(self) -> mw.BoundMask:
        mask = MASKS[self.mask] if isinstance(self.mask, str) else self.mask
        return mask.on(self.tokens, self.tokens, self.batch, self.heads, 0)

    def layout(self, ranks: int) -> ShardLayout:
        return balance(self.bound(), ranks, strategy=self.strategy, key_bytes=self.key_bytes)

    @property
    def key_bytes(self) -> int:
        size = getattr(torch, self.dtype).itemsize
        return self.batch * self.kv_heads * (self.dim + self.value_dim) * size

    def tensors(self, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        """q, k, v and the gradients of the output and of the logsumexp."""
        made = tensors(
            batch=self.batch,
            heads=self.heads,
            q_len=self.tokens,
            dim=self.dim,
            value_dim=self.value_dim,
            kv_heads=self.kv_heads,
            dtype=getattr(torch, self.dtype),
        )
        generator = torch.Generator().manual_seed(1)
        shape = (self.batch, self.heads, self.tokens)
        grad = torch.randn(*shape, self.value_dim, generator=generator).to(made.q.dtype)
        grad_lse = torch.randn(*shape, generator=generator)
        given = (*made, grad, grad_lse)
        return given if dtype is None else tuple(x.to(dtype) for x in given)


class Result(NamedTuple):
    """Outputs and gradients of all rows, or of the rows that a rank has."""

    out: np.ndarray
    lse: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray


def backward(out: torch.Tensor, lse: torch.Tensor | None, inputs: Any, grads: Any) -> Result:
    """Run the backward pass."""
    lse = torch.zeros(out.shape[:3]) if lse is None else lse
    finite = lse.masked_fill(lse == -torch.inf, 0.0)
    total = (out * grads[0]).sum() + (finite * grads[1].to(lse.dtype)).sum()
    found = torch.autograd.grad(total, inputs, materialize_grads=True)
    return Result(*(x.detach().double().numpy() for x in (out, lse, *found)))


def one_process(case: Case, with_lse: bool = True) -> Result:
    """The result in one process; without `with_lse` the logsumexp has no gradient."""
    q, k, v, *grads = case.tensors()
    grads[1] = grads[1] * with_lse
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out, lse = mw.attention(*inputs, case.bound(), enable_gqa=True, return_lse=True)
    return backward(out, lse, inputs, grads)


def expected(case: Case, by_sdpa: bool = False) -> Result:
    """The result in float64, or that of SDPA with a dense mask in the dtype of the case."""
    q, k, v, *grads = case.tensors(None if by_sdpa else torch.float64)
    bound, grads[1] = case.bound(), grads[1] * 0.0
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out, lse, _ = reference(*inputs, bound)
    if by_sdpa:
        visible = torch.from_numpy(bound.dense())
        empty = ~visible.any(-1, keepdim=True)
        out = scaled_dot_product_attention(*inputs, attn_mask=visible | empty, enable_gqa=True)
        out = out.masked_fill(empty, 0.0)
    return backward(out, lse, inputs, grads)


def shard(case: Case, layout: ShardLayout, rank: int) -> tuple[list[torch.Tensor], Any]:
    """q, k and v as a rank has them, and its gradients."""
    rows = torch.from_numpy(layout.positions(rank))
    q, k, v, *grads = (x[:, :, rows] for x in case.tensors())
    return [x.detach().clone().requires_grad_() for x in (q, k, v)], grads


def context_parallel(
    group: Any, case: Case, with_lse: bool = True
) -> tuple[Result, tuple[int, int], tuple[int, int]]:
    """The result on one rank, and the bytes that it sends and receives, forward and backward."""
    bound, layout = case.bound(), case.layout(dist.get_world_size(group))
    inputs, grads = shard(case, layout, dist.get_rank(group))
    grads[1] = grads[1] * with_lse
    options: Any = {"enable_gqa": True, "exchange": case.exchange, "return_lse": True}
    with count_bytes() as forth:
        out, lse = context_parallel_attention(*inputs, bound, group, layout=layout, **options)
    with count_bytes() as back:
        result = backward(out, lse, inputs, grads)
    return result, (forth[0], forth[1]), (back[0], back[1])


def gradient_modes(group: Any, job: str, case: Case, flags: str, options: dict[str, Any]) -> None:
    """Forward and backward with some of q, k and v requiring gradients, "-" with no_grad()."""
    layout = case.layout(dist.get_world_size(group))
    inputs, _ = shard(case, layout, dist.get_rank(group))
    for name, x in zip("qkv", inputs, strict=True):
        x.requires_grad_(name in flags or "-" in flags)
    function = ulysses_attention if job == "ulysses" else context_parallel_attention
    with torch.set_grad_enabled("-" not in flags):
        out = function(*inputs, case.bound(), group, layout=layout, enable_gqa=True, **options)
    if out.requires_grad:
        out.sum().backward()


def score_options(case: Case, kinds: str) -> ScoreOptions:
    """Soft cap, sinks, and bias terms of the whole sequence: distance, grid, tensor, key, row."""
    made, dtype = torch.Generator().manual_seed(2), getattr(torch, case.dtype)
    tokens, heads = case.tokens, case.heads
    width = 5
    height = -(-tokens // width)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=made).to(dtype).requires_grad_()

    terms = {
        "d": lambda: DistanceTerm(values(heads, 2 * tokens - 1), tokens - 1),
        "g": lambda: GridTerm(values(1, 2 * height - 1, 2 * width - 1), height, width),
        "t": lambda: TensorTerm(values(1, heads, tokens, tokens)),
        "k": lambda: TensorTerm(values(case.batch, 1, 1, tokens)),
        "r": lambda: TensorTerm(values(1, heads, tokens, 1)),
    }
    bias = TermBias(tuple(terms[kind]() for kind in kinds))
    return ScoreOptions(3.0, bias, values(heads))


def context_parallel_scores(group: Any, case: Case, kinds: str) -> tuple[list[Any], list[Any]]:
    """Of one rank: output, dq, dk, dv of its rows; and its gradients of bias values and sinks."""
    bound, layout = case.bound(), case.layout(dist.get_world_size(group))
    inputs, grads = shard(case, layout, dist.get_rank(group))
    options = score_options(case, kinds)
    out, lse = context_parallel_attention(
        *(*inputs, bound, group),
        layout=layout,
        **options.arguments,
        enable_gqa=True,
        exchange=case.exchange,
        return_lse=True,
    )
    found = with_gradients(out, lse, grads, (*inputs, *options.tensors))
    return found[:5], found[5:]


def one_process_scores(
    case: Case, kinds: str, with_lse: bool = True
) -> tuple[list[Any], list[Any]]:
    """The same in one process, by the reference; the logsumexp has a gradient if `with_lse`."""
    q, k, v, *grads = case.tensors()
    grads[1] = grads[1] * with_lse
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    options = score_options(case, kinds)
    out, lse, _ = exact_attention(tuple(inputs), case.bound(), options, None)
    found = with_gradients(out, lse, grads, (*inputs, *options.tensors))
    return found[:5], found[5:]


def with_gradients(out: Any, lse: Any, grads: Any, leaves: Any) -> list[np.ndarray]:
    finite = lse.masked_fill(lse == -torch.inf, 0.0)
    total = (out * grads[0]).sum() + (finite * grads[1].to(lse.dtype)).sum()
    found = torch.autograd.grad(total, leaves, materialize_grads=True)
    return [x.detach().double().numpy() for x in (out, lse, *found)]


@contextmanager
def count_bytes() -> Iterator[list[int]]:
    """Count the bytes that this rank sends to other ranks and receives from them."""
    counts, original = [0, 0], dist.all_to_all_single

    def counting(
        out: Any, rows: Any, in_sizes: Any, out_sizes: Any, group: Any, **more: Any
    ) -> Any:
        rank = dist.get_rank(group)
        for n, sizes in enumerate((out_sizes, in_sizes)):
            counts[n] += sum(sizes) - sizes[rank]  # of uint8
        return original(out, rows, in_sizes, out_sizes, group=group, **more)

    with mock.patch.object(dist, "all_to_all_single", counting):
        yield counts


def ulysses(group: Any, case: Case, shape: tuple[int, ...]) -> Result:
    """The result on one rank by `ulysses_attention`, on a group or on a mesh of two dimensions."""
    layout = fine = case.layout(shape[0])
    if len(shape) == 2:
        fine, group = layout.split(shape[1]), dist.init_device_mesh("cpu", shape)
    inputs, grads = shard(case, fine, dist.get_rank())
    out = ulysses_attention(*inputs, case.bound(), group, layout=layout, enable_gqa=True)
    return backward(out, None, inputs, grads)


def ulysses_scores(
    group: Any, case: Case, shape: tuple[int, ...], kinds: str
) -> tuple[list[Any], list[Any]]:
    """The same by `ulysses_attention`; "t" alone is a plain tensor, and "d" alone an expression."""
    layout = fine = case.layout(shape[0])
    if len(shape) == 2:
        fine, group = layout.split(shape[1]), dist.init_device_mesh("cpu", shape)
    inputs, grads = shard(case, fine, dist.get_rank())
    options = score_options(case, kinds)
    arguments, values = options.arguments, options.tensors[0]
    if kinds in ("t", "d"):
        arguments["bias"] = values if kinds == "t" else mw.bias.relative(values)
    out = ulysses_attention(
        *(*inputs, case.bound(), group), layout=layout, **arguments, enable_gqa=True
    )
    found = with_gradients(out, torch.zeros(out.shape[:3]), grads, (*inputs, *options.tensors))
    return [found[0], *found[2:5]], found[5:]


def gathered(parts: list[Result], layout: ShardLayout) -> Result:
    """The rows of all ranks in the order of positions."""
    back = np.argsort(layout.order)
    return Result(*(np.concatenate(each, 2)[:, :, back] for each in zip(*parts, strict=True)))
