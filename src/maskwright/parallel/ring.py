"""Ring attention on torch.distributed: keys and values circulate, and each rank merges its partial results.

A rank holds its own keys, those that it computes with, and those that it receives: the memory of
three shards, whatever the number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from maskwright.engine.params import Saved
from maskwright.engine.softmax import merge
from maskwright.parallel.partial import pack_kv, unpack_kv
from maskwright.parallel.wire import Swap, swap

if TYPE_CHECKING:
    from maskwright.parallel.partial import RankCall


class Ring(torch.autograd.Function):
    """Attention of a rank's queries: output and logsumexp, both differentiable once."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: RankCall
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output in the dtype of q, and the logsumexp."""
        held = pack_kv(k, v)
        masks = call.exchange.round
        merged = None
        for step, mask in enumerate(masks):
            received = _pass_on(held, step, call) if step + 1 < len(masks) else None
            partial = call.attention.forward(mask, q, *unpack_kv(held, k.shape[-1]))
            merged = partial if merged is None else merge(merged, partial)
            held = held if received is None else received.wait()
        assert merged is not None
        out, lse = merged
        ctx.call = call
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        return out.to(q.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k and v; those of k and v follow the keys around the ring."""
        saved, call = Saved(*ctx.saved_tensors), ctx.call
        k = saved.k
        grad_out = torch.zeros_like(saved.out) if grad_out is None else grad_out
        held, masks = pack_kv(k, saved.v), call.exchange.round
        dq = own = None
        passed: Swap | None = None
        for step, mask in enumerate(masks):
            received = _pass_on(held, step, call) if step + 1 < len(masks) else None
            keys, values = unpack_kv(held, k.shape[-1])
            partial = saved._replace(k=keys, v=values)
            part_dq, dk, dv = call.attention.backward(mask, partial, grad_out, grad_lse)
            dq = part_dq if dq is None else dq + part_dq
            grads = pack_kv(dk, dv)
            if step == 0:
                own = grads
            else:
                grads = grads if passed is None else grads + passed.wait()
                passed = _pass_on(grads, step, call)
            held = held if received is None else received.wait()
        assert own is not None
        assert dq is not None
        if passed is not None:
            own = own + passed.wait()
        dk, dv = unpack_kv(own, k.shape[-1])
        return dq.to(saved.q.dtype), dk.to(k.dtype), dv.to(saved.v.dtype), None


def _pass_on(rows: torch.Tensor, step: int, call: RankCall) -> Swap:
    """Send to the next rank what came from `step` ranks back, and receive from the previous one."""
    shards, rank = call.exchange.shards, call.exchange.rank
    out_counts, in_counts = [0] * shards.ranks, [0] * shards.ranks
    out_counts[(rank + 1) % shards.ranks] = rows.shape[0]
    in_counts[rank - 1] = int(shards.rows[(rank - step - 1) % shards.ranks])
    return swap(rows, out_counts, in_counts, call.group)
