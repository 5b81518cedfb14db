"""`Shards`: which rank has which rows, what each has to do, and whose keys it needs.

What may enter here: facts about one assignment. How it was found stands in `balance`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.parallel.assign import Assignment

if TYPE_CHECKING:
    from maskwright.core.spans import Spans
    from maskwright.core.validate import IntArray

MOST_PAIRS: Final = 2**22  # of a needed stretch and an owned one, looked at together
MOST_LINES: Final = 16  # ranks that are printed one by one


@dataclass(frozen=True, eq=False)
class Shards:
    """The rows of a sequence over ranks. Made by `balance`; a rank has its rows in their order.

    `work` is the number of cells that each rank computes, and `needs` holds, as row r, the
    stretches of keys that rank r's rows see.

    >>> import maskwright as mw
    >>> from maskwright.parallel.balance import balance
    >>> shards = balance(mw.window(back=1).on(8), 2, how="contiguous")
    >>> print(shards)
    8 tokens over 2 ranks, contiguous: work 1.07 and rows 1.00 times the mean at most
    rank  rows  work  keys in  keys out
       0     4     7        0         1
       1     4     8        1         0
    keys that a rank (down) needs of another (across)
       ·   0
       1   ·
    >>> shards.tokens, shards.rows.tolist(), shards.order.tolist()
    (8, [4, 4], [0, 1, 2, 3, 4, 5, 6, 7])
    >>> shards.matrix.tolist(), shards.wanted(1, 0).tolist(), shards.before(1, np.array([6])).tolist()
    ([[4, 0], [1, 4]], [3], [2])
    >>> shards.keys_in.tolist(), shards.keys_out.tolist(), shards.bytes_in.tolist()
    ([0, 1], [1, 0], [0, 1])
    >>> shards.bytes_out.tolist(), shards.ring_in.tolist(), shards.ring_out.tolist()
    ([1, 0], [4, 4], [4, 4])
    >>> round(shards.balance, 2), shards.evenness, shards.ring_share
    (1.07, 1.0, 0.125)
    """

    how: str
    ranks: int
    assignment: Assignment  # neighbouring stretches have different owners
    work: IntArray
    needs: Spans
    key_bytes: int = 1  # of one token's key and value, all batch rows and heads

    @property
    def tokens(self) -> int:
        """How many rows and keys there are."""
        return self.needs.kv_len

    @cached_property
    def rows(self) -> IntArray:
        """How many rows each rank has."""
        cuts, owner = self.assignment
        return np.bincount(owner, np.diff(cuts), self.ranks).astype(np.int64)

    @cached_property
    def matrix(self) -> IntArray:
        """Row r, column s: how many keys rank r needs of rank s, its own ones too."""
        cuts, owner = self.assignment
        offsets, starts, stops = self.needs.flat
        needy = np.repeat(np.arange(self.ranks), np.diff(offsets))
        first = np.searchsorted(cuts, starts, "right") - 1
        count = np.searchsorted(cuts, stops, "left") - first
        total = np.zeros(self.ranks * self.ranks)
        for part in _parts(count):
            stretch = np.repeat(np.arange(part.start, part.stop), count[part])
            nth = np.arange(stretch.size) - np.repeat(
                np.cumsum(count[part]) - count[part], count[part]
            )
            owned = first[stretch] + nth
            shared = np.minimum(stops[stretch], cuts[owned + 1]) - np.maximum(
                starts[stretch], cuts[owned]
            )
            pair = needy[stretch] * self.ranks + owner[owned]
            total += np.bincount(pair, shared, total.size)
        return total.astype(np.int64).reshape(self.ranks, self.ranks)

    @cached_property
    def keys_in(self) -> IntArray:
        """How many keys each rank is sent by others."""
        ends = [np.array(self.needs.row(rank), np.int64) for rank in range(self.ranks)]
        own = [  # cheaper than the matrix, which not every plan is asked for
            int(np.diff(self.before(rank, end.reshape(-1, 2))).sum())
            for rank, end in enumerate(ends)
        ]
        before = np.concatenate(([0], np.cumsum(self.needs.stops - self.needs.starts)))
        offsets = self.needs.offsets
        return np.asarray(before[offsets[1:]] - before[offsets[:-1]] - own, np.int64)

    @property
    def keys_out(self) -> IntArray:
        """How many keys each rank sends to others, one that goes to two counting twice."""
        return np.asarray(self.matrix.sum(0) - np.diag(self.matrix), np.int64)

    @property
    def bytes_in(self) -> IntArray:
        """How many bytes of keys and values each rank is sent for one attention."""
        return self.keys_in * self.key_bytes

    @property
    def bytes_out(self) -> IntArray:
        """How many bytes of keys and values each rank sends for one attention."""
        return self.keys_out * self.key_bytes

    @property
    def ring_in(self) -> IntArray:
        """How many keys each rank is sent where all keys go round."""
        return self.tokens - self.rows

    @property
    def ring_out(self) -> IntArray:
        """How many keys each rank passes on where all keys go round: all but its neighbour's."""
        return self.tokens - np.roll(self.rows, -1)

    @property
    def balance(self) -> float:
        """The most work that a rank has, as a multiple of the mean."""
        return _most(self.work)

    @property
    def evenness(self) -> float:
        """The most rows that a rank has, as a multiple of the mean."""
        return _most(self.rows)

    @property
    def ring_share(self) -> float:
        """What is moved, as a share of what sending every key to everybody would move."""
        whole = self.tokens * (self.ranks - 1)
        return float(self.keys_in.sum() / whole) if whole else 0.0

    def positions(self, rank: int) -> IntArray:
        """The positions of a rank's rows, in its order.

        >>> import maskwright as mw
        >>> from maskwright.parallel.balance import balance
        >>> balance(mw.causal().on(8), 2, how="zig-zag").positions(0).tolist()
        [0, 1, 6, 7]
        """
        first, size = self._stretches(rank)
        before = np.cumsum(size) - size
        return np.repeat(first - before, size) + np.arange(int(size.sum()))

    @property
    def order(self) -> IntArray:
        """All positions, rank after rank: what the whole is once the ranks' parts are joined."""
        return np.concatenate([self.positions(rank) for rank in range(self.ranks)])

    def before(self, rank: int, position: IntArray) -> IntArray:
        """How many of a rank's rows lie before each position."""
        first, size = self._stretches(rank)
        if not first.size:
            return np.zeros_like(position)
        at = np.searchsorted(first, position, "right") - 1
        held = np.concatenate(([0], np.cumsum(size)))
        inside = np.minimum(position - first[at], size[at])
        return np.where(at < 0, 0, held[at] + inside)

    def wanted(self, rank: int, other: int) -> IntArray:
        """Which of its rows, counted from 0, `other` must send to `rank`."""
        ends = np.array(self.needs.row(rank), np.int64).reshape(-1, 2)
        low, high = self.before(other, ends[:, 0]), self.before(other, ends[:, 1])
        size = high - low
        before = np.cumsum(size) - size
        return np.repeat(low - before, size) + np.arange(int(size.sum()))

    def _stretches(self, rank: int) -> tuple[IntArray, IntArray]:
        """Where a rank's stretches begin, and how long they are."""
        cuts, owner = self.assignment
        own = np.flatnonzero(owner == rank)
        return cuts[own], cuts[own + 1] - cuts[own]

    def __str__(self) -> str:
        head = (
            f"{self.tokens} tokens over {self.ranks} ranks, {self.how}: work {self.balance:.2f} "
            f"and rows {self.evenness:.2f} times the mean at most"
        )
        if self.ranks > MOST_LINES:
            return f"{head}\n{self._summary()}"
        names = ["rank", "rows", "work", "keys in", "keys out"]
        columns = [np.arange(self.ranks), self.rows, self.work, self.keys_in, self.keys_out]
        if self.key_bytes > 1:
            names += ["bytes in", "bytes out"]
            columns += [self.bytes_in, self.bytes_out]
        table = _table(names, np.stack(columns, 1))
        cells = self.matrix.astype(str).astype(object)
        np.fill_diagonal(cells, "·")
        width = max(3, *(len(cell) for cell in cells.ravel())) if cells.size else 3
        grid = [" ".join(f"{cell:>{width}}" for cell in line) for line in cells]
        lines = [" " + line for line in grid]
        return "\n".join(
            [head, *table, "keys that a rank (down) needs of another (across)", *lines]
        )

    def _summary(self) -> str:
        rows = {
            "rows": self.rows,
            "work": self.work,
            "keys in": self.keys_in,
            "keys out": self.keys_out,
        }
        if self.key_bytes > 1:
            rows |= {"bytes in": self.bytes_in, "bytes out": self.bytes_out}
        wide = max(len(str(int(values.max()))) for values in rows.values())
        lines = [f"{'':10}{'least':>{wide}}  {'mean':>{wide}}  {'most':>{wide}}"]
        for name, values in rows.items():
            numbers = (int(values.min()), round(float(values.mean())), int(values.max()))
            lines.append(f"{name:10}" + "  ".join(f"{number:>{wide}}" for number in numbers))
        return "\n".join([*lines, f"{self.ring_share:.1%} of what a full ring moves"])


def joined(assignment: Assignment) -> Assignment:
    """The same, with neighbouring stretches of one owner made one."""
    cuts, owner = assignment
    kept = np.append(True, owner[1:] != owner[:-1])[: owner.size]
    return Assignment(np.append(cuts[:-1][kept], cuts[-1]), owner[kept])


def _most(values: IntArray) -> float:
    total = int(values.sum())
    return float(values.max() * values.size / total) if total else 1.0


def _parts(count: IntArray) -> list[slice]:
    """Runs of stretches with about `MOST_PAIRS` pairs each."""
    group = np.cumsum(count) // MOST_PAIRS
    edges = np.flatnonzero(np.diff(group)) + 1
    ends = [0, *edges.tolist(), count.size]
    return [slice(low, high) for low, high in itertools.pairwise(ends) if low < high]


def _table(names: list[str], numbers: IntArray) -> list[str]:
    wide = [
        max(len(name), *(len(str(number)) for number in column.tolist()))
        for name, column in zip(names, numbers.T, strict=True)
    ]
    lines = [names, *([str(number) for number in line] for line in numbers.tolist())]
    return ["  ".join(f"{c:>{w}}" for c, w in zip(line, wide, strict=True)) for line in lines]
