"""What the tests of the kernel share: every instruction set in turn, and how far off it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import maskwright as mw
from maskwright.engine.native.library import loaded, use_isa
from maskwright.engine.reference import reference

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_kernel = pytest.mark.skipif(loaded().functions is None, reason="the kernel was not built")


@pytest.fixture(params=loaded().isas)
def isa(request: Any) -> Iterator[str]:
    """One that this processor has; the usual one comes back afterwards."""
    usual = loaded().isa
    use_isa(request.param)
    yield request.param
    assert usual is not None
    use_isa(usual)


def compare(bound: mw.BoundMask, q: Any, k: Any, v: Any, gradients: bool = True) -> None:
    """Output, logsumexp and gradients are about as near to float64's as SDPA's are."""
    learning = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    gqa = q.shape[1] != k.shape[1]
    out, lse = mw.attention(*learning, bound, impl="native", return_lse=True, enable_gqa=gqa)
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
    truth = reference(*doubles, bound)
    empty = torch.from_numpy(bound.empty_rows()).expand(out.shape[:3])
    assert not out[empty].any()
    assert torch.equal(lse == -torch.inf, empty)
    theirs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    allowed = torch.from_numpy(bound.dense()) | empty.unsqueeze(-1)  # SDPA has no empty rows
    peer = scaled_dot_product_attention(*theirs, attn_mask=allowed, enable_gqa=gqa)
    peer = peer.masked_fill(empty.unsqueeze(-1), 0.0)
    near(out, truth.out, peer, 2)
    seen = ~empty
    torch.testing.assert_close(lse[seen].double(), truth.lse[seen], rtol=1e-5, atol=1e-5)
    if not gradients:
        return
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(q.dtype)
    pulled = [
        torch.autograd.grad((o * grad.to(o.dtype)).sum(), x, materialize_grads=True)
        for o, x in ((out, learning), (truth.out, doubles), (peer, theirs))
    ]
    for mine, exact, other in zip(*pulled, strict=True):
        near(mine, exact, other, 3)


def near(mine: torch.Tensor, exact: torch.Tensor, peer: torch.Tensor, times: float) -> None:
    """The error is at most so many times the peer's, plus 1e-6."""
    if not mine.numel():
        return
    error, allowed = ((x.double() - exact).abs().max().item() for x in (mine, peer))
    assert error <= times * allowed + 1e-6, f"{error:.3g} beside {allowed:.3g}"
