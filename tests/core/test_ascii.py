"""What `print` shows of a bound mask."""

from __future__ import annotations

import numpy as np

import maskwright as mw


def test_cells() -> None:
    assert str(mw.causal().on(2)) == "causal()\n2 queries × 2 keys, density 0.75\n■ ·\n■ ■"


def test_one_query_at_place() -> None:
    lines = str(mw.window(back=1).on(1, kv_len=4)).splitlines()
    assert lines[1:] == ["1 query × 4 keys, query at 3, density 0.50", "· · ■ ■"]


def test_batch_rows_and_heads_are_named() -> None:
    mask = mw.padding(lengths=[1, 2]) & mw.by_head([mw.causal(), mw.everything()])
    text = str(mask.on(2))
    assert "batch 2, heads 2" in text
    for name in ("batch 0, head 0", "batch 0, head 1", "batch 1, head 0", "batch 1, head 1"):
        assert f"\n{name}\n" in text


def test_many_planes_are_cut_off() -> None:
    assert str(mw.padding(lengths=[1] * 30).on(2)).endswith("… and 22 more")


def test_large_masks_are_drawn_in_tiles() -> None:
    lines = str(mw.causal().on(320)).splitlines()
    assert lines[2] == "each character is 10 × 10 cells: ■ full, ▒ partial, · empty"
    assert lines[3].split() == ["▒"] + ["·"] * 31
    assert lines[-1].split() == ["■"] * 31 + ["▒"]


def test_shorter_form_is_shown() -> None:
    text = str((mw.causal() & mw.window(back=1)).on(2))
    assert text.startswith("causal() & window(back=1) = window(back=1)\n")


def test_large_data_is_left_out_of_title() -> None:
    title = str(mw.dense(np.ones((500, 500), bool)).on(500)).splitlines()[0]
    assert title == "dense(...)"


def test_mask_with_too_many_intervals_is_not_drawn() -> None:
    lines = str(mw.stride(2).on(65_536)).splitlines()
    assert lines[1] == "65,536 queries × 65,536 keys"
    assert lines[2].startswith("too many intervals to draw")
