"""A long call in several, which give the same bits as one."""

from __future__ import annotations

import pytest
import torch

import maskwright as mw
from maskwright.engine.native import library, parts
from tests.engine.native.given import needs_kernel

pytestmark = needs_kernel

MASKS = [
    mw.causal(),
    mw.by_head([mw.causal(), mw.window(back=3), mw.chunks(8), mw.everything()]),
    mw.causal() & mw.padding(lengths=[30, 50, 7]),
    mw.by_batch([mw.by_head([mw.causal(), mw.stride(2)] * 2), mw.chunks(5), mw.everything()]),
]


@pytest.mark.parametrize("mask", MASKS, ids=range(len(MASKS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_parts_give_the_same_bits(
    mask: mw.Mask, dtype: torch.dtype, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = torch.randn(3, 4, 50, 8).to(dtype).requires_grad_()
    k, v = (torch.randn(3, kv_heads, 50, 8).to(dtype).requires_grad_() for _ in range(2))
    whole, calls = both_passes(mask, q, k, v, monkeypatch)
    assert calls == 3  # of so few numbers, output and logsumexp are had again
    monkeypatch.setattr(parts, "MOST", 10_000)
    found, calls = both_passes(mask, q, k, v, monkeypatch)
    assert calls > 6
    assert all(torch.equal(*pair) for pair in zip(whole, found, strict=True))


def both_passes(
    mask: mw.Mask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, patch: pytest.MonkeyPatch
) -> tuple[list[torch.Tensor], int]:
    calls = []

    def counted(*given: object) -> object:
        for part in parts.parts_of(*given):  # type: ignore[arg-type]
            calls.append(part)
            yield part

    patch.setattr(library, "parts_of", counted)
    out, lse = mw.attention(q, k, v, mask, impl="native", return_lse=True, enable_gqa=True)
    total = out.float().square().sum() + lse.square().sum()
    return [out, lse, *torch.autograd.grad(total, (q, k, v))], len(calls)
