"""A masked cell has no influence, whatever q, k, v and dO hold there: NaN and Inf included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from tests.engine.native.helpers import (
    Inputs,
    Result,
    assert_close,
    inputs,
    isa,
    needs_kernel,
    params_of,
    run_native,
)

__all__ = ["isa"]
pytestmark = needs_kernel

BAD = [math.nan, math.inf, -math.inf]


def exact_rows(visible: Any, x: Inputs, scale: float) -> Result:
    """Attention and gradients in float64, each row computed from its visible keys only."""
    q, k, v, dout, dlse = (t.double().numpy() for t in x)
    out, lse = np.zeros_like(dout), np.full(q.shape[:3], -np.inf)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    group = q.shape[1] // k.shape[1]
    with np.errstate(all="ignore"):
        for b, h, r in np.ndindex(q.shape[:3]):
            keys, kv = np.flatnonzero(visible[b, h, r]), h // group
            scores = scale * (k[b, kv, keys] @ q[b, h, r]) if keys.size else np.empty(0)
            if not keys.size or (scores == -np.inf).all():
                continue
            m = scores.max()
            weights = np.exp(scores - m)
            lse[b, h, r] = m + np.log(weights.sum()) if np.isfinite(m) else m
            p = weights / weights.sum()
            out[b, h, r] = p @ v[b, kv, keys]
            delta = dout[b, h, r] @ out[b, h, r] - dlse[b, h, r]
            ds = p * (v[b, kv, keys] @ dout[b, h, r] - delta)
            dq[b, h, r] = scale * ds @ k[b, kv, keys]
            dk[b, kv, keys] += scale * np.outer(ds, q[b, h, r])
            dv[b, kv, keys] += np.outer(p, dout[b, h, r])
    return Result(*(torch.from_numpy(t) for t in (out, lse, dq, dk, dv)))


@st.composite
def cases(draw: Any) -> tuple[Any, Inputs]:
    """A random mask of cells, and tensors with NaN or Inf in a few rows."""
    q_len, kv_len = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    heads, kv_heads = draw(st.sampled_from([(1, 1), (2, 1), (2, 2)]))
    x = inputs(heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len, dim=8)
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    planes = draw(st.sampled_from([1, heads]))
    visible = random.random((1, planes, q_len, kv_len)) < draw(st.sampled_from([0.1, 0.6, 0.95]))
    for name in draw(st.sets(st.sampled_from(["q", "k", "v", "dout"]), min_size=1)):
        tensor = getattr(x, name)
        for _ in range(draw(st.integers(1, 3))):
            head, row = (int(random.integers(n)) for n in tensor.shape[1:3])
            column = slice(None) if random.random() < 0.5 else int(random.integers(8))
            tensor[0, head, row, column] = draw(st.sampled_from(BAD))
    return np.broadcast_to(visible, (1, heads, q_len, kv_len)), x


@settings(max_examples=60, deadline=None)
@given(case=cases(), threads=st.sampled_from([1, 3]))
def test_only_visible_cells_have_influence(case: tuple[Any, Inputs], threads: int) -> None:
    visible, x = case
    params = params_of(mw.dense(visible), x)
    exact = exact_rows(visible, x, params.scale)
    found = run_native(params, x, threads)
    for name, mine, true in zip(Result._fields, found, exact, strict=True):
        assert torch.equal(mine.isfinite(), true.isfinite()), name
    assert_close(found, exact, torch.float32, 40)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_rows_that_do_not_see_it_keep_every_bit(name: str, bad: float, dropout_p: float) -> None:
    """A causal mask at a real size: rows before the bad key, and keys after the bad row."""
    length, at = 300, 170
    x = inputs(q_len=length, dim=32)
    params = params_of(mw.causal(), x, dropout_p=dropout_p, seed=1)
    clean = run_native(params, x)
    changed = Inputs(*(t.clone() for t in x))
    getattr(changed, name)[:, :, at] = bad
    found = run_native(params, changed)
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
@pytest.mark.parametrize("q_len", [2, 48])
def test_keys_that_no_row_attends_to_may_hold_anything(q_len: int) -> None:
    hidden = [0, 3, 20, 47]
    x = inputs(q_len=q_len, kv_len=48)
    params = params_of(mw.causal() - mw.keys(hidden), x)
    clean = run_native(params, x)
    changed = Inputs(*(t.clone() for t in x))
    changed.k[:, :, hidden] = changed.v[:, :, hidden] = math.nan
    found = run_native(params, changed)
    assert all(torch.equal(*pair) for pair in zip(clean, found, strict=True))


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
    found = run_native(params_of(mw.everything(), x), x)
    assert found.out.isnan().all()
    expected = torch.full_like(found.lse, lse)
    assert torch.allclose(found.lse, expected, equal_nan=True)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("q_len", [1, 30])
def test_scores_of_minus_infinity_only_are_a_fully_masked_row(q_len: int) -> None:
    x = inputs(q_len=q_len, kv_len=30, dim=1, v_dim=8)
    x.q[...] = 1.0
    x.k[:, 0] = -math.inf
    x.v[:, 0, 3] = math.nan
    found = run_native(params_of(mw.everything(), x), x)
    assert not found.out[:, 0].any()
    assert (found.lse[:, 0] == -math.inf).all()
    assert all(not grad[:, 0].any() for grad in found[2:])
    assert found.out[:, 1].isfinite().all()
