"""The judge, judged: a softmax by plain loops over the cells that the oracle allows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.engine.reference import reference
from tests._helpers.attention_inputs import NAN, gradients, tensors
from tests._helpers.strategies import bind, cases


def by_loops(q: Any, k: Any, v: Any, dense: Any, scale: float, uniform: bool) -> tuple[Any, Any]:
    """Output and logsumexp of one batch row and head."""
    out, lse = np.zeros((len(q), v.shape[1])), np.full(len(q), -math.inf)
    for i in range(len(q)):
        keys = [j for j in range(len(k)) if dense[i, j]]
        if not keys:
            if uniform and len(k):
                out[i], lse[i] = v.mean(0), math.log(len(k))
            continue
        scores = [scale * float(q[i] @ k[j]) for j in keys]
        most = max(scores)
        total = sum(math.exp(s - most) for s in scores)
        lse[i] = most + math.log(total)
        out[i] = sum(math.exp(s - lse[i]) * v[j] for s, j in zip(scores, keys, strict=True))
    return out, lse


@settings(max_examples=100)
@given(
    case=cases(),
    uniform=st.booleans(),
    shared=st.booleans(),
    scale=st.sampled_from([None, 0.4, -2.0]),
    seed=st.integers(0, 2**31),
)
def test_reference_is_plain_softmax(
    case: Any, uniform: bool, shared: bool, scale: float | None, seed: int
) -> None:
    frame, bound = case[1], bind(*case)
    q, k, v = tensors(
        batch=frame.batch,
        heads=frame.heads,
        q_len=frame.q_len,
        kv_len=frame.kv_len,
        kv_heads=1 if shared else None,
        value_dim=2,
        seed=seed,
    )
    found = reference(q, k, v, bound, scale, "uniform" if uniform else "zero")
    dense = np.broadcast_to(bound.dense(), found.weights.shape)
    for b in range(frame.batch):
        for h in range(frame.heads):
            key_head = 0 if shared else h
            out, lse = by_loops(
                q[b, h].numpy(),
                k[b, key_head].numpy(),
                v[b, key_head].numpy(),
                dense[b, h],
                0.5 if scale is None else scale,
                uniform,
            )
            np.testing.assert_allclose(found.out[b, h], out, atol=1e-12)
            np.testing.assert_allclose(found.lse[b, h], lse, atol=1e-12)


@pytest.mark.parametrize("empty_rows", ["zero", "uniform"])
def test_unseen_keys_do_not_matter(empty_rows: Any) -> None:
    bound = (mw.causal() - mw.keys([0])).on(4)
    given = tensors(q_len=4)
    given.q[:, :, 0], given.k[:, :, 0] = NAN, NAN
    if empty_rows == "zero":
        given.v[:, :, 0] = NAN
    given = given.learning()
    found = reference(*given, bound, empty_rows=empty_rows)
    assert found.out.isfinite().all()
    dq, dk, dv = gradients(found.out.square(), given)
    assert all(x.isfinite().all() for x in (dq, dk, dv))
    assert not dq[:, :, 0].any()
    assert not dk[:, :, 0].any()
    assert bool(dv[:, :, 0].any()) == (empty_rows == "uniform")


def test_empty_row_can_be_refused() -> None:
    mask = mw.causal() - mw.keys([0])
    with pytest.raises(mw.FrameError, match="row 0 of batch 0, head 0"):
        reference(*tensors(q_len=4), mask.on(4), empty_rows="error")
    reference(*tensors(q_len=4), mw.causal().on(4), empty_rows="error")
    with pytest.raises(mw.ArgumentError, match="empty_rows"):
        reference(*tensors(q_len=4), mw.causal().on(4), empty_rows="none")  # type: ignore[arg-type]


def test_it_computes_in_float64() -> None:
    found = reference(*tensors(q_len=4, dtype=torch.bfloat16), mw.causal().on(4))
    assert {x.dtype for x in found} == {torch.float64}
