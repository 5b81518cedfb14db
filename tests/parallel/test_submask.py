"""A submask equals the dense mask indexed by rows, keys and heads."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.parallel.submask import submask
from tests.parallel.test_layout import squares


@given(bound=squares(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_submask_equals_the_indexed_dense_mask(bound, data: st.DataObject) -> None:
    frame = bound.frame
    some = st.lists(st.booleans(), min_size=frame.q_len, max_size=frame.q_len)
    rows, keys = (np.flatnonzero(np.array(data.draw(some), bool)) for _ in range(2))
    first = data.draw(st.integers(0, frame.heads - 1))
    heads = slice(first, data.draw(st.integers(first + 1, frame.heads)))
    part = submask(bound, rows, keys, heads)
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    cells = np.broadcast_to(bound.dense(), shape)[:, heads][:, :, rows][..., keys]
    assert (np.broadcast_to(part.dense(), cells.shape) == cells).all()
    assert part.count() == cells.sum()
