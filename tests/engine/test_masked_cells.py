"""A masked cell has no influence: whatever it holds, outputs and gradients stay the same.

The expected result is computed row by row from the visible cells alone.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.engine.reference import reference
from tests._helpers.attention_inputs import (
    BACKENDS,
    INF,
    MASKS,
    NAN,
    T,
    Tensors,
    largest_summand,
    sizes_of,
    tensors,
    tolerance,
)
from tests._helpers.sampling import subset_of_cases
from tests._helpers.strategies import bind, cases

BAD = (NAN, INF, -INF)
RUNS = [*BACKENDS, ("reference", torch.float64)]


class Result(NamedTuple):
    out: Any
    lse: Any
    dq: Any
    dk: Any
    dv: Any


def by_rows(given: Tensors, grad: torch.Tensor, bound: mw.BoundMask) -> Result:
    """Attention and its gradients in float64 by loops that never touch a masked cell."""
    q, k, v, do = (x.detach().double().numpy() for x in (*given, grad))
    batch, heads, q_len, dim = q.shape
    group, scale = heads // k.shape[1], dim**-0.5
    visible = np.broadcast_to(bound.dense(), (batch, heads, q_len, k.shape[2]))
    found = Result(
        np.zeros((*q.shape[:3], v.shape[3])),
        np.full(q.shape[:3], -math.inf),
        *(np.zeros(x.shape) for x in (q, k, v)),
    )
    with np.errstate(all="ignore"):
        for b, h, i in np.ndindex(batch, heads, q_len):
            keys, kv = np.flatnonzero(visible[b, h, i]), h // group
            scores = np.array([scale * (q[b, h, i] * k[b, kv, j]).sum() for j in keys])
            if not keys.size or (scores == -math.inf).all():
                continue
            m = scores.max()
            weights = np.exp(scores - m)
            found.lse[b, h, i] = math.inf if m == math.inf else m + np.log(weights.sum())
            weights /= weights.sum()
            out = sum(w * v[b, kv, j] for w, j in zip(weights, keys, strict=True))
            found.out[b, h, i] = out
            delta = (do[b, h, i] * out).sum()
            for w, j in zip(weights, keys, strict=True):
                ds = w * ((do[b, h, i] * v[b, kv, j]).sum() - delta) * scale
                found.dq[b, h, i] += ds * k[b, kv, j]
                found.dk[b, kv, j] += ds * q[b, h, i]
                found.dv[b, kv, j] += w * do[b, h, i]
    return found


def run(given: Tensors, grad: torch.Tensor, bound: mw.BoundMask, impl: str) -> Result:
    leaves = given.learning()
    out, lse = mw.attention(*leaves, bound, enable_gqa=True, return_lse=True, impl=impl)
    grads = torch.autograd.grad(out, leaves, grad, materialize_grads=True)
    return Result(out.detach(), lse.detach(), *grads)


def check(given: Tensors, grad: torch.Tensor, bound: mw.BoundMask, impl: str) -> Result:
    """Entries that only finite cells contribute to are right; the others may be NaN or infinite."""
    found, right = run(given, grad, bound, impl), by_rows(given, grad, bound)
    clean = Tensors(*(x.nan_to_num(0.0, 0.0, 0.0) for x in given))
    summand = largest_summand(clean, grad.nan_to_num(0.0, 0.0, 0.0), None)
    for name, mine, exact in zip(Result._fields, found, right, strict=True):
        truth = torch.from_numpy(exact)
        finite = truth.isfinite()
        assert bool(mine[finite].isfinite().all()), f"{name}: a masked cell leaked"
        limit = tolerance(given.q.dtype, truth, T, 1.0 if name in ("out", "lse") else summand)
        error = (mine[finite].double() - truth[finite]).abs().max() if finite.any() else 0.0
        assert float(error) <= limit, name
    assert torch.equal(found.lse == -INF, torch.from_numpy(right.lse == -math.inf))
    return found


def spoiled(given: Tensors, grad: torch.Tensor, value: float, seed: int) -> torch.Tensor:
    """Put the value into one row of q, k, v and of the gradient; single entries or all of it."""
    choose = torch.Generator().manual_seed(seed)

    def pick(size: int) -> int:
        return int(torch.randint(size, (), generator=choose))

    for x in (*given, grad):
        if x.numel() and pick(3):
            b, h, i = (pick(size) for size in x.shape[:3])
            x[b, h, i, pick(x.shape[3]) :] = value
    return grad


@pytest.mark.parametrize(("name", "run_by"), subset_of_cases([*product(MASKS, RUNS)], 3))
def test_non_finite_rows_under_every_mask(name: str, run_by: tuple[str, torch.dtype]) -> None:
    sizes, (impl, dtype) = sizes_of(name), run_by
    bound = MASKS[name].on(T, **sizes)
    for seed, value in enumerate(BAD):
        given = tensors(**sizes, kv_heads=sizes["heads"] // 2, dim=8, dtype=dtype, seed=seed)
        check(given, spoiled(given, torch.randn(given.q.shape).to(dtype), value, seed), bound, impl)


@settings(max_examples=150)
@given(
    case=cases(),
    backend=st.sampled_from(RUNS),
    value=st.sampled_from(BAD),
    shared=st.booleans(),
    value_dim=st.sampled_from([4, 3]),
    seed=st.integers(0, 2**31),
)
def test_non_finite_rows_under_random_masks(
    case: Any, backend: Any, value: float, shared: bool, value_dim: int, seed: int
) -> None:
    frame, (impl, dtype) = case[1], backend
    given = tensors(
        batch=frame.batch,
        heads=frame.heads,
        q_len=frame.q_len,
        kv_len=frame.kv_len,
        kv_heads=1 if shared else None,
        value_dim=value_dim,
        dtype=dtype,
        seed=seed,
    )
    grad = torch.randn(*given.q.shape[:3], value_dim).to(dtype)
    check(given, spoiled(given, grad, value, seed), bind(*case), impl)


@pytest.mark.parametrize(("impl", "dtype"), BACKENDS)
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("name", ["padding", "periodic holes", "by head", "empty sequence"])
def test_unread_memory_with_dropout(
    name: str, dropout_p: float, impl: str, dtype: torch.dtype
) -> None:
    """Keys that no row attends to and queries of fully masked rows may hold anything."""
    sizes = sizes_of(name)
    bound = MASKS[name].on(T, **sizes)
    visible = torch.from_numpy(bound.dense()).expand(sizes["batch"], sizes["heads"], T, T)
    empty, unread = ~visible.any(3).unsqueeze(-1), ~visible.any(2).unsqueeze(-1)
    found = []
    for value in (0.0, NAN):
        q, k, v = tensors(**sizes, dtype=dtype)
        given = Tensors(
            q.masked_fill(empty, value), k.masked_fill(unread, value), v.masked_fill(unread, value)
        ).learning()
        torch.manual_seed(1)
        out = mw.attention(*given, bound, impl=impl, dropout_p=dropout_p)
        grad = torch.linspace(-1, 1, out.numel(), dtype=dtype).reshape(out.shape)
        grads = torch.autograd.grad(out, given, grad.masked_fill(empty, value))
        found.append((out.detach(), *grads))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert all(x.isfinite().all() for x in found[1])


@pytest.mark.parametrize(("impl", "dtype"), RUNS)
def test_visible_values_are_not_cleared(impl: str, dtype: torch.dtype) -> None:
    given = tensors(q_len=3, dtype=dtype)
    given.v[:, :, 1] = NAN
    out = mw.attention(*given, mw.causal(), impl=impl)
    assert out[:, :, 1:].isnan().all()
    assert out[:, :, 0].isfinite().all()


@pytest.mark.parametrize(("impl", "dtype"), RUNS)
def test_large_values_of_one_head_of_group(impl: str, dtype: torch.dtype) -> None:
    mask = mw.by_head([mw.causal() - mw.keys([1]), mw.causal() - mw.keys([2])])
    q, k, v = tensors(q_len=8, kv_heads=1, dtype=dtype)
    v[:, :, 2] = 1e4
    out = mw.attention(q, k, v, mask.on(8), enable_gqa=True, impl=impl)
    right = reference(q, k, v, mask.on(8)).out
    assert float((out.double() - right).abs().max()) <= tolerance(dtype, right, 8)
    assert out[0, 0, 2].abs().min() > 1e2


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize(("impl", "dtype"), RUNS)
def test_infinite_scores(impl: str, dtype: torch.dtype, decode: bool) -> None:
    """All visible scores -inf: as a fully masked row. One of +inf: NaN, and a logsumexp of +inf."""
    rows = 2 if decode else 20
    q, k, v = tensors(heads=1, q_len=rows, kv_len=20, dim=4, dtype=dtype)
    q, k = q.abs() + 0.5, -k.abs() - 0.5
    q[:, :, 0] = INF
    given = Tensors(q, k, v).learning()
    out, lse = mw.attention(*given, mw.everything(), impl=impl, return_lse=True)
    assert not out[0, 0, 0].any()
    assert lse[0, 0, 0] == -INF
    assert out[0, 0, 1:].isfinite().all()
    dq, dk, dv = torch.autograd.grad(out.sum(), given)
    assert not dq[0, 0, 0].any()
    assert dk.isfinite().all()
    assert dv.isfinite().all()
    out, lse = mw.attention(q, -k, v, mw.everything(), impl=impl, return_lse=True)
    assert out[0, 0, 0].isnan().all()
    assert lse[0, 0, 0] == INF
    assert out[0, 0, 1:].isfinite().all()
    assert lse[0, 0, 1:].isfinite().all()


@pytest.mark.parametrize("scale", [0.0, -1.0, 30.0, 1e-9])
@pytest.mark.parametrize(("impl", "dtype"), BACKENDS)
@pytest.mark.parametrize("name", ["everything", "causal", "holes", "window"])
def test_any_finite_scale(name: str, scale: float, impl: str, dtype: torch.dtype) -> None:
    given = tensors(dtype=dtype)
    out = mw.attention(*given, MASKS[name], scale=scale, impl=impl)
    right = reference(*given, MASKS[name].on(T), scale).out
    # A rounding error of the scores, which are up to about 30 · 20, is a factor of the weights.
    summand = max(1.0, 20 * abs(scale))
    assert float((out.double() - right).abs().max()) <= tolerance(dtype, right, T, summand)
