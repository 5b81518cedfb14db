"""flashinfer: bits and bools, read as FlashInfer's kernel reads them. The kernel is not run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright import Frame, Mask
from tests._helpers import representable, target_readers
from tests._helpers.strategies import bind
from tests._helpers.target_strategies import for_target
from tests.targets.test_lowering import cells, share

FLAGS = {"qo_indptr", "kv_indptr", "causal", "window_left"}


@settings(max_examples=max(share("flashinfer"), 100))
@given(for_target("flashinfer"), st.sampled_from([True, False, None]))
def test_kernel_reads_exactly_this_mask(case: tuple[Mask, Frame], packed: Any) -> None:
    mask, frame = case
    note(f"{mask!r}\n{frame}")
    right = cells(mask, frame)
    if not representable.heads_are_equal(right) or not frame.heads:
        return
    lowered = mw.lower(bind(mask, frame), "flashinfer", packed=packed)
    names = set(lowered) - FLAGS
    event(" and ".join(sorted(names)) or f"causal={lowered['causal']}")
    if names:
        packs = packed or (packed is None and frame.batch == 1)
        assert names == {"packed_custom_mask" if packs else "custom_mask", "mask_indptr"}
    assert np.array_equal(target_readers.flashinfer(lowered, right.shape), right)


@pytest.mark.parametrize(
    ("mask", "sizes", "causal", "window", "dense"),
    [
        (mw.everything(), {}, False, -1, False),
        (mw.causal(), {}, True, -1, False),
        (mw.causal(), {"kv_len": 9}, True, -1, False),
        (mw.causal(), {"kv_len": 9, "q_start": 0}, False, -1, True),
        (mw.causal(), {"kv_len": 3}, False, -1, True),
        (mw.window(2), {}, True, 2, False),
        (mw.window(2, 1), {}, False, -1, True),
        (mw.causal() & mw.padding(lengths=[3, 5]), {}, False, -1, True),
    ],
)
def test_flags_are_used_where_they_are_equal(
    mask: Mask, sizes: dict[str, int], causal: bool, window: int, dense: bool
) -> None:
    lowered = mw.lower(mask.on(5, **sizes), "flashinfer")
    assert (lowered["causal"], lowered["window_left"]) == (causal, window)
    assert ("mask_indptr" in lowered) == dense


def test_requests_start_at_byte_and_first_cell_is_lowest_bit() -> None:
    mask = mw.dense(np.array([[[[1, 0, 0], [1, 1, 0]]], [[[0, 0, 1], [1, 1, 1]]]]))
    lowered = mw.lower(mask, "flashinfer", packed=True)
    assert lowered["packed_custom_mask"].tolist() == [0b011001, 0b111100]
    assert lowered["mask_indptr"].tolist() == [0, 1, 2]
    lowered = mw.lower(mask, "flashinfer")  # plan() packs the masks of several requests itself
    assert lowered["custom_mask"].int().tolist() == [1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1]
    assert lowered["mask_indptr"].tolist() == [0, 6, 12]


def test_heads_that_differ_are_rejected_with_their_term() -> None:
    mask = mw.causal() & mw.by_head([mw.everything(), mw.window(1)])
    with pytest.raises(mw.Unsupported, match="by_head") as refusal:
        mw.lower(mask, "flashinfer", q_len=4)
    assert refusal.value.term == repr(mw.by_head([mw.everything(), mw.window(1)]))


def test_offsets_that_do_not_fit_int32_are_rejected() -> None:
    mask = (mw.causal() | mw.prefix(3)).on(60_000)
    with pytest.raises(mw.SizeError, match="int32"):
        mw.lower(mask, "flashinfer", packed=False)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
def test_snippet_makes_same_arrays(packed: bool, batch: int) -> None:
    for mask in (mw.causal() | mw.prefix([2]), mw.causal(), mw.everything(), mw.window(1)):
        bound = mask.on(5, batch=batch)
        lowered = mw.lower(bound, "flashinfer", packed=packed)
        names: dict[str, Any] = {}
        exec(mw.explain_lowering(bound, "flashinfer", packed=packed), names)
        for name in set(lowered) - {"causal", "window_left"}:
            if batch > 1 or "indptr" not in name:
                assert names[name].tolist() == lowered[name].tolist()
                assert names[name].dtype == lowered[name].dtype
