"""One mask timed beside SDPA with the same mask as a dense tensor, on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from maskwright.core.arrays import read_whole
from maskwright.engine.attention import attention, explain_route

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.mask import Mask

ROUNDS = 5


def beside_sdpa(mask: Mask, size: int, heads: int, head_dim: int = 64) -> str:
    """A few lines that say how long both take, best of some turns each.

    >>> import maskwright as mw
    >>> from maskwright.engine.beside import beside_sdpa
    >>> print(beside_sdpa(mw.causal(), 32, 2).splitlines()[0])
    causal(), 32 queries and keys, 2 heads of 64, float32
    """
    read_whole(size, "bench: size", least=1)
    read_whole(heads, "bench: heads", least=1)
    bound = mask.on(size, heads=heads)
    batch = bound.frame.batch
    q, k, v = (torch.randn(batch, size, heads, head_dim).transpose(1, 2) for _ in range(3))
    allowed = torch.from_numpy(bound.dense())
    best = _take_turns(
        {
            "maskwright": lambda: attention(q, k, v, bound),
            "SDPA, dense mask": lambda: scaled_dot_product_attention(q, k, v, attn_mask=allowed),
        }
    )
    ours, theirs = best.values()
    route = explain_route(bound, size, batch=batch, heads=heads)
    return "\n".join(
        [
            f"{mask!r:.60}, {size} queries and keys, {heads} heads of {head_dim}, float32",
            *(f"{name:<17} {seconds * 1e3:9.3f} ms" for name, seconds in best.items()),
            f"{theirs / ours:.1f} times as fast, by {route.kind}",
        ]
    )


def _take_turns(runners: dict[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(runners, float("inf"))
    for turn in range(ROUNDS + 1):
        for name, run in runners.items():
            start = time.perf_counter()
            run()
            if turn:  # the first one plans
                best[name] = min(best[name], time.perf_counter() - start)
    return best
