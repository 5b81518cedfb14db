"""Attention over some of the keys, in torch: the partial results that ranks merge.

Nothing here communicates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from maskwright.engine.dispatch import select_backend
from maskwright.engine.params import AttentionParams, AttentionShape
from maskwright.engine.validate import default_scale

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.engine.params import AttentionOptions, Saved
    from maskwright.parallel.exchange import Exchange

HALF_DTYPES: Final = (torch.float16, torch.bfloat16)

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class PartialAttention:
    """Attention over some of the keys, by the same backend for all of them.

    Half precision is computed in float32, since partial results are merged.

    Attributes:
        params: The parameters of the call over the whole sequence.
        backend: The module of the selected backend.
    """

    params: AttentionParams
    backend: Any

    def forward(
        self, mask: BoundMask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and logsumexp over the keys k.

        Args:
            mask: The mask of these queries and keys.
            q: Queries of this rank.
            k: Some of the keys.
            v: Their values.
        """
        with torch.autocast(self.params.device, enabled=False):
            out, lse = self.backend.forward(
                self._restricted(mask, q, k), *(_full_precision(x) for x in (q, k, v))
            )
        return out, lse

    def backward(
        self,
        mask: BoundMask,
        saved: Saved,
        grad_out: torch.Tensor,
        grad_lse: torch.Tensor | None,
    ) -> Tensors:
        """The summands of the gradients of q, k and v that belong to some of the keys.

        Args:
            mask: The mask of these queries and keys.
            saved: Queries, some of the keys and values, and output and logsumexp over all keys.
            grad_out: Gradient of the output.
            grad_lse: Gradient of the logsumexp, or None.
        """
        saved = saved._replace(
            q=_full_precision(saved.q), k=_full_precision(saved.k), v=_full_precision(saved.v)
        )
        params = self._restricted(mask, saved.q, saved.k)
        with torch.autocast(self.params.device, enabled=False):
            dq, dk, dv = self.backend.backward(params, saved, _full_precision(grad_out), grad_lse)
        return dq, dk, dv

    def _restricted(self, mask: BoundMask, q: torch.Tensor, k: torch.Tensor) -> AttentionParams:
        shape = self.params.shape._replace(q_len=q.shape[2], kv_len=k.shape[2])
        return replace(self.params, mask=mask, shape=shape)


@dataclass(frozen=True, eq=False)
class RankCall:
    """One rank's part of a call: which keys it exchanges, with whom, and how it computes."""

    exchange: Exchange
    group: Any  # a process group
    attention: PartialAttention


def select_partial_attention(
    bound: BoundMask, tensors: Tensors, options: AttentionOptions
) -> PartialAttention:
    """Select the backend of all partial results.

    Args:
        bound: The mask of the whole sequence.
        tensors: q, k and v of this rank.
        options: The options of the call; `scale` and `impl` are used.

    Raises:
        Unsupported: The backend named by `impl` does not support the call.
    """
    q, k, v = tensors
    batch, heads, _, head_dim = q.shape
    q_len, kv_len = bound.frame.q_len, bound.frame.kv_len
    params = AttentionParams(
        bound,
        AttentionShape(batch, heads, k.shape[1], q_len, kv_len, head_dim, v.shape[3]),
        default_scale(head_dim) if options.scale is None else float(options.scale),
        "float32" if q.dtype in HALF_DTYPES else str(q.dtype).removeprefix("torch."),
        q.device.type,
        impl=options.impl,
        return_lse=True,
        requires_grad=any(x.requires_grad for x in tensors),
        explicit_backward=True,
    )
    return PartialAttention(params, select_backend(params).module)


def pack_kv(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Keys and values in one tensor, (keys, batch, kv_heads, head_dim + v_head_dim)."""
    return torch.cat((k, v), -1).permute(2, 0, 1, 3)


def unpack_kv(packed: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, (batch, kv_heads, keys, ...), of a tensor that `pack_kv` made."""
    both = packed.permute(1, 2, 0, 3)
    return both[..., :head_dim], both[..., head_dim:]


def _full_precision(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in HALF_DTYPES else x
