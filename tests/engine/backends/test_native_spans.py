"""The spans that C reads, and the submasks of dilated masks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.core.interval_ops import CSR
from maskwright.core.spans import Spans
from maskwright.engine.backends.native import span_buffers, submasks


def test_buffers_are_cached_with_mask() -> None:
    bound = mw.causal().on(8)
    assert submasks(bound) is submasks(bound)
    (whole,) = submasks(bound)
    assert whole.step == 1
    assert whole.spans.args[2] == whole.spans.offsets.ctypes.data


@pytest.mark.parametrize(
    ("offsets", "starts", "stops"),
    [
        ([0, 1], [0], [1]),
        ([0, 1, 0], [], []),
        ([0, 1, 2], [0], [1]),
        ([0, 1, 2], [0, 2], [1, 2]),
        ([0, 1, 2], [-1, 0], [1, 1]),
        ([0, 1, 2], [0, 0], [1, 5]),
    ],
)
def test_invalid_spans_are_rejected(
    offsets: list[int], starts: list[int], stops: list[int]
) -> None:
    flat = CSR(*(np.array(x, np.int64) for x in (offsets, starts, stops)))
    with pytest.raises(ValueError, match="invalid spans"):
        span_buffers(Spans((1, 1, 2), 4, flat=flat))


def test_mask_without_cells_has_valid_addresses() -> None:
    assert all(span_buffers(mw.nothing().on(3).spans).args)


@pytest.mark.parametrize(
    ("mask", "step"),
    [
        (mw.causal(), 1),
        (mw.stride(3), 3),
        (mw.window(back=15) & mw.stride(4), 4),
        (mw.stride(3, phase=1), 3),
        (mw.keys(range(0, 24, 2)), 1),  # all rows attend to the same keys
        (mw.nothing(), 1),
    ],
    ids=repr,
)
def test_dilation(mask: mw.Mask, step: int) -> None:
    assert {part.step for part in submasks(mask.on(24))} == {step}


@given(
    step=st.integers(2, 6),
    phase=st.integers(0, 3),
    rows=st.integers(1, 30),
    back=st.integers(0, 30),
)
def test_submasks_are_whole_mask(step: int, phase: int, rows: int, back: int) -> None:
    bound = (mw.window(back=back) & mw.stride(step, phase=phase % step)).on(rows, 30)
    dense = np.zeros((rows, 30), np.bool_)
    for part in submasks(bound):
        spans = part.spans
        view = dense[part.rows, part.keys]
        for row in range(view.shape[0]):
            for i in range(spans.offsets[row], spans.offsets[row + 1]):
                view[row, spans.starts[i] : spans.stops[i]] = True
    assert np.array_equal(dense, bound.dense()[0, 0])
