"""One mask timed beside SDPA with the same mask as a dense tensor, on this machine."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from maskwright.core.arrays import read_whole
from maskwright.engine.attention import attention, explain_route

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.expr import Mask

ROUNDS = 5


@dataclass(frozen=True)
class Beside:
    """How long both took, in seconds, and by which route ours was computed."""

    mask: str
    size: int
    heads: int
    head_dim: int
    seconds: dict[str, float]
    times_as_fast: float
    route: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.mask:.60}, {self.size} queries and keys, {self.heads} heads of "
                f"{self.head_dim}, float32",
                *(f"{name:<17} {took * 1e3:9.3f} ms" for name, took in self.seconds.items()),
                f"{self.times_as_fast:.1f} times as fast, by {self.route}",
            ]
        )


def beside_sdpa(mask: Mask, size: int, heads: int, head_dim: int = 64) -> Beside:
    """How long both take, best of some turns each.

    >>> import maskwright as mw
    >>> from maskwright.engine.beside import beside_sdpa
    >>> print(str(beside_sdpa(mw.causal(), 32, 2)).splitlines()[0])
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
    return Beside(repr(mask), size, heads, head_dim, best, theirs / ours, route.kind)


def _take_turns(runners: dict[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(runners, float("inf"))
    for turn in range(ROUNDS + 1):
        for name, run in runners.items():
            start = time.perf_counter()
            run()
            if turn:  # the first one plans
                best[name] = min(best[name], time.perf_counter() - start)
    return best
