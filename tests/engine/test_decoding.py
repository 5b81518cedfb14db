"""Token by token, or chunk by chunk, gives what one pass gives; and a step costs one row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskwright as mw
from tests._helpers.attention_inputs import NAN, tensors

T = 40
KEEP = torch.arange(T) >= torch.tensor([[11], [0]])

MASKS: dict[str, mw.Mask] = {
    "causal": mw.causal(),
    "window": mw.window(back=6),
    "sinks": mw.recipes.sinks(8),
    "documents": mw.causal() & mw.documents(lengths=[13, 1, 20, 6]),
    "prefix": (mw.causal() | mw.prefix(9)) & mw.padding(lengths=[T]),
    "left padding": mw.causal() & mw.padding(keep=KEEP),
    "by head": mw.by_head([mw.causal(), mw.window(back=2)]),
    "dilated": mw.window(back=20) & mw.stride(3),
}
# These look back only, whatever the number of keys, so a cache may grow under them.
LOOKING_BACK = ["causal", "window", "sinks", "by head", "dilated"]


def whole(name: str) -> tuple[Any, torch.Tensor]:
    given = tensors(batch=2, q_len=T)
    return given, mw.attention(*given, MASKS[name])


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_steps_of_bound_mask_on_full_cache(name: str, known: bool) -> None:
    (q, k, v), right = whole(name)
    bound = MASKS[name].on(T, batch=2, heads=2)
    if known:
        assert bound.spans  # read once, the steps are cut from them
    for n in range(T):
        out, lse = mw.attention(q[:, :, n : n + 1], k, v, bound.step(n), return_lse=True)
        torch.testing.assert_close(out[:, :, 0], right[:, :, n])
        assert lse.shape == (2, 2, 1)


@pytest.mark.parametrize("name", [n for n in MASKS if n != "prefix"])
def test_steps_on_static_and_growing_cache(name: str) -> None:
    """In a static cache all slots are passed, and those to come hold whatever memory held."""
    (q, k, v), right = whole(name)
    bound = MASKS[name].on(T, batch=2, heads=2)
    for n in range(T):
        query = q[:, :, n : n + 1]
        keys, values = k.clone(), v.clone()
        keys[:, :, n + 1 :], values[:, :, n + 1 :] = NAN, NAN
        static = mw.attention(query, keys, values, bound.step(n))
        growing = mw.attention(
            query, k[:, :, : n + 1], v[:, :, : n + 1], bound.step(n, kv_len=n + 1)
        )
        for out in (static, growing):
            torch.testing.assert_close(out[:, :, 0], right[:, :, n])


@pytest.mark.parametrize("chunk", [1, 7, 16, T])
@pytest.mark.parametrize("name", MASKS)
def test_chunked_prefill(name: str, chunk: int) -> None:
    (q, k, v), right = whole(name)
    bound = MASKS[name].on(T, batch=2, heads=2)
    parts = [
        mw.attention(q[:, :, n : n + chunk], k, v, bound.rows(n, min(n + chunk, T)))
        for n in range(0, T, chunk)
    ]
    torch.testing.assert_close(torch.cat(parts, 2), right)


@pytest.mark.parametrize("chunk", [1, 7, 16])
@pytest.mark.parametrize("name", [n for n in MASKS if n != "prefix"])
def test_chunked_prefill_on_growing_cache(name: str, chunk: int) -> None:
    (q, k, v), right = whole(name)
    bound = MASKS[name].on(T, batch=2, heads=2)
    for n in range(0, T, chunk):
        stop = min(n + chunk, T)
        own = q[:, :, n:stop], k[:, :, :stop], v[:, :, :stop]
        out = mw.attention(*own, bound.rows(n, stop, kv_len=stop))
        torch.testing.assert_close(out, right[:, :, n:stop])
        if name in LOOKING_BACK:
            torch.testing.assert_close(mw.attention(*own, MASKS[name]), out)
            first = mw.attention(*own, MASKS[name], q_start=n)
            torch.testing.assert_close(first, out)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize(
    ("mask", "cells"),
    [(mw.causal(), None), (mw.window(back=255), 256), (mw.recipes.sinks(252, sinks=4), 256)],
)
def test_step_is_one_row_however_long_cache(mask: mw.Mask, cells: int | None, read: bool) -> None:
    bound = mask.on(2**17)
    if read:
        assert bound.spans
    intervals = set()
    for n in (2**15, 2**16, 2**17 - 1):
        step = bound.step(n, kv_len=n + 1)
        work = mw.explain_backend((1, 1, 1, 64), (1, 1, n + 1, 64), mask=step).work
        intervals.add(step.spans.intervals())
        assert work.cells_visible == (cells or n + 1)
        assert work.tiles_visited * work.block_kv <= (cells or n + 1) + 3 * work.block_kv
    assert len(intervals) == 1


def test_step_reads_one_row_of_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = mw.causal() & mw.documents(lengths=[1000, 5000, 2000])
    bound = mask.on(8000)
    rows = []
    read = type(mask)._spans
    monkeypatch.setattr(
        type(mask), "_spans", lambda self, view: rows.append(view.rows) or read(self, view)
    )
    given = tensors(q_len=1, kv_len=7000)
    mw.attention(*given, bound.step(6999, kv_len=7000))
    assert set(rows) == {1}
