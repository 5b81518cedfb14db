"""All keys go round over torch.distributed, each rank computing on those that it has at the moment.

A rank holds its own keys, those it computes with, and those on their way to it: memory stays that
of three shares, whatever the number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskwright.parallel.parts import Known, merged, part, part_back, unpacked
from maskwright.parallel.wire import Swap, swap

if TYPE_CHECKING:
    from maskwright.parallel.exchange import Task


class Ring(torch.autograd.Function):
    """A rank's rows: output in q's dtype and logsumexp, both differentiable once."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, task: Task
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute them."""
        held = _packed(k, v)
        masks = task.exchange.round
        found = None
        for step, mask in enumerate(masks):
            coming = _passed(held, step, task) if step + 1 < len(masks) else None
            more = part(mask, q, *unpacked(held, k), task.terms)
            found = more if found is None else merged(found, more)
            held = held if coming is None else coming.wait()
        assert found is not None
        out, lse = found
        ctx.task = task
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        return out.to(q.dtype), lse

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor | None, grad_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k and v; those of keys go round behind the keys, and end at home."""
        q, k, v, out, lse = ctx.saved_tensors
        task = ctx.task
        grad = torch.zeros_like(out) if grad is None else grad
        known = Known(q, grad, grad_lse, out, lse, task.terms)
        held, masks = _packed(k, v), task.exchange.round
        total = home = None
        carried: Swap | None = None
        for step, mask in enumerate(masks):
            coming = _passed(held, step, task) if step + 1 < len(masks) else None
            dq, dk, dv = part_back(mask, *unpacked(held, k), known)
            total = dq if total is None else total + dq
            keys = _packed(dk, dv)
            if step == 0:
                home = keys
            else:
                keys = keys if carried is None else keys + carried.wait()
                carried = _passed(keys, step, task)
            held = held if coming is None else coming.wait()
        assert home is not None
        assert total is not None
        if carried is not None:
            home = home + carried.wait()
        dk, dv = unpacked(home, k)
        return total.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None


def _packed(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.cat((k, v), -1).permute(2, 0, 1, 3)  # (keys, B, Hk, D + Dv)


def _passed(rows: torch.Tensor, step: int, task: Task) -> Swap:
    """Pass what came `step` ranks far on to the next rank, and take what the one before has."""
    shards, rank = task.exchange.shards, task.exchange.rank
    out_counts, in_counts = [0] * shards.ranks, [0] * shards.ranks
    out_counts[(rank + 1) % shards.ranks] = rows.shape[0]
    in_counts[rank - 1] = int(shards.rows[(rank - step - 1) % shards.ranks])
    return swap(rows, out_counts, in_counts, task.group)
