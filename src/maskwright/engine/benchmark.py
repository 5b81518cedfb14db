"""Times one mask against SDPA with the same mask as a dense tensor, on this machine."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from maskwright.core.validate import parse_int
from maskwright.engine.api import attention, explain_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.expr import Mask

ROUNDS = 5


@dataclass(frozen=True)
class SpeedComparison:
    """The best times of both in seconds, and the backend that computed ours."""

    mask: str
    size: int
    heads: int
    head_dim: int
    seconds: dict[str, float]
    speedup: float
    backend: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.mask:.60}, {self.size} queries and keys, {self.heads} heads, "
                f"head_dim {self.head_dim}, float32",
                *(f"{name:<17} {took * 1e3:9.3f} ms" for name, took in self.seconds.items()),
                f"{self.speedup:.1f} times the speed of SDPA, backend {self.backend}",
            ]
        )


def compare_with_sdpa(mask: Mask, size: int, heads: int, head_dim: int = 64) -> SpeedComparison:
    """Time `attention` and SDPA with a dense mask in turns, best of several rounds.

    Args:
        mask: The mask.
        size: Number of queries and of keys.
        heads: Number of heads.
        head_dim: Head dimension.

    Returns:
        The best times and their ratio.

    >>> import maskwright as mw
    >>> from maskwright.engine.benchmark import compare_with_sdpa
    >>> print(str(compare_with_sdpa(mw.causal(), 32, 2)).splitlines()[0])
    causal(), 32 queries and keys, 2 heads, head_dim 64, float32
    """
    parse_int(size, "bench: size", minimum=1)
    parse_int(heads, "bench: heads", minimum=1)
    parse_int(head_dim, "bench: head_dim", minimum=1)
    bound = mask.on(size, heads=heads)
    batch = bound.frame.batch
    q, k, v = (torch.randn(batch, size, heads, head_dim).transpose(1, 2) for _ in range(3))
    dense = torch.from_numpy(bound.dense())
    best = _best_times(
        {
            "maskwright": lambda: attention(q, k, v, bound),
            "SDPA, dense mask": lambda: scaled_dot_product_attention(q, k, v, attn_mask=dense),
        }
    )
    ours, theirs = best.values()
    backend = explain_backend(q, k, v, bound).backend
    return SpeedComparison(repr(mask), size, heads, head_dim, best, theirs / ours, backend)


def _best_times(runners: dict[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(runners, float("inf"))
    for turn in range(ROUNDS + 1):
        for name, run in runners.items():
            start = time.perf_counter()
            run()
            if turn:  # the first round warms up
                best[name] = min(best[name], time.perf_counter() - start)
    return best
