"""What a row that sees nothing gives, and what keys that nobody sees may hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.engine.pieces import Piece, Steps
from maskwright.engine.plan import plan_of
from maskwright.engine.reference import reference
from tests.engine.given import COSTS, INF, MASKS, NAN, T, Tensors, planned_by, sizes_of, tensors
from tests.strategies import bind, cases

BAD = (NAN, INF, -INF, 1e38)


def hidden(bound: mw.BoundMask, given: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows see nothing, (B, H, T, 1), and which keys no head of a group sees, (B, Hk, S, 1)."""
    (batch, heads, q_len, _), (_, kv_heads, kv_len, _) = given.q.shape, given.k.shape
    seen = torch.from_numpy(bound.dense()).expand(batch, heads, q_len, kv_len)
    keys = seen.any(2).unflatten(1, (kv_heads, -1)).any(2)
    return ~seen.any(3).unsqueeze(-1), ~keys.unsqueeze(-1)


def filled(given: Tensors, empty: Any, unseen: Any, value: float) -> Tensors:
    q, k, v = given
    return Tensors(
        *(x.masked_fill(m, value) for x, m in ((q, empty), (k, unseen), (v, unseen)))
    ).learning()


def run(
    bound: mw.BoundMask, given: Tensors, empty: torch.Tensor, value: float, dropout_p: float
) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    out, lse = mw.attention(*given, bound, enable_gqa=True, return_lse=True, dropout_p=dropout_p)
    grad = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    grad_lse = torch.linspace(-1, 1, lse.numel(), dtype=lse.dtype).reshape(lse.shape)
    grads = torch.autograd.grad(
        (out, lse),
        given,
        (grad.masked_fill(empty, value), grad_lse.masked_fill(empty[..., 0], value)),
        materialize_grads=True,
    )
    return (out.detach(), lse.detach(), *grads)


def check(bound: mw.BoundMask, given: Tensors, value: float, dropout_p: float = 0.0) -> None:
    """Whatever unseen keys and the queries of empty rows hold, all is as if it were zero."""
    empty, unseen = hidden(bound, given)
    clean = run(bound, filled(given, empty, unseen, 0.0), empty, 0.0, dropout_p)
    found = run(bound, filled(given, empty, unseen, value), empty, value, dropout_p)
    for name, one, other in zip(("out", "lse", "dq", "dk", "dv"), found, clean, strict=True):
        assert torch.equal(one, other), name
    out, lse, dq, dk, dv = found
    assert all(bool(x.isfinite().all()) for x in (out, dq, dk, dv))
    assert not out.masked_select(empty).any()
    assert not dq.masked_select(empty).any()
    assert torch.equal(lse == -INF, empty[..., 0])
    assert not dk.masked_select(unseen).any()
    assert not dv.masked_select(unseen).any()


@pytest.mark.parametrize("value", [NAN, 1e38])
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("name", MASKS)
def test_what_nobody_sees_may_hold_anything(name: str, costs: str, value: float) -> None:
    sizes = sizes_of(name)
    with planned_by(costs):
        bound = MASKS[name].on(T, **sizes)
        check(bound, tensors(**sizes, dtype=torch.float32), value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("name", ["padding", "hole in every strip", "by head", "by batch"])
def test_so_in_every_dtype(name: str, costs: str, dtype: torch.dtype) -> None:
    sizes = sizes_of(name)
    with planned_by(costs):
        check(MASKS[name].on(T, **sizes), tensors(**sizes, dtype=dtype), INF)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("name", MASKS)
def test_so_where_heads_share_keys(name: str, costs: str) -> None:
    sizes = sizes_of(name)
    with planned_by(costs):
        bound = MASKS[name].on(T, **sizes)
        check(bound, tensors(**sizes, kv_heads=sizes["heads"] // 2, value_dim=7), NAN)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("name", MASKS)
def test_so_under_dropout(name: str, costs: str) -> None:
    sizes = sizes_of(name)
    with planned_by(costs):
        bound = MASKS[name].on(T, **sizes)
        check(bound, tensors(**sizes, kv_heads=sizes["heads"] // 2), NAN, dropout_p=0.4)


@settings(max_examples=100)
@given(
    case=cases(),
    costs=st.sampled_from([*COSTS]),
    value=st.sampled_from(BAD),
    dropout_p=st.sampled_from([0.0, 0.0, 0.4]),
    shared=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_so_under_any_mask(
    case: Any, costs: str, value: float, dropout_p: float, shared: bool, seed: int
) -> None:
    frame = case[1]
    sizes: dict[str, Any] = {"batch": frame.batch, "heads": frame.heads, "q_len": frame.q_len}
    given = tensors(
        **sizes, kv_len=frame.kv_len, kv_heads=1 if shared else None, value_dim=3, seed=seed
    )
    with planned_by(costs):
        check(bind(*case), given, value, dropout_p)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("name", MASKS)
def test_output_and_gradients_are_the_plain_softmaxs(name: str, costs: str) -> None:
    sizes = sizes_of(name)
    given = tensors(**sizes, kv_heads=sizes["heads"] // 2, value_dim=6).learning()
    with planned_by(costs):
        bound = MASKS[name].on(T, **sizes)
        found = mw.attention(*given, bound, enable_gqa=True, return_lse=True)
        right = reference(*given, bound)
        finite = right.lse.isfinite()
        torch.testing.assert_close(found, (right.out, right.lse))
        grads = [
            torch.autograd.grad(
                out.square().sum() + lse[finite].cos().sum(), given, materialize_grads=True
            )
            for out, lse in (found, right[:2])
        ]
        torch.testing.assert_close(*grads)


def test_a_key_that_one_sequence_sees_may_be_anything_in_another() -> None:
    mask = mw.by_batch([mw.keys([0, 1]), mw.keys([1, 2])])
    given = tensors(batch=2, q_len=3)
    given.k[0, :, 2], given.v[1, :, 0] = NAN, NAN
    out = mw.attention(*given, mask)
    assert out.isfinite().all()


def test_numbers_that_are_seen_are_never_cleared() -> None:
    given = tensors(q_len=3)
    given.v[:, :, 1] = NAN
    out = mw.attention(*given, mw.causal())
    assert out[:, :, 1:].isnan().all()


@pytest.mark.parametrize("costs", COSTS)
def test_large_numbers_that_one_head_of_a_group_sees_are_kept(costs: str) -> None:
    mask = mw.by_head([mw.causal() - mw.keys([1]), mw.causal() - mw.keys([2])])
    q, k, v = tensors(q_len=8, kv_heads=1)
    v[:, :, 2] = 1e20
    with planned_by(costs):
        out = mw.attention(q, k, v, mask.on(8), enable_gqa=True)
    torch.testing.assert_close(out, reference(q, k, v, mask.on(8)).out)
    assert out[0, 0, 2].abs().min() > 1e10


def kinds_of(piece: Piece) -> set[str]:
    """What is special about a piece of a plan."""
    steps = piece.keys if isinstance(piece.keys, Steps) else None
    special = {
        "causal": piece.causal,
        "merged": not piece.first,
        "gathered": steps is None,
        "strided": piece.rows.step > 1,
        "folded": piece.times > 1,
        "overlapping": steps is not None and 0 < piece.key_shift < steps.stop - steps.start,
        "some sequences": piece.planes.batch is not None,
        "some heads": piece.planes.heads is not None,
        "every other head": piece.planes.heads is not None and piece.planes.heads.step > 1,
        "all seen": piece.stencil is None and not piece.causal,
        "with an empty row": piece.stencil is not None and bool(piece.stencil.empty.any()),
    }
    return {name for name, is_so in special.items() if is_so}


def test_the_plans_of_these_masks_are_of_every_kind() -> None:
    found: set[str] = set()
    for costs in COSTS:
        with planned_by(costs):
            for name, mask in MASKS.items():
                sizes = sizes_of(name)
                planes = (sizes["batch"], sizes["heads"])
                for piece in plan_of(mask.on(T, **sizes), "backward", planes).pieces:
                    found |= kinds_of(piece)
    assert len(found) == 11


@pytest.mark.parametrize("scale", [0.0, -1.0, 30.0, 1e-9])
@pytest.mark.parametrize("name", ["everything", "causal", "holes", "window"])
def test_any_finite_scale(name: str, scale: float) -> None:
    given = tensors().learning()
    found = mw.attention(*given, MASKS[name], scale=scale)
    right = reference(*given, MASKS[name].on(T), scale)
    torch.testing.assert_close(found, right.out)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), given),
        torch.autograd.grad(right.out.square().sum(), given),
    )


@pytest.mark.parametrize("q_start", [-50, -3, 0, 2, 40, 100])
def test_queries_may_sit_anywhere(q_start: int) -> None:
    given = tensors(q_len=9, kv_len=20)
    mask = mw.window(back=4)
    found = mw.attention(*given, mask, q_start=q_start)
    torch.testing.assert_close(found, reference(*given, mask.on(9, 20, q_start=q_start)).out)
