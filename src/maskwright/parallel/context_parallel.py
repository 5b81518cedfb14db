"""`context_parallel_attention`: attention under any mask, with the sequence sharded over ranks.

Each rank holds some rows of q, k and v. Either it receives the keys and values that its queries
attend to, by one all-to-all, or all keys pass through all ranks, in a ring. Meanwhile it computes
attention over the keys that it has, and merges the partial results by their logsumexp. The gradients
of received keys return to their ranks. A bias has the positions of the whole sequence; sinks are
applied once, to the merged result.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from maskwright._optional_deps import require

with require("maskwright.parallel.context_parallel"):
    import torch
    import torch.distributed as dist
    from torch.autograd.function import once_differentiable

from maskwright._torch_state import without_autocast
from maskwright.bias.scores import Scores, sink_factor, sink_row_gradient
from maskwright.bias.terms import Positions, TensorTerm
from maskwright.bias.values import check_storage
from maskwright.core.bound import BoundMask
from maskwright.core.validate import read_choice
from maskwright.engine.call import AttentionOptions, Call, Dtypes, Mode, read_call
from maskwright.engine.select import select_backend
from maskwright.engine.softmax import merge
from maskwright.engine.validate import bind, check_inputs, read_numbers
from maskwright.errors import ArgumentError, FrameError
from maskwright.parallel.comm import PendingRows, agreement, all_to_all_rows, get_group
from maskwright.parallel.layout import balance
from maskwright.parallel.submask import submask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maskwright.bias.terms import Term
    from maskwright.core.expr import Mask
    from maskwright.core.validate import IntArray
    from maskwright.parallel.layout import ShardLayout

    Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

EXCHANGES: Final = ("auto", "all_to_all", "ring")
MIN_RING_FRACTION: Final = 0.95  # of the keys of an all-gather, from which "auto" selects the ring
# What must be the same on all ranks.
AGREED: Final = (
    *("mask or layout", "shape (batch, heads, head_dim)", "dtype", "scale", "exchange"),
    *("softcap", "bias", "sinks", "requires_grad or grad mode of q, k, v, bias and sinks"),
)
HALF_DTYPES: Final = (torch.float16, torch.bfloat16)


def context_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | BoundMask | None,
    mesh: Any,
    *,
    layout: ShardLayout | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Any = None,
    sinks: Any = None,
    enable_gqa: bool = False,
    exchange: str = "auto",
    impl: str = "auto",
    return_lse: bool = False,
) -> Any:
    """Attention of this rank's queries over the whole sequence, under a mask of it.

    All ranks must call it together. If their masks, shapes, options or `requires_grad` differ, all
    raise an error before anything is exchanged.

    Args:
        q: Queries of this rank (batch, heads, rows, head_dim): the rows that
            `layout.positions(rank)` lists, in that order.
        k: Keys of the same rows (batch, kv_heads, rows, head_dim).
        v: Values of the same rows (batch, kv_heads, rows, v_head_dim).
        mask: The mask of the whole sequence. It must be bound if `layout` is None.
        mesh: A DeviceMesh of one dimension, or a process group.
        layout: The shards of the sequence, `balance(mask, ranks)` by default.
        scale: Factor of the scores, 1 / sqrt(head_dim) by default.
        softcap: As for `attention`.
        bias: As for `attention`: the bias of the whole sequence, the same on all ranks. A tensor
            has the rows and keys of the whole sequence. The gradient of its values on a rank is
            that of the rank's rows, as of every parameter that all ranks have: the gradient is
            their sum over the ranks, which `CPShard.all_reduce_gradients` computes.
        sinks: As for `attention`, the same on all ranks, with gradients like those of a bias.
        enable_gqa: Allow fewer KV heads than query heads.
        exchange: "all_to_all" sends each rank the keys that its queries attend to, at once. "ring"
            passes all keys around, so that a rank holds three shards of keys at most. "auto"
            selects the ring if nearly every rank needs nearly all keys.
        impl: The backend of each rank: "native", "blocks", or "auto" to select one.
        return_lse: Return the logsumexp of each row, too, as `attention` does.

    Returns:
        The output (batch, heads, rows, v_head_dim) in the dtype of q. With `return_lse` a tuple
        with the logsumexp (batch, heads, rows). Both are differentiable once.

    Raises:
        ArgumentError: An argument is invalid, on this rank or on another one.
        FrameError: The mask or the layout does not match the sizes of q and k.
        Unsupported: The backend named by `impl` does not support the call.
        RankError: Another rank does not respond.

    >>> import torch, maskwright as mw
    >>> q = torch.zeros(1, 1, 4, 2)
    >>> context_parallel_attention(q, q, q, mw.causal().on(4), mesh=None)
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: context_parallel_attention: there is no process group. \
Start the processes by torchrun and call torch.distributed.init_process_group().
    """
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(
            "context_parallel_attention: there is no process group. Start the processes by "
            "torchrun and call torch.distributed.init_process_group()."
        )
    options = AttentionOptions(scale, 0.0, enable_gqa, None, impl, return_lse, softcap, bias, sinks)
    return attend((q, k, v), mask, get_group(mesh), layout, read_numbers(options), exchange)


def attend(
    tensors: Tensors,
    mask: Mask | BoundMask | None,
    group: Any,
    layout: ShardLayout | None,
    options: AttentionOptions,
    exchange: str = "auto",
) -> Any:
    """`context_parallel_attention` with its options in one object, without dropout and q_start."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    with agreement(AGREED, group, tensors[0].device) as values:
        bound, layout = bind_whole(tensors, mask, layout, ranks, options)
        check_storage(*tensors)
        check_shard(tensors, int(layout.rows[rank]), rank)
        kind = read_choice(exchange, "context_parallel_attention: exchange", EXCHANGES)
        attention = select_partial_attention(bound, tensors, options)
        plan = key_exchange(bound, layout, rank)
        is_ring = kind == "ring" or (kind == "auto" and plan.prefers_ring)
        # If one rank has no backward pass, the others wait in theirs.
        values += agreed(attention.call, layout, is_ring, attention.call.requires_grad)
    call = RankCall(plan, group, attention.without_tensors(), is_ring)
    out, lse = ContextParallel.apply(call, *attention.call.tensors)
    return (out, lse) if options.return_lse else out


def agreed(
    call: Call, layout: ShardLayout, exchange: object, requires_grad: object
) -> tuple[object, ...]:
    """What must be the same on all ranks, in the order of `AGREED`."""
    scores = call.scores
    return (
        *(mask_digest(call.mask, layout), call.shape, str(call.q.dtype), call.scale, exchange),
        *(scores.softcap, scores.layout(), scores.sinks is not None, requires_grad),
    )


def check_layout(layout: ShardLayout, ranks: int) -> None:
    """Raise ArgumentError if a layout is for another number of ranks."""
    if layout.ranks != ranks:
        raise ArgumentError(
            f"The layout has {layout.ranks} ranks, expected {ranks} (those of the process group). "
            f"Make another one: balance(mask, {ranks})."
        )


def check_shard(tensors: Tensors, rows: int, rank: int) -> None:
    """Raise FrameError if q and k do not have the number of rows that a rank has in a layout."""
    q, k, _ = tensors
    if q.shape[2] != rows or k.shape[2] != rows:
        raise FrameError(
            f"q has {q.shape[2]} rows and k has {k.shape[2]} on rank {rank}, expected {rows} (the "
            "rows of the rank in the layout). Shard the sequence by this layout."
        )


def mask_digest(bound: BoundMask, layout: ShardLayout) -> bytes:
    """32 bytes that are equal on two ranks if mask, sizes and layout are equal."""
    return bound.cached(("digest", layout.digest), lambda: _mask_digest(bound, layout))


def _mask_digest(bound: BoundMask, layout: ShardLayout) -> bytes:
    digest = hashlib.sha256(layout.digest + repr((bound.frame, bound.spans.shape)).encode())
    for array in bound.spans.flat:
        digest.update(np.ascontiguousarray(array, np.int64).data)
    return digest.digest()


def bind_whole(
    tensors: Tensors,
    mask: Mask | BoundMask | None,
    layout: ShardLayout | None,
    ranks: int,
    options: AttentionOptions,
) -> tuple[BoundMask, ShardLayout]:
    """The mask of the whole sequence, of which q, k and v have some rows, and its layout."""
    batch, heads, *_ = check_inputs(*tensors, options.enable_gqa)
    if layout is None:
        if not isinstance(mask, BoundMask):
            raise ArgumentError(
                "context_parallel_attention: the length of the whole sequence is unknown. "
                "Pass a bound mask, mask.on(tokens), or a layout."
            )
        layout = mask.cached(("layout", ranks), lambda: balance(mask, ranks))
    check_layout(layout, ranks)
    return bind(mask, (batch, heads, layout.tokens, layout.tokens), None), layout


@dataclass(frozen=True, eq=False)
class KeyExchange:
    """The keys that one rank sends and receives under a mask, and its submasks.

    Keys arrive rank after rank. `sorting` puts them in the order of their positions, which is the
    order of the keys of `foreign`.
    """

    bound: BoundMask  # of the whole sequence
    layout: ShardLayout
    rank: int
    local: KeyPart  # this rank's rows and keys
    foreign: KeyPart  # this rank's rows and the received keys, ascending
    sent: IntArray  # which of this rank's keys are sent, rank after rank
    out_counts: tuple[int, ...]  # to each rank
    in_counts: tuple[int, ...]  # from each rank
    sorting: IntArray

    @property
    def prefers_ring(self) -> bool:
        """Whether nearly every rank needs nearly all keys."""
        return self.layout.ranks > 2 and self.layout.comm_fraction >= MIN_RING_FRACTION

    @cached_property
    def ring_parts(self) -> tuple[KeyPart, ...]:
        """This rank's rows and the keys of each rank: its own, the previous rank's, and so on."""
        layout, ranks, rows = self.layout, self.layout.ranks, self.local.positions.rows
        sources = [layout.positions((self.rank - step) % ranks) for step in range(1, ranks)]
        return (self.local, *(_key_part(self.bound, rows, keys) for keys in sources))


def key_exchange(bound: BoundMask, layout: ShardLayout, rank: int) -> KeyExchange:
    """The cached exchange for one rank. The layout may have been made for another mask.

    >>> import maskwright as mw
    >>> bound = mw.window(back=1).on(8)
    >>> key_exchange(bound, balance(bound, 2), 1).in_counts
    (1, 0)
    """
    return bound.cached(
        ("exchange", layout.digest, rank),
        lambda: _key_exchange(bound, layout.for_mask(bound), rank),
    )


def _key_exchange(bound: BoundMask, layout: ShardLayout, rank: int) -> KeyExchange:
    rows, none = layout.positions(rank), np.zeros(0, np.int64)
    ranks = range(layout.ranks)
    sent = [none if peer == rank else layout.keys_to_send(rank, peer) for peer in ranks]
    received = [
        none if peer == rank else layout.positions(peer)[layout.keys_to_send(peer, rank)]
        for peer in ranks
    ]
    keys = np.concatenate(received)
    sorting = np.argsort(keys)
    return KeyExchange(
        bound,
        layout,
        rank,
        local=_key_part(bound, rows, rows),
        foreign=_key_part(bound, rows, keys[sorting]),
        sent=np.concatenate(sent),
        out_counts=tuple(part.size for part in sent),
        in_counts=tuple(part.size for part in received),
        sorting=sorting,
    )


@dataclass(frozen=True, eq=False)
class PartialAttention:
    """Attention over some of the keys, by the same backend for all parts.

    Half precision is computed in float32, since partial results are merged.

    Attributes:
        call: The call over the whole sequence.
        backend: The module of the selected backend.
    """

    call: Call
    backend: Any

    def without_tensors(self) -> PartialAttention:
        """The same without the tensors of the call, which autograd saves by itself."""
        return replace(self, call=self.call.without_tensors())

    def forward(
        self, part: KeyPart, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: Scores
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and logsumexp over the keys k, without sinks."""
        call = self._restricted(part, (q, k, v), scores)
        with without_autocast(call.device):
            out, lse = self.backend.forward(call)
        return out, lse

    def backward(
        self,
        part: KeyPart,
        inputs: tuple[Tensors, Scores],
        results: tuple[torch.Tensor, torch.Tensor],
        grads: tuple[torch.Tensor, torch.Tensor | None],
    ) -> tuple[torch.Tensor, ...]:
        """The terms of dQ, dK and dV that belong to some of the keys, and of the bias values.

        Args:
            part: The mask of these queries and keys, and their positions.
            inputs: Queries, some of the keys and values, and the scores. The values of the bias are
                those of the whole sequence, and so are the gradients.
            results: Output and logsumexp over all keys.
            grads: Gradients of both; that of the logsumexp may be None.
        """
        tensors, scores = inputs
        call = self._restricted(part, tensors, scores)
        with without_autocast(call.device):
            dq, dk, dv, *bias_grads = self.backend.backward(
                *(call, *results, _full_precision(grads[0]), grads[1])
            )
        for n, (term, learnable) in enumerate(
            zip(scores.terms, self.call.scores.learnable, strict=True)
        ):
            if isinstance(term, TensorTerm) and learnable:
                bias_grads[n] = _place(bias_grads[n], term.values.shape, part.positions)
        return dq, dk, dv, *bias_grads

    def _restricted(self, part: KeyPart, tensors: Tensors, scores: Scores) -> Call:
        """The call over some rows and keys, without sinks."""
        q, k, v = (_full_precision(x) for x in tensors)
        call_scores = self.call.scores
        terms = tuple(
            term._replace(values=_select(term.values, part.positions))
            if isinstance(term, TensorTerm)
            else term
            for term in scores.terms
        )
        return self.call.changed(
            q=q,
            k=k,
            v=v,
            mask=part.mask,
            shape=self.call.shape._replace(q_len=q.shape[2], kv_len=k.shape[2]),
            scores=Scores(call_scores.softcap, terms, None, call_scores.learnable),
            positions=part.positions if terms else None,
        )


class KeyPart(NamedTuple):
    """The mask of a rank's rows and some keys, and their positions in the whole sequence."""

    mask: BoundMask
    positions: Positions


def _key_part(bound: BoundMask, rows: IntArray, keys: IntArray) -> KeyPart:
    return KeyPart(submask(bound, rows, keys), Positions(rows, keys))


def _select(value: torch.Tensor, positions: Positions) -> torch.Tensor:
    """The rows and keys of a bias of the whole sequence."""
    for axis, index in zip((2, 3), positions, strict=True):
        if value.shape[axis] != 1:
            value = value.index_select(axis, torch.from_numpy(index).to(value.device))
    return value


def _place(grad: torch.Tensor, shape: torch.Size, positions: Positions) -> torch.Tensor:
    """The gradient of some rows and keys as one of the whole sequence: the inverse of `_select`."""
    for axis, index in zip((2, 3), positions, strict=True):
        if shape[axis] != 1:
            whole = grad.new_zeros((*grad.shape[:axis], shape[axis], *grad.shape[axis + 1 :]))
            grad = whole.index_copy_(axis, torch.from_numpy(index).to(grad.device), grad)
    return grad


def select_partial_attention(
    bound: BoundMask, tensors: Tensors, options: AttentionOptions
) -> PartialAttention:
    """Read the call over the whole sequence, and select the backend of all partial results.

    Args:
        bound: The mask of the whole sequence.
        tensors: q, k and v of this rank.
        options: The options of the call; those of the scores and `impl` are used.

    Raises:
        Unsupported: The backend named by `impl` does not support the call.
    """
    lengths = (bound.frame.q_len, bound.frame.kv_len)
    options = options._replace(return_lse=True)
    call = read_call(tensors, bound, options, mode=Mode.PARTIAL, lengths=lengths)
    scores = call.scores
    # The gradient of a value per row does not depend on the keys: see ContextParallel.backward.
    learnable = tuple(
        learns and not _is_by_row(term)
        for term, learns in zip(scores.terms, scores.learnable, strict=True)
    )
    if tensors[0].dtype in HALF_DTYPES:
        call = call.changed(dtypes=Dtypes("float32", "float32", "float32"))
    call = call.changed(scores=replace(scores, learnable=learnable))
    return PartialAttention(call, select_backend(call).module)


def _is_by_row(term: Term) -> bool:
    """Whether a bias term is the same for all keys."""
    return isinstance(term, TensorTerm) and term.values.shape[3] == 1


def pack_kv(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Keys and values in one tensor, (keys, batch, kv_heads, head_dim + v_head_dim)."""
    return torch.cat((k, v), -1).permute(2, 0, 1, 3)


def unpack_kv(packed: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, (batch, kv_heads, keys, ...), of a tensor that `pack_kv` made."""
    both = packed.permute(1, 2, 0, 3)
    return both[..., :head_dim], both[..., head_dim:]


def _full_precision(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in HALF_DTYPES else x


@dataclass(frozen=True, eq=False)
class RankCall:
    """What one rank does per call: the keys that it exchanges, and how it computes."""

    plan: KeyExchange
    group: Any  # a process group
    attention: PartialAttention
    is_ring: bool

    def key_blocks(self, kv: torch.Tensor) -> Iterator[tuple[KeyPart, torch.Tensor]]:
        """This rank's packed keys, then those of others, with their masks and positions.

        The next keys are on their way while the caller uses the present ones.
        """
        plan = self.plan
        if not self.is_ring:
            pending = self._all_to_all(kv[plan.sent], plan.out_counts, plan.in_counts)
            yield plan.local, kv
            yield plan.foreign, pending.wait()[plan.sorting]
            return
        for step, part in enumerate(plan.ring_parts):
            is_last = step + 1 == plan.layout.ranks
            following = None if is_last else self.pass_on(kv, step)
            yield part, kv
            kv = kv if following is None else following.wait()

    def return_gradients(self, grads: torch.Tensor) -> PendingRows:
        """Send the packed gradients of the received keys to their ranks."""
        arrived = np.argsort(self.plan.sorting)
        return self._all_to_all(grads[arrived], self.plan.in_counts, self.plan.out_counts)

    def _all_to_all(
        self, rows: torch.Tensor, out_counts: Sequence[int], in_counts: Sequence[int]
    ) -> PendingRows:
        if not self.plan.layout.keys_in.any():  # on all ranks
            return PendingRows(None, rows, rows)
        return all_to_all_rows(rows, out_counts, in_counts, self.group)

    def pass_on(self, rows: torch.Tensor, step: int) -> PendingRows:
        """Send rows of `step` ranks back to the next rank, and receive from the previous one."""
        layout, rank = self.plan.layout, self.plan.rank
        out_counts, in_counts = [0] * layout.ranks, [0] * layout.ranks
        out_counts[(rank + 1) % layout.ranks] = rows.shape[0]
        in_counts[rank - 1] = int(layout.rows[(rank - step - 1) % layout.ranks])
        return all_to_all_rows(rows, out_counts, in_counts, self.group)


class ContextParallel(torch.autograd.Function):
    """Attention of a rank's queries: output and logsumexp, both differentiable once."""

    @staticmethod
    def forward(
        ctx: Any, call: RankCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *extra: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output in the dtype of q, and the logsumexp. `extra`: bias values, then sinks."""
        scores = _scores_of(call, extra)
        merged = None
        for part, kv in call.key_blocks(pack_kv(k, v)):
            partial = call.attention.forward(part, q, *unpack_kv(kv, k.shape[-1]), scores)
            merged = partial if merged is None else merge(merged, partial)
        assert merged is not None
        out, lse = merged
        if scores.sinks is not None:
            out = out * sink_factor(lse, scores.sinks).unsqueeze(-1)
        ctx.call = call
        received = kv[:0] if call.is_ring else kv  # a ring receives its keys again
        ctx.save_for_backward(received, q, k, v, out, lse, *extra)
        ctx.set_materialize_grads(False)
        return out.to(q.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k and v, of the bias values, and of the sinks."""
        received, q, k, v, out, lse, *extra = ctx.saved_tensors
        call, scores = ctx.call, _scores_of(ctx.call, extra)
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out.to(out.dtype)
        by_row = torch.zeros_like(lse)  # the sum of the gradients of the scores of a row
        if grad_lse is not None:
            by_row = by_row + grad_lse.masked_fill(lse == -torch.inf, 0.0)
        grads: list[Any] = [None] * len(extra)
        if scores.sinks is not None:
            of_sink = sink_row_gradient(lse, scores.sinks, grad_out, out)
            grads[-1] = of_sink.sum((0, 2)).to(scores.sinks.dtype)
            by_row = by_row - of_sink
            grad_out = grad_out * sink_factor(lse, scores.sinks).unsqueeze(-1)

        def partial(part: KeyPart, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            """The terms of dQ and of the packed dK and dV of some keys."""
            keys, values = unpack_kv(kv, k.shape[-1])
            dq, dk, dv, *bias_grads = call.attention.backward(
                part, ((q, keys, values), scores), (out, lse), (grad_out, grad_lse)
            )
            for n, learnable in enumerate(call.attention.call.scores.learnable):
                if learnable:
                    grads[n] = bias_grads[n] if grads[n] is None else grads[n] + bias_grads[n]
            return dq, pack_kv(dk, dv)

        packed = pack_kv(k, v)
        if call.is_ring:
            dq, dkv = _ring_backward(call, partial, packed)
        else:
            dq, dkv = _all_to_all_backward(call, partial, packed, received)
        dk, dv = unpack_kv(dkv, k.shape[-1])
        for n, term in enumerate(scores.terms):
            if ctx.needs_input_grad[4 + n] and _is_by_row(term):
                value = term.values
                shape = (*value.shape[:2], by_row.shape[2] if value.shape[2] != 1 else 1, 1)
                grad = by_row.unsqueeze(-1).sum_to_size(shape).to(value.dtype)
                grads[n] = _place(grad, value.shape, call.plan.local.positions)
        input_grads = (dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype))
        return None, *input_grads, *grads


def _scores_of(call: RankCall, extra: Any) -> Scores:
    """The scores of the whole sequence with the further inputs of `ContextParallel`."""
    return call.attention.call.scores.with_tensors(extra)


def _all_to_all_backward(
    call: RankCall, partial: Any, local_kv: torch.Tensor, received: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """DQ and packed dK, dV. The gradients of received keys are computed and sent back first."""
    foreign_dq, grads = partial(call.plan.foreign, received)
    pending = call.return_gradients(grads)
    dq, dkv = partial(call.plan.local, local_kv)
    sent = torch.from_numpy(call.plan.sent).to(dkv.device)
    return foreign_dq + dq, dkv.index_add(0, sent, pending.wait())


def _ring_backward(
    call: RankCall, partial: Any, local_kv: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """DQ and packed dK, dV. The gradients of keys follow them around the ring."""
    pending: PendingRows | None = None
    for step, (part, kv) in enumerate(call.key_blocks(local_kv)):
        part_dq, grads = partial(part, kv)
        if step == 0:
            dq, dkv = part_dq, grads
            continue
        dq = dq + part_dq
        grads = grads if pending is None else grads + pending.wait()
        pending = call.pass_on(grads, step)
    return dq, dkv if pending is None else dkv + pending.wait()
