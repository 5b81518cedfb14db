"""Predicates: FlexAttention's mask_mods as they are, and in bounded memory."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import torch
from torch.nn.attention.flex_attention import and_masks, create_mask, noop_mask, or_masks

import maskwright as mw

IDS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])


def causal(b, h, q, k):
    return q >= k


def same_document(b, h, q, k):
    return IDS[q] == IDS[k]


def by_head(b, h, q, k):
    return (q - k) <= h


def test_flex_mask_mods_work_unchanged() -> None:
    mods = [
        causal,
        same_document,  # indexes a tensor that it captured
        by_head,
        and_masks(causal, same_document),
        or_masks(by_head, same_document),
        noop_mask,
    ]
    for mod in mods:
        theirs = create_mask(mod, 2, 3, 8, 8, "cpu").numpy()
        ours = mw.where(mod).on(8, batch=2, heads=3).dense()
        assert np.array_equal(np.broadcast_to(ours, theirs.shape), theirs)


def test_only_varying_axes_are_stored() -> None:
    assert mw.where(causal).on(4, batch=5, heads=6).shape == (1, 1, 4, 4)
    assert mw.where(by_head).on(4, batch=5, heads=6).shape == (1, 6, 4, 4)


def test_predicate_is_called_only_for_visible_cells() -> None:
    asked = 0

    def counting(b, h, q, k):
        nonlocal asked
        asked += np.broadcast_shapes(q.shape, k.shape)[-2] * k.shape[-1]
        return q >= k

    bound = (mw.where(counting) & mw.window(back=15)).on(8192)
    assert bound.count() == mw.window(back=15).on(8192).count()
    assert asked < 8192 * 2048  # of 8192 × 8192


def test_captured_arrays_are_freed_with_the_mask() -> None:
    def table_mask() -> tuple[mw.Mask, weakref.ref[np.ndarray]]:
        table = np.arange(8)
        return mw.where(lambda b, h, q, k: table[q] > k), weakref.ref(table)

    mask, table = table_mask()
    assert mask.T.on(8).count() == mask.on(8).count()
    gc.disable()  # which would free a reference cycle
    try:
        del mask
        assert table() is None
    finally:
        gc.enable()


def test_equal_by_function() -> None:
    assert mw.where(causal) == mw.where(causal)
    assert mw.where(causal) != mw.where(by_head)
    assert repr(mw.where(causal)) == "where(causal)"
