"""What the tests of attention share: tensors, masks, and costs that lead to plans of every kind."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch

import maskwright as mw
from maskwright.engine import plan
from maskwright.engine.costs import Costs, table
from tests.engine.test_plan import CHEAP_CALLS, DEAR_MASKS, ONE_CALL

if TYPE_CHECKING:
    from collections.abc import Iterator

NAN, INF = math.nan, math.inf

# Under the machine's own costs small masks are one piece; under the others they are cut, folded,
# gathered and merged as large ones are.
COSTS: dict[str, Costs | None] = {
    "own": None,
    "calls": CHEAP_CALLS,
    "masks": DEAR_MASKS,
    "one": ONE_CALL,
}

T = 48

# Each leaves other rows empty, other keys unseen, or neither.
MASKS: dict[str, mw.Mask] = {
    "everything": mw.everything(),
    "nothing": mw.nothing(),
    "causal": mw.causal(),
    "window": mw.window(back=5),
    "ahead": mw.window(back=0, ahead=7) - mw.window(back=0, ahead=3),
    "sinks": (mw.window(back=4) | mw.keys(range(2))) & mw.causal(),
    "documents": mw.causal() & mw.documents(lengths=[7, 16, 1, 20, 4]),
    "prefix": mw.causal() | mw.prefix(9),
    "dilated": mw.window(back=15) & mw.stride(4),
    "holes": mw.causal() - mw.keys(range(0, T, 5)),
    "hole in every strip": mw.window(back=11) - mw.keys(range(3, T, 8)),
    "some rows": mw.queries([0, 1, 9, 30, 47]) & mw.everything(),
    "no first or last row": mw.everything() - mw.queries([0, T - 1]),
    "padding": mw.causal() & mw.padding(lengths=[20, T]),
    "empty sequence": mw.causal() & mw.padding(lengths=[0, 33]),
    "left padding": mw.causal()
    & mw.padding(keep=torch.arange(T) >= torch.tensor([[19], [0]])),
    "both sides padded": mw.padding(lengths=[20, 5]) & mw.padding(lengths=[20, 5]).T,
    "by head": mw.by_head(
        [mw.causal(), mw.window(back=3) - mw.keys([2, 3]), mw.nothing(), mw.chunks(8)]
    ),
    "heads in turn": mw.by_head([mw.causal() & mw.keys(list(range(9))), mw.chunks(4)] * 2),
    "by batch": mw.by_batch([mw.nothing(), mw.chunks(16) & mw.causal()]),
    "scattered": mw.where(lambda b, h, q, k: ((q * 31 + k * 17) % 11 == 0) & (k % 6 != 1)),
}  # fmt: skip


class Tensors(NamedTuple):
    """q, k and v."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def learning(self) -> Tensors:
        return Tensors(*(x.detach().clone().requires_grad_() for x in self))

    def __repr__(self) -> str:
        return f"Tensors({[tuple(x.shape) for x in self]}, {self.q.dtype})"


def tensors(
    batch: int = 1,
    heads: int = 2,
    q_len: int = T,
    kv_len: int | None = None,
    dim: int = 4,
    value_dim: int | None = None,
    kv_heads: int | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Tensors:
    """Random ones, in float64 if not said otherwise: there rounding hides nothing."""
    made = torch.Generator().manual_seed(seed)
    keys = q_len if kv_len is None else kv_len
    key_heads = heads if kv_heads is None else kv_heads
    shapes = (
        (heads, q_len, dim),
        (key_heads, keys, dim),
        (key_heads, keys, dim if value_dim is None else value_dim),
    )
    return Tensors(*(torch.randn(batch, *shape, generator=made).to(dtype) for shape in shapes))


def sizes_of(name: str) -> dict[str, int]:
    """The batch rows and heads that a mask of `MASKS` wants."""
    batch, heads = MASKS[name].on(T).shape[:2]
    return {"batch": batch, "heads": max(heads, 2)}


@contextmanager
def planned_by(name: str) -> Iterator[None]:
    """Plan by these costs of `COSTS`; masks must be bound inside, since a plan is kept."""
    costs = COSTS[name]
    known = table() if costs is None else dict.fromkeys(("forward", "backward"), costs)
    with mock.patch.object(plan, "table", return_value=known):
        yield


def gradients(out: Any, given: Any, grad: Any = None) -> tuple[torch.Tensor, ...]:
    """Of all that was given, zeros where nothing comes back."""
    total = out.sum() if grad is None else (out * grad).sum()
    found: tuple[torch.Tensor, ...] = torch.autograd.grad(total, given, materialize_grads=True)
    return found
