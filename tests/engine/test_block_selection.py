"""The blocks worth reading, against a plain loop, for any mask that they are chosen within."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.engine.block_selection import top_blocks
from tests._helpers.strategies import bind, cases

TRUTH = st.booleans()


def score(q: Any, k: Any) -> float:
    """Mean query times mean key, by plain loops; NaN counts as the smallest."""
    total = 0.0
    for d in range(q.shape[1]):
        total += sum(float(x) for x in q[:, d]) / len(q) * sum(float(x) for x in k[:, d]) / len(k)
    return -math.inf if math.isnan(total) else total


def map_of_plane(q: Any, k: Any, seen: Any, size: int, keep: int, q_start: int) -> np.ndarray:
    """The blocks chosen for one batch row and head."""
    (rows, _), (keys, _) = q.shape, k.shape
    tall, broad = -(-rows // size), -(-keys // size)
    chosen = np.zeros((tall, broad), bool)
    for i in range(tall):
        own_rows = range(i * size, min((i + 1) * size, rows))
        columns = [range(j * size, min((j + 1) * size, keys)) for j in range(broad)]
        touched = [j for j in range(broad) if any(seen[r, c] for r in own_rows for c in columns[j])]
        scores = {j: score(q[own_rows], k[columns[j]]) for j in touched}
        own = [j for j in touched if j in {(q_start + r) // size for r in own_rows}]
        best = sorted((j for j in touched if j not in own), key=lambda j: (-scores[j], j))
        kept = own + best[: max(keep - len(own), 0)]
        more = set()
        for r in own_rows:
            sees = [j for j in touched if any(seen[r, c] for c in columns[j])]
            if sees and not set(sees) & set(kept):
                more.add(min(sees, key=lambda j: (-scores[j], j)))
        chosen[i, [*kept, *more]] = True
    return chosen


def blocks_of(mask: mw.Mask) -> np.ndarray:
    return mask.terms[0].map.data  # type: ignore[attr-defined]


@settings(max_examples=150)
@given(
    cases(),
    st.sampled_from([1, 2, 3, 5, 16, 64, 100]),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["random", "random", "some NaN", "all equal"]),
    TRUTH,
)
def test_blocks_are_those_of_plain_loop(
    case: Any, size: int, keep: int, seed: int, kind: str, grouped: bool
) -> None:
    within, frame = case
    rng = np.random.default_rng(seed)
    shared = 1 if grouped else frame.heads
    q = rng.standard_normal((frame.batch, frame.heads, frame.q_len, 3))
    k = rng.standard_normal((frame.batch, shared, frame.kv_len, 3))
    if kind == "some NaN":
        q[rng.random(q.shape) < 0.02] = math.nan
        k[rng.random(k.shape) < 0.1] = math.nan
    if kind == "all equal":
        q[...] = 0.0
    mask = top_blocks(
        torch.from_numpy(q), torch.from_numpy(k), size, keep, within, q_start=frame.q_start
    )
    bound = bind(within, frame)
    seen = np.broadcast_to(bound.dense(), (frame.batch, frame.heads, frame.q_len, frame.kv_len))
    for b in range(frame.batch):
        for h in range(frame.heads):
            key_head = h * shared // frame.heads
            right = map_of_plane(q[b, h], k[b, key_head], seen[b, h], size, keep, frame.q_start)
            np.testing.assert_array_equal(blocks_of(mask)[b, h], right)
    # The mask is exactly those blocks of `within`, and leaves no other row empty.
    wide = blocks_of(mask).repeat(size, 2)[:, :, : frame.q_len].repeat(size, 3)
    got = bind(mask, frame)
    np.testing.assert_array_equal(got.dense(), wide[..., : frame.kv_len] & seen)
    np.testing.assert_array_equal(~got.dense().any(-1), ~seen.any(-1))


def test_rows_that_would_be_left_empty_add_their_best_block() -> None:
    # Rows 0 and 1 of one block see different ends, and neither sees its own place.
    within = mw.dense([[0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1], *[[1] * 8] * 2])
    keys = torch.tensor([0.0, 0, 5, 5, 0, 0, 1, 1]).reshape(1, 1, 8, 1)
    mask = top_blocks(torch.ones(1, 1, 4, 1), keys, size=2, keep=1, within=within, q_start=0)
    assert blocks_of(mask)[0, 0].astype(int).tolist() == [[0, 1, 0, 1], [0, 1, 0, 0]]
    assert not mask.on(4, 8, q_start=0).empty_rows().any()


def test_block_between_two_blocks_of_keys_keeps_both() -> None:
    # Queries at 3 … 6 with blocks of 4: positions 3 and 4 … 6.
    q, k = torch.zeros(1, 1, 4, 1), torch.zeros(1, 1, 12, 1)
    mask = top_blocks(q, k, size=4, keep=1, within=mw.causal(), q_start=3)
    assert blocks_of(mask)[0, 0].tolist() == [[True, True, False]]


def test_every_head_chooses_for_itself_and_shares_keys() -> None:
    k = torch.zeros(1, 2, 4, 2)
    k[0, 0, 0], k[0, 1, 1] = torch.tensor([1.0, 0]), torch.tensor([1.0, 0])
    q = torch.tensor([1.0, 0]).expand(1, 4, 1, 2)
    chosen = blocks_of(top_blocks(q, k, size=1, keep=2))[0, :, 0]
    assert chosen.astype(int).tolist() == [[1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 0, 1], [0, 1, 0, 1]]


def test_as_many_blocks_as_there_are_is_all_of_mask() -> None:
    q, k = torch.randn(2, 2, 50, 4), torch.randn(2, 2, 70, 4)
    mask = mw.causal() & mw.padding(lengths=[70, 9])
    assert top_blocks(q, k, size=16, keep=99, within=mask).on(50, 70).equals(mask)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_means_are_of_full_precision(dtype: torch.dtype) -> None:
    # A sum of these is beyond float16, and in bfloat16 the smaller block would round to the larger.
    keys = torch.full((1, 1, 128, 1), 4096.0)
    keys[0, 0, 64:, 0] = 4064.0
    keys[0, 0, 0, 0] = 4064.0
    q, k = torch.ones(1, 1, 1, 1), torch.cat([keys, torch.zeros(1, 1, 64, 1)], 2)
    chosen = blocks_of(top_blocks(q.to(dtype), k.to(dtype), size=64, keep=2))
    assert chosen[0, 0, 0].tolist() == [True, False, True]


def test_no_gradient_flows_and_nothing_is_changed() -> None:
    q, k = (torch.randn(1, 2, 10, 4, requires_grad=True) for _ in range(2))
    before = q.detach().clone()
    top_blocks(q, k, size=4, keep=1)
    assert q.grad is None
    assert torch.equal(q, before)


def test_selectable_blocks_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    tiles = mw.BoundMask.tiles
    monkeypatch.setattr(mw.BoundMask, "tiles", lambda *args: asked.append(args[1:]) or tiles(*args))
    q, k, within = torch.randn(1, 1, 20, 4), torch.randn(1, 1, 20, 4), mw.window(back=6)
    first = top_blocks(q, k, size=4, keep=2, within=within)
    assert asked
    asked.clear()
    assert top_blocks(q, k, size=4, keep=2, within=within) == first
    assert top_blocks(-q, k, size=4, keep=1, within=within) != first
    assert not asked
    top_blocks(q, k, size=5, keep=2, within=within)
    assert asked


ONE = torch.zeros(1, 1, 4, 2)
WRONG = {
    "size": (lambda: top_blocks(ONE, ONE, size=0), "size=0 is less than 1"),
    "keep": (lambda: top_blocks(ONE, ONE, keep=0), "keep=0 is less than 1"),
    "kind": (lambda: top_blocks([[1.0]], ONE), "q is of type list"),
    "axes": (lambda: top_blocks(ONE, ONE[0]), r"k is \(1, 4, 2\)"),
    "dtype": (lambda: top_blocks(ONE.int(), ONE), "torch.int32"),
    "heads": (lambda: top_blocks(ONE.expand(1, 3, 4, 2), ONE.expand(1, 2, 4, 2)), "heads"),
    "batch": (lambda: top_blocks(ONE.expand(2, 1, 4, 2), ONE), "same batch"),
    "dim": (lambda: top_blocks(ONE, torch.zeros(1, 1, 4, 3)), "head_dim"),
    "within": (lambda: top_blocks(ONE, ONE, within=ONE), "within is of type Tensor"),
    "bound": (lambda: top_blocks(ONE, ONE, within=mw.causal().on(4)), "unbound"),
    "device": (lambda: top_blocks(ONE, ONE.to("meta")), "one device"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_the_input(name: str) -> None:
    call, words = WRONG[name]
    with pytest.raises(mw.ArgumentError, match=words):
        call()
