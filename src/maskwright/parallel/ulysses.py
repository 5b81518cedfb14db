"""`ulysses_attention`: ranks exchange rows for heads, and compute some heads over more rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright._optional_deps import require

with require("maskwright.parallel.ulysses"):
    import torch
    import torch.distributed as dist

from maskwright.bias.terms import TensorTerm, dense_terms
from maskwright.engine.api import attention
from maskwright.engine.call import AttentionOptions, Mode, read_call
from maskwright.engine.validate import read_numbers
from maskwright.errors import ArgumentError
from maskwright.parallel.comm import AllToAll, agreement, get_group
from maskwright.parallel.context_parallel import AGREED, agreed, attend, bind_whole, check_shard
from maskwright.parallel.submask import submask

if TYPE_CHECKING:
    from maskwright.bias.terms import Term
    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.core.frame import Frame
    from maskwright.parallel.layout import ShardLayout


def ulysses_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | BoundMask | None,
    mesh: Any,
    *,
    layout: ShardLayout,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Any = None,
    sinks: Any = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention of this rank's rows, for which each rank computes some of the heads.

    If there are fewer KV heads than ranks, some ranks compute nothing.

    Args:
        q: Queries of this rank (batch, heads, rows, head_dim).
        k: Keys of the same rows (batch, kv_heads, rows, head_dim).
        v: Values of the same rows (batch, kv_heads, rows, v_head_dim).
        mask: The mask of the whole sequence.
        mesh: A process group or a DeviceMesh of one dimension: each rank computes its heads over
            all rows. Or a DeviceMesh of two dimensions (sequence, heads): it does so over the rows
            of its mesh row, by `context_parallel_attention` along the first dimension.
        layout: The shards of the sequence over the ranks; for two dimensions over the first one. A
            rank then has its rows of `layout.split(heads)`, with ranks in the order of the mesh.
        scale: Factor of the scores, 1 / sqrt(head_dim) by default.
        softcap: As for `attention`.
        bias: As for `attention`: the bias of the whole sequence and of all heads, the same on all
            ranks. The gradient of its values on a rank is that of the rank's heads; the gradient is
            their sum over the ranks, as for `context_parallel_attention`.
        sinks: As for `attention`, of all heads, with gradients like those of a bias.
        enable_gqa: Allow fewer KV heads than query heads.

    Returns:
        The output (batch, heads, rows, v_head_dim).

    Raises:
        ArgumentError: An argument is invalid, on this rank or on another one.
        FrameError: The mask or the layout does not match the sizes of q and k.
        RankError: Another rank does not respond.

    One process, which torchrun would start several of:

    >>> import torch, torch.distributed as dist, maskwright as mw
    >>> from maskwright.parallel.layout import balance
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> x, mask = torch.randn(1, 2, 4, 8), mw.causal().on(4)
    >>> out = ulysses_attention(x, x, x, mask, dist.group.WORLD, layout=balance(mask, 1))
    >>> torch.equal(out, mw.attention(x, x, x, mask))
    True
    >>> dist.destroy_process_group()
    """
    dimensions = getattr(mesh, "ndim", 1)
    if dimensions not in (1, 2):
        raise ArgumentError(
            f"ulysses_attention: mesh has {dimensions} dimensions, expected 1 (heads) or 2 "
            "(sequence, heads). Pass those of them: mesh[names]."
        )
    sequence = mesh.get_group(0) if dimensions == 2 else None
    group = mesh.get_group(1) if dimensions == 2 else get_group(mesh)
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    options = read_numbers(
        AttentionOptions(scale, enable_gqa=enable_gqa, softcap=softcap, bias=bias, sinks=sinks)
    )
    with agreement(AGREED, group, q.device) as values:
        sequence_ranks = ranks if sequence is None else dist.get_world_size(sequence)
        bound, _ = bind_whole((q, k, v), mask, layout, sequence_ranks, options)
        first = 0 if sequence is None else dist.get_rank(sequence) * ranks
        rows = (layout if sequence is None else layout.split(ranks)).rows
        counts = rows[first : first + ranks].tolist()  # of the ranks of the group
        check_shard((q, k, v), counts[rank], rank)
        lengths = (layout.tokens, layout.tokens)
        call = read_call((q, k, v), bound, options, mode=Mode.PARTIAL, lengths=lengths)
        scores_require_grad = any(x.requires_grad for x in call.scores.tensors)
        # Each of q, k and v has an exchange of its own in the backward pass.
        gradients = (q.requires_grad, k.requires_grad, v.requires_grad, scores_require_grad)
        calls_backward = torch.is_grad_enabled() and any(gradients)
        values += agreed(call, layout, "heads", calls_backward and gradients)
    scores = call.scores

    kv_cuts = [n * k.shape[1] // ranks for n in range(ranks + 1)]
    q_cuts = [q.shape[1] // k.shape[1] * cut for cut in kv_cuts]
    heads = slice(q_cuts[rank], q_cuts[rank + 1])
    q, k, v = (
        _rows_to_heads(x, cuts, counts, group)
        for x, cuts in ((q, q_cuts), (k, kv_cuts), (v, kv_cuts))
    )
    head_options = options._replace(
        bias=TermsOfHeads(scores.terms, heads) if scores.terms else None,
        sinks=None if scores.sinks is None else scores.sinks[heads],
    )
    # The rows are in the order of the layout.
    if heads.start == heads.stop:  # but this rank takes part in the backward pass of all inputs
        out = v + sum(x.sum() for x in (q, k, v, *(x.flatten()[:0] for x in scores.tensors)))
    elif sequence is not None:
        out = attend((q, k, v), _mask_of_heads(bound, heads), sequence, layout, head_options)
    else:
        order = torch.from_numpy(layout.order)
        q, k, v = (x[:, :, torch.argsort(order)] for x in (q, k, v))
        out = attention(q, k, v, _mask_of_heads(bound, heads), **head_options._asdict())[
            :, :, order
        ]
    return _heads_to_rows(out, q_cuts, counts, group)


@dataclass(frozen=True, eq=False)
class TermsOfHeads:
    """Some heads of the terms of a bias, with the methods of `Bias` that `attention` calls.

    >>> import maskwright as mw
    >>> frame = mw.causal().on(2).frame
    >>> terms = mw.bias.alibi([1.0, 0.5]).on(2).lower()
    >>> TermsOfHeads(terms, slice(1, 2)).dense(frame).tolist()
    [[[[0.0, -0.5], [-0.5, 0.0]]]]
    """

    terms: tuple[Term, ...]  # of all heads
    heads: slice

    def lower(self, frame: Frame) -> tuple[Term, ...]:  # noqa: ARG002
        """The terms of these heads; values that all heads share are kept."""
        return tuple(self._of_term(term) for term in self.terms)

    def dense(self, frame: Frame) -> Any:
        """All added scores, (batch or 1, heads or 1, queries, keys)."""
        return dense_terms(self.lower(frame), frame)

    def _of_term(self, term: Term) -> Term:
        axis = 1 if isinstance(term, TensorTerm) else 0
        if term.values.shape[axis] == 1:
            return term
        return term._replace(values=term.values[(slice(None),) * axis + (self.heads,)])


def _mask_of_heads(bound: BoundMask, heads: slice) -> BoundMask:
    """The mask of some heads."""
    if bound.shape[1] == 1:
        return bound
    every = np.arange(bound.frame.kv_len)
    key = ("heads", heads.start, heads.stop)
    return bound.cached(key, lambda: submask(bound, every, every, heads))


def _rows_to_heads(x: torch.Tensor, cuts: list[int], rows: list[int], group: Any) -> torch.Tensor:
    """(batch, heads, own rows, dim) → (batch, own heads, all rows, dim), rank after rank."""
    rank, sizes = dist.get_rank(group), np.diff(cuts).tolist()
    batch, _, num_rows, dim = x.shape
    in_counts = [sizes[rank] * count for count in rows]
    flat = x.permute(1, 2, 0, 3).reshape(-1, batch, dim)
    received = AllToAll.apply(flat, [n * num_rows for n in sizes], in_counts, group).split(
        in_counts
    )
    parts = [
        part.reshape(sizes[rank], count, batch, dim)
        for part, count in zip(received, rows, strict=True)
    ]
    return torch.cat(parts, 1).permute(2, 0, 1, 3)


def _heads_to_rows(x: torch.Tensor, cuts: list[int], rows: list[int], group: Any) -> torch.Tensor:
    """(batch, own heads, all rows, dim) → (batch, heads, own rows, dim)."""
    rank, sizes = dist.get_rank(group), np.diff(cuts).tolist()
    batch, _, _, dim = x.shape
    parts = x.permute(1, 2, 0, 3).split(rows, 1)
    flat = torch.cat([part.reshape(-1, batch, dim) for part in parts])
    out_counts = [sizes[rank] * count for count in rows]
    received = AllToAll.apply(flat, out_counts, [n * rows[rank] for n in sizes], group)
    return received.reshape(cuts[-1], rows[rank], batch, dim).permute(2, 0, 1, 3)
