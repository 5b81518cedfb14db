"""pad and pack: nothing is lost, nothing overlaps, and little is filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw

SEQUENCES = st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=12)


@given(SEQUENCES, st.sampled_from(["left", "right"]), st.integers(0, 5))
def test_padding_keeps_every_token_and_hides_rest(
    sequences: list[list[int]], side: str, spare: int
) -> None:
    longest = max(map(len, sequences), default=0) + spare
    ids, mask = mw.pad(sequences, pad_id=7, side=side, length=longest)
    assert ids.shape == (len(sequences), longest)
    if not longest:
        return
    seen = mask.on(longest).dense()[:, 0, 0]
    for row, sequence in enumerate(sequences):
        assert ids[row, seen[row]].tolist() == sequence
        assert set(ids[row, ~seen[row]].tolist()) <= {7}
        edge = seen[row] if side == "right" else seen[row, ::-1]
        assert edge[: len(sequence)].all()


@given(SEQUENCES, st.integers(12, 30))
def test_packing_keeps_every_sequence_whole(sequences: list[list[int]], length: int) -> None:
    packed = mw.pack(sequences, length, pad_id=99)
    rows = packed.ids.shape[0]
    assert packed.ids.shape == packed.documents.shape == packed.positions.shape == (rows, length)
    for number, sequence in enumerate(sequences):
        where = packed.documents == number
        assert packed.ids[where].tolist() == sequence
        assert packed.positions[where].tolist() == list(range(len(sequence)))
        assert where.any(axis=1).sum() <= 1  # in one row
    assert (packed.ids[packed.documents == -1] == 99).all()
    if rows:
        assert packed.mask.on(length).equals(mw.documents(ids=packed.documents))
    total = sum(map(len, sequences))
    assert rows <= max(len(sequences), 1)
    # Best fit leaves no two rows that would both fit into one.
    used = sorted((packed.documents >= 0).sum(axis=1).tolist())
    assert len(used) < 2 or used[0] + used[1] > length
    assert total == sum(used)


def test_packing_many_is_tight() -> None:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 9, n) for n in rng.integers(10, 500, 2_000)]
    packed = mw.pack(sequences, 2048)
    assert (packed.documents >= 0).mean() > 0.98


def test_tensors_and_words_and_nothing() -> None:
    ids, mask = mw.pad([torch.tensor([1, 2]), torch.tensor([3])])
    assert ids.tolist() == [[1, 2], [3, 0]]
    assert mask == mw.padding(lengths=[2, 1])
    assert mw.pad([]).ids.shape == (0, 0)
    assert mw.pad([[], [1]]).ids.tolist() == [[0], [1]]
    assert mw.pack([["a", "b"], ["c"]], 3, pad_id="_").ids.tolist() == [["a", "b", "c"]]
    assert mw.pack([], 4).ids.shape == (0, 4)


@given(SEQUENCES, st.integers(12, 30), st.integers(1, 5))
def test_packing_for_ranks_loses_nothing(
    sequences: list[list[int]], length: int, ranks: int
) -> None:
    packed = mw.pack(sequences, length, ranks=ranks)
    assert packed.ids.shape[0] % ranks == 0
    for number, sequence in enumerate(sequences):
        assert packed.ids[packed.documents == number].tolist() == sequence
    if packed.ids.shape[0]:
        assert packed.mask.on(length).equals(mw.documents(ids=packed.documents))


def test_packing_for_ranks_evens_out_attention() -> None:
    rng = np.random.default_rng(0)
    sizes = np.minimum(rng.pareto(1.0, 2_000) * 100 + 10, 4096).astype(int)
    sequences = [np.zeros(n, int) for n in sizes]

    def unevenness(documents: np.ndarray) -> float:
        """Largest load of all ranks, as a multiple of the mean."""
        work = [
            sum(sizes[number] ** 2 for number in np.unique(documents[rank::8]) if number >= 0)
            for rank in range(8)
        ]
        return float(max(work) / np.mean(work))

    plain, even = mw.pack(sequences, 4096), mw.pack(sequences, 4096, ranks=8)
    assert unevenness(even.documents) <= 1.05 < unevenness(plain.documents)
    assert len(even.ids) <= 1.15 * len(plain.ids) + 8


@given(SEQUENCES, st.integers(12, 30))
def test_every_kind_of_sequence_is_read_alike(sequences: list[list[int]], length: int) -> None:
    expected = mw.pack(sequences, length)
    kinds = (tuple, np.array, torch.tensor, lambda row: np.array(row, np.int64))
    for read in (*kinds, *(lambda row, d=d: np.array(row, d) for d in ("u1", "i4", "u8"))):
        found = mw.pack([read(row) if row else np.zeros(0, np.int64) for row in sequences], length)
        for one, other in zip(found[:3], expected[:3], strict=True):
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)
        assert found.mask == expected.mask


@pytest.mark.parametrize(
    "sequences",
    [
        [[1, True]],
        [[1], [2.0]],
        [[1], ["a"]],
        [np.array([1.5])],
        [np.array([True])],
        [[2**63]],
        [[2**62 + 1]],
        [np.array([2**63], np.uint64), np.array([1])],
        [np.zeros((2, 2), np.int64)],
        [[[1]]],
    ],
)
@pytest.mark.parametrize("batch", [mw.pad, lambda rows: mw.pack(rows, 8)])
def test_invalid_sequences_are_errors(batch: Any, sequences: Any) -> None:
    with pytest.raises(mw.ArgumentError):
        batch(sequences)
