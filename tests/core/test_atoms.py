"""Atoms from raw input: what is given, read by hand, against what the atom then shows.

The oracle reads an atom's own fields, so it can't see a constructor that reads its input wrongly.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright import Frame
from maskwright.core.evaluate import View
from tests._helpers.strategies import atom, fitting, frames
from tests.core.test_spans import painted

N = 12
POSITIONS = st.lists(st.integers(0, N + 3), unique=True, max_size=8)
NODES = st.tuples(st.integers(0, N - 1), st.integers(0, N - 1))


def grid(mask: mw.Mask, batch: int = 1) -> list[list[list[bool]]]:
    dense = mask.on(N, batch=batch).dense()
    return np.broadcast_to(dense, (batch, 1, N, N))[:, 0].tolist()


@given(st.lists(st.lists(st.integers(-1, 3), min_size=N, max_size=N), min_size=1, max_size=3))
def test_padding_from_ids_and_from_keep(ids: list[list[int]]) -> None:
    right = [[[token != 2 for token in row]] * N for row in ids]
    assert grid(mw.padding(ids=ids, pad_id=2), len(ids)) == right
    assert grid(mw.padding(keep=[[t != 2 for t in row] for row in ids]), len(ids)) == right


@given(st.lists(st.lists(st.integers(-1, 3), min_size=N, max_size=N), min_size=1, max_size=3))
def test_documents_from_ids(ids: list[list[int]]) -> None:
    right = [[[q == k != -1 for k in row] for q in row] for row in ids]
    assert grid(mw.documents(ids=ids), len(ids)) == right


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=3))
def test_documents_from_lengths(lengths: list[list[int]]) -> None:
    rows = []
    for row in lengths:
        ids = [number for number, length in enumerate(row) for _ in range(length)]
        rows.append(ids + [-1] * (N - len(ids)))
    assert grid(mw.documents(lengths=lengths), len(rows)) == grid(mw.documents(ids=rows), len(rows))


@given(POSITIONS)
def test_keys_and_queries_from_positions_in_any_order(positions: list[int]) -> None:
    assert grid(mw.keys(positions)) == [[[k in positions for k in range(N)]] * N]
    assert grid(mw.queries(positions)) == [[[q in positions] * N for q in range(N)]]
    assert mw.keys(positions) == mw.keys(set(positions)) == mw.keys(np.array(positions, np.int32))


@given(st.lists(NODES, max_size=10), st.booleans(), st.booleans())
def test_graph_from_edges(edges: list[tuple[int, int]], directed: bool, loops: bool) -> None:
    both = {*edges, *(() if directed else ((k, q) for q, k in edges))}
    right = [[(q, k) in both or (loops and q == k) for k in range(N)] for q in range(N)]
    for given_as in (edges, np.array(edges).reshape(-1, 2), iter(edges)):
        assert grid(mw.graph(given_as, directed=directed, loops=loops)) == [right]


def test_networkx_edges_are_edges() -> None:
    networkx = pytest.importorskip("networkx")
    club = networkx.karate_club_graph()
    mask = mw.graph(club.edges()).on(34)
    assert mask.count() == 2 * club.number_of_edges() + 34


@given(st.integers(0, 2**32 - 1))
def test_dense_of_two_three_and_four_axes(seed: int) -> None:
    array = np.random.default_rng(seed).random((2, 3, N, N)) < 0.5
    assert np.array_equal(mw.dense(array).on(N).dense(), array)
    assert np.array_equal(mw.dense(array[:, 0]).on(N).dense(), array[:, :1])
    assert np.array_equal(mw.dense(array[0, 0].astype(int)).on(N).dense(), array[:1, :1])


@given(st.data())
def test_part_of_keys_reads_as_whole_does(data: st.DataObject) -> None:
    """An & narrows its other terms to what the first ones see, so every atom is read in parts."""
    frame = data.draw(frames())
    kind = data.draw(st.sampled_from(fitting(frame, code=True)))
    mask = data.draw(atom(frame, kind))
    if data.draw(st.booleans()):
        frame, mask = frame.transposed, mask.T
    row, stop = sorted(data.draw(st.tuples(*[st.integers(0, frame.q_len)] * 2)))
    key, key_stop = sorted(data.draw(st.tuples(*[st.integers(0, frame.kv_len)] * 2)))
    whole = painted(mask._spans(View(frame, 0, frame.q_len, 0, frame.kv_len)))
    part = painted(mask._spans(View(frame, row, stop, key, key_stop)))
    expected = np.zeros_like(whole[:, :, row:stop])
    expected[..., key:key_stop] = whole[:, :, row:stop, key:key_stop]
    assert np.array_equal(*np.broadcast_arrays(part, expected))


def test_branch_that_leaves_view_may_come_back() -> None:
    frame = Frame(4, 4)
    tree = mw.tree([2, -1, -1, 0])  # 3 → 0 → 2
    assert tree._spans(View(frame, 3, 4, 2, 4)).row(0) == [(2, 4)]
