"""On tiny masks, the deciders agree with brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests._helpers import representable


@st.composite
def tiny_masks(draw: st.DrawFn) -> np.ndarray:
    """Bands, blocks and noise, of one or two sequences and at most four queries and keys."""
    b, t, s = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    row, col = np.arange(t)[:, None], np.arange(s)[None, :]
    shift = draw(st.integers(-2, 2))
    band = (col <= row + shift) & (col >= row - draw(st.integers(-1, 4)) + shift)
    parts = draw(st.lists(st.integers(0, 2), min_size=t + s, max_size=t + s).map(sorted_or_not))
    same = np.equal.outer(parts[:t], parts[t:])
    kinds = {"band": band, "same": same, "both": band & same, "all": np.ones((t, s), np.bool_)}
    drawn = [kinds[draw(st.sampled_from(sorted(kinds)))] for _ in range(b)]
    allowed = np.stack(drawn)[:, None]
    if draw(st.booleans()):
        place = draw(st.integers(0, allowed.size - 1))
        allowed = allowed.copy()
        allowed.flat[place] ^= True
    return allowed


def sorted_or_not(parts: list[int]) -> np.ndarray:
    return np.array(sorted(parts) if parts[0] else parts)


@settings(max_examples=150)
@given(tiny_masks())
def test_segments_are_found_where_any_cu_seqlens_would_do(allowed: np.ndarray) -> None:
    can = representable.flash_varlen_by_brute_force(allowed)
    event(f"can be said: {can}")
    assert representable.flash_varlen(allowed) == can


@settings(max_examples=150)
@given(tiny_masks())
def test_partitions_are_found_where_any_exists(allowed: np.ndarray) -> None:
    can = representable.splash_by_brute_force(allowed[:, :, :3, :3])
    event(f"can be said: {can}")
    assert representable.splash(allowed[:, :, :3, :3]) == can
