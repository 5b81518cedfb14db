"""A masked cell has no influence, whatever q, k, v and dO hold there: NaN and Inf included."""

from __future__ import annotations

import math

import pytest
import torch

import maskwright as mw
from tests._helpers.native_kernel import (
    Inputs,
    call_of,
    inputs,
    isa,
    needs_kernel,
    run_native,
)

__all__ = ["isa"]
pytestmark = needs_kernel

BAD = [math.nan, math.inf, -math.inf]


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_rows_that_do_not_see_it_keep_every_bit(name: str, bad: float, dropout_p: float) -> None:
    """A causal mask at a real size: rows before the bad key, and keys after the bad row."""
    length, at = 300, 170
    x = inputs(q_len=length, dim=32)
    call = call_of(mw.causal(), x, dropout_p=dropout_p, seed=1)
    clean = run_native(call, x)
    changed = Inputs(*(t.clone() for t in x))
    getattr(changed, name)[:, :, at] = bad
    found = run_native(call, changed)
    if name in ("k", "v"):
        for field in ("out", "lse", "dq"):
            mine, true = (getattr(r, field)[:, :, :at] for r in (found, clean))
            assert torch.equal(mine, true), field
        assert not found.out[:, :, at:].isfinite().any()
        return
    others = [row for row in range(length) if row != at]
    for field in ("out", "lse", "dq"):
        mine, true = (getattr(r, field)[:, :, others] for r in (found, clean))
        assert torch.equal(mine, true), field
    for field in ("dk", "dv"):
        mine, true = (getattr(r, field)[:, :, at + 1 :] for r in (found, clean))
        assert torch.equal(mine, true), field


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
def test_only_neighbours_in_an_image_see_it(name: str, bad: float) -> None:
    """Rows are computed one by one: those that do not attend to the bad pixel keep every bit."""
    side, at = 12, 5 * 12 + 7
    mask = mw.image(side, side, radius=2)
    x = inputs(q_len=side * side, dim=32)
    call = call_of(mask, x)
    near = torch.from_numpy(mask.on(side * side).dense()[0, 0, at])
    clean = run_native(call, x)
    changed = Inputs(*(t.clone() for t in x))
    getattr(changed, name)[:, :, at] = bad
    found = run_native(call, changed)
    rows = near if name in ("k", "v") else torch.arange(side * side) == at
    for field in ("out", "lse", "dq"):
        mine, true = (getattr(r, field)[:, :, ~rows] for r in (found, clean))
        assert torch.equal(mine, true), field
    if name in ("k", "v"):
        assert not found.out[:, :, rows].isfinite().any()
    else:
        for field in ("dk", "dv"):
            mine, true = (getattr(r, field)[:, :, ~near] for r in (found, clean))
            assert torch.equal(mine, true), field


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("q_len", [1, 5, 30])
@pytest.mark.parametrize("kv_len", [9, 2500])
@pytest.mark.parametrize(
    ("first", "second", "lse"),
    [
        (math.inf, 0.0, math.inf),
        (math.nan, 0.0, math.nan),
        (math.inf, math.nan, math.nan),
        (math.nan, math.inf, math.nan),
    ],
)
def test_infinite_and_undefined_scores(
    q_len: int, kv_len: int, first: float, second: float, lse: float
) -> None:
    """The scores are those of one-dimensional keys with queries of 1."""
    x = inputs(q_len=q_len, kv_len=kv_len, dim=1, v_dim=8)
    x.q[...] = 1.0
    x.k[:, :, 1], x.k[:, :, kv_len - 2] = first, second
    found = run_native(call_of(mw.everything(), x), x)
    assert found.out.isnan().all()
    expected = torch.full_like(found.lse, lse)
    assert torch.allclose(found.lse, expected, equal_nan=True)
