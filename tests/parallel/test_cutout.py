"""A mask cut down to rows, keys and heads is the dense one, cut down."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.parallel.cutout import cut_out
from tests.parallel.test_balance import squares


@given(bound=squares(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_cut_out_is_the_dense_mask_cut(bound, data: st.DataObject) -> None:
    frame = bound.frame
    some = st.lists(st.booleans(), min_size=frame.q_len, max_size=frame.q_len)
    rows, keys = (np.flatnonzero(np.array(data.draw(some), bool)) for _ in range(2))
    first = data.draw(st.integers(0, frame.heads - 1))
    heads = slice(first, data.draw(st.integers(first + 1, frame.heads)))
    part = cut_out(bound, rows, keys, heads)
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    cells = np.broadcast_to(bound.dense(), shape)[:, heads][:, :, rows][..., keys]
    assert (np.broadcast_to(part.dense(), cells.shape) == cells).all()
    assert part.count() == cells.sum()
