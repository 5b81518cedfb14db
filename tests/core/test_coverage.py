from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from tests._helpers.strategies import bound_masks


@given(bound_masks(), st.integers(1, 9), st.integers(1, 9))
def test_coverage_counts_cells_of_every_tile(bound: mw.BoundMask, tall: int, broad: int) -> None:
    batch, heads, q_len, kv_len = bound.shape
    for b in range(min(batch, bound.frame.batch)):
        for h in range(min(heads, bound.frame.heads)):
            cells = bound.dense()[b, h]
            want = np.zeros((math.ceil(q_len / tall), math.ceil(kv_len / broad)), int)
            for q, k in np.argwhere(cells):
                want[q // tall, k // broad] += 1
            assert bound.coverage(tall, broad, batch=b, head=h).tolist() == want.tolist()


@pytest.mark.parametrize(
    ("given_arguments", "says"),
    [
        ({"batch": 1}, "batch 1 is out of range. Pass a number from 0 to 0"),
        ({"rows": (2, 9)}, "there are 4"),
        ({"keys": (3, 2)}, "start <= stop"),
        ({"rows": 5}, "rows=5 is not a pair"),
        ({"q_block": 0}, "q_block=0"),
    ],
)
def test_missing_fields_are_rejected(given_arguments: dict[str, object], says: str) -> None:
    with pytest.raises(mw.MaskError, match=says):
        mw.causal().on(4).coverage(**given_arguments)


def test_too_many_tiles_are_rejected() -> None:
    with pytest.raises(mw.SizeError, match="larger blocks"):
        mw.causal().on(1_000_000).coverage()
