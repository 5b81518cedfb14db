"""Plain operations give what the engine gives, also with what was found over other keys."""

from __future__ import annotations

import math

import pytest
import torch

from maskwright.engine import execute
from maskwright.engine.execute import Terms
from maskwright.parallel import blockwise
from tests.engine.given import MASKS, T, sizes_of, tensors

SCALE = 0.3


@pytest.mark.parametrize("name", MASKS)
def test_it_is_the_engine_in_other_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "MOST_SCORES", 7 * T * 8)  # several blocks of rows
    sizes = sizes_of(name)
    q, k, v = tensors(**sizes, kv_heads=sizes["heads"] // 2, value_dim=6)
    bound = MASKS[name].on(T, T, q.shape[0], q.shape[1], 0)
    out, lse = execute.forward(bound, q, k, v, Terms(SCALE))
    for mine, theirs in zip(blockwise.forward(bound, q, k, v, SCALE), (out, lse), strict=True):
        torch.testing.assert_close(mine, theirs)
    # As if other keys had been seen too: a larger logsumexp, another output.
    lse = torch.where(lse == -math.inf, lse, lse + 0.5)
    grad, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    given = (bound, grad, grad_lse, q, k, v, 0.7 * out, lse)
    for mine, theirs in zip(
        blockwise.backward(*given, SCALE), execute.backward(*given, Terms(SCALE)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_what_no_row_sees_may_hold_anything() -> None:
    q, k, v = tensors()
    bound = (MASKS["no first or last row"] & MASKS["holes"]).on(T, T, 1, 2, 0)
    k[:, :, 5] = v[:, :, 5] = math.nan
    out, lse = blockwise.forward(bound, q, k, v, SCALE)
    assert torch.isfinite(out).all()
    for grad in blockwise.backward(bound, out, None, q, k, v, out, lse, SCALE):
        assert torch.isfinite(grad).all()
