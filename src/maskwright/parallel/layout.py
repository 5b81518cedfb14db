"""Sharding a sequence over ranks: `balance` gives each rank some rows, `ShardLayout` describes them.

Numpy only; nothing here communicates.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.core.bound import BoundMask
from maskwright.core.spans import Spans
from maskwright.core.validate import parse_int, read_choice
from maskwright.errors import ArgumentError, FrameError
from maskwright.parallel.workload import count_before, ranges, required_keys, row_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from maskwright.core.validate import IntArray

MAX_COST: Final = 1.05  # per rank, as a multiple of the mean, if possible
MAX_ROWS: Final = 1.1  # likewise; the other layers of a model take time per row
MAX_ROWS_RELAXED: Final = (1.3, 2.0)  # if a few rows have much of the cost
TARGET_COST: Final = 1.02  # up to which `rebalanced` moves chunks
GOOD_COST: Final = 1.04  # with which `rebalanced` does not try smaller chunks
CHUNKS_PER_RANK: Final = 16
MAX_TAKERS: Final = 8  # ranks with little cost that `rebalanced` tries
MAX_PRINTED_RANKS: Final = 16
PER_RANK: Final = ("rows", "cost", "keys_in", "keys_out", "bytes_in", "bytes_out")  # of a layout


class Assignment(NamedTuple):
    """Rows `cuts[i]` … `cuts[i + 1] - 1` belong to rank `owner[i]`."""

    cuts: IntArray
    owner: IntArray


@dataclass(frozen=True, eq=False)
class ShardLayout:
    """Which rank has which rows, what each rank computes, and which keys it needs from others.

    `balance` makes it. A rank stores its rows in the order of their positions.

    Attributes:
        strategy: The strategy that selected the rows.
        ranks: The number of ranks.
        assignment: The owner of each stretch of rows.
        cost: The number of visible cells that each rank computes.
        required: Row r has the intervals of the keys that the queries of rank r attend to.
        key_bytes: Bytes of the key and value of one token, over the batch and all KV heads.

    >>> import maskwright as mw
    >>> layout = balance(mw.window(back=1).on(8), 2, strategy="contiguous")
    >>> print(layout)
    8 tokens over 2 ranks, contiguous: at most 1.07 times the mean cost and 1.00 times the mean rows
    rank  rows  cost  keys in  keys out
       0     4     7        0         1
       1     4     8        1         0
    keys that a rank (row) receives from another (column)
       ·   0
       1   ·
    >>> layout.tokens, layout.rows.tolist(), layout.order.tolist(), len(layout.digest)
    (8, [4, 4], [0, 1, 2, 3, 4, 5, 6, 7], 32)
    >>> layout.matrix.tolist(), layout.keys_to_send(0, 1).tolist()
    ([[4, 0], [1, 4]], [3])
    >>> layout.keys_in.tolist(), layout.keys_out.tolist()
    ([0, 1], [1, 0])
    >>> layout.bytes_in.tolist(), layout.bytes_out.tolist()
    ([0, 1], [1, 0])
    >>> round(layout.cost_imbalance, 2), layout.row_imbalance, layout.comm_fraction
    (1.07, 1.0, 0.125)
    """

    strategy: str
    ranks: int
    assignment: Assignment
    cost: IntArray
    required: Spans
    key_bytes: int = 1

    @property
    def tokens(self) -> int:
        """The number of rows, and of keys."""
        return self.required.kv_len

    @cached_property
    def rows(self) -> IntArray:
        """The number of rows of each rank."""
        cuts, owner = self.assignment
        return np.bincount(owner, np.diff(cuts), self.ranks).astype(np.int64)

    @cached_property
    def matrix(self) -> IntArray:
        """Row r, column s: the number of keys of rank s that rank r needs. (ranks, ranks)."""
        cuts, owner = self.assignment
        offsets, starts, stops = self.required.flat
        lines = [
            np.bincount(owner, np.diff(count_before(starts[a:b], stops[a:b], cuts)), self.ranks)
            for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        ]
        return np.stack(lines).astype(np.int64)

    @property
    def keys_in(self) -> IntArray:
        """The number of keys that each rank receives."""
        return np.asarray(self.matrix.sum(1) - np.diag(self.matrix), np.int64)

    @property
    def keys_out(self) -> IntArray:
        """The number of keys that each rank sends; a key sent to two ranks counts twice."""
        return np.asarray(self.matrix.sum(0) - np.diag(self.matrix), np.int64)

    @property
    def bytes_in(self) -> IntArray:
        """The bytes of keys and values that each rank receives in one forward pass."""
        return self.keys_in * self.key_bytes

    @property
    def bytes_out(self) -> IntArray:
        """The bytes of keys and values that each rank sends in one forward pass."""
        return self.keys_out * self.key_bytes

    @property
    def cost_imbalance(self) -> float:
        """The largest cost of a rank as a multiple of the mean; 1 is best."""
        return _imbalance(self.cost)

    @property
    def row_imbalance(self) -> float:
        """The largest number of rows of a rank as a multiple of the mean; 1 is best."""
        return _imbalance(self.rows)

    @property
    def comm_fraction(self) -> float:
        """The keys that ranks receive, as a fraction of what an all-gather of all keys moves."""
        whole = self.tokens * (self.ranks - 1)
        return float(self.keys_in.sum() / whole) if whole else 0.0

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that identify the rows of all ranks."""
        arrays = (np.ascontiguousarray(array, np.int64).tobytes() for array in self.assignment)
        return hashlib.sha256(b"".join([str(self.ranks).encode(), *arrays])).digest()

    def positions(self, rank: int) -> IntArray:
        """The positions of a rank's rows, in the order in which the rank stores them.

        >>> import maskwright as mw
        >>> balance(mw.causal().on(8), 2, strategy="zigzag").positions(0).tolist()
        [0, 1, 6, 7]
        """
        return ranges(*self._stretches(rank))

    @property
    def order(self) -> IntArray:
        """The positions of all rows, rank after rank."""
        return np.concatenate([self.positions(rank) for rank in range(self.ranks)])

    def keys_to_send(self, source: int, target: int) -> IntArray:
        """Which rows `source` sends to `target`, as indices into the rows of `source`."""
        ends = np.array(self.required.row(target), np.int64).reshape(-1, 2)
        low, high = count_before(*self._stretches(source), ends).T
        return ranges(low, high)

    def for_mask(self, bound: BoundMask) -> ShardLayout:
        """The same rows, with the cost and the required keys of another mask.

        >>> import maskwright as mw
        >>> layout = balance(mw.causal().on(8), 2)
        >>> layout.for_mask(mw.window(back=1).on(8)).keys_in.tolist()
        [1, 1]
        """
        _check_square(bound)
        if bound.frame.kv_len != self.tokens:
            raise FrameError(
                f"The mask has {bound.frame.kv_len} keys, expected {self.tokens} (the tokens of the "
                "layout). Bind the mask to the whole sequence, not to the rows of one rank."
            )
        assignments = {self.strategy: self.assignment}
        return _layouts(bound, assignments, self.ranks, self.key_bytes)[0]

    def split(self, parts: int) -> ShardLayout:
        """A layout over `ranks * parts` ranks that splits the rows of each rank equally, in order.

        Its cost is 0 and its required keys are those of this layout: it describes rows only.

        >>> import maskwright as mw
        >>> fine = balance(mw.causal().on(8), 2, strategy="zigzag").split(2)
        >>> [fine.positions(rank).tolist() for rank in range(4)]
        [[0, 1], [6, 7], [2, 3], [4, 5]]
        """
        owner = np.empty(self.tokens, np.int64)
        for rank in range(self.ranks):
            rows = self.positions(rank)
            owner[rows] = rank * parts + np.arange(rows.size) * parts // max(1, rows.size)
        assignment = _merged(Assignment(np.arange(self.tokens + 1), owner))
        ranks = self.ranks * parts
        cost = np.zeros(ranks, np.int64)
        return ShardLayout(self.strategy, ranks, assignment, cost, self.required, self.key_bytes)

    def _stretches(self, rank: int) -> tuple[IntArray, IntArray]:
        """Starts and stops of the stretches that a rank owns."""
        cuts, owner = self.assignment
        index = np.flatnonzero(owner == rank)
        return cuts[index], cuts[index + 1]

    def __str__(self) -> str:
        names = PER_RANK if self.key_bytes > 1 else PER_RANK[:-2]  # without bytes
        columns = {name.replace("_", " "): getattr(self, name) for name in names}
        lines = [
            f"{self.tokens:,} tokens over {self.ranks:,} ranks, {self.strategy}: at most "
            f"{self.cost_imbalance:.2f} times the mean cost and {self.row_imbalance:.2f} times the "
            "mean rows"
        ]
        if self.ranks > MAX_PRINTED_RANKS:
            summary = {n: (x.min(), round(float(x.mean())), x.max()) for n, x in columns.items()}
            lines += _table({"rank": ["min", "mean", "max"], **summary})
            return "\n".join([*lines, f"{self.comm_fraction:.1%} of the keys of an all-gather"])
        lines += _table({"rank": range(self.ranks), **columns})
        lines.append("keys that a rank (row) receives from another (column)")
        cells = np.array([[f"{count:,}" for count in row] for row in self.matrix], object)
        np.fill_diagonal(cells, "·")
        width = max(3, *(len(cell) for cell in cells.flat))
        return "\n".join([*lines, *(" " + " ".join(f"{x:>{width}}" for x in row) for row in cells)])


def balance(
    bound: BoundMask, ranks: int, *, strategy: str = "auto", key_bytes: int = 1
) -> ShardLayout:
    """Assign the rows of a bound mask to ranks, with equal cost and little communication.

    The cost of a row is the number of cells that it attends to. Each rank has the keys of its own
    rows.

    Args:
        bound: A mask with as many queries as keys.
        ranks: The number of ranks.
        strategy: "contiguous" (equal stretches), "zigzag" (two stretches per rank, one from each
            end), "rebalanced" (equal stretches, of which overloaded ranks move chunks to others),
            "chunked" (short chunks, the most expensive first, each to the rank with the least
            cost), or "auto": of these, the one that moves the fewest keys among those with balanced
            cost and rows.
        key_bytes: Bytes of the key and value of one token, to report bytes.

    Returns:
        The layout.

    Raises:
        ArgumentError: An argument is invalid.
        FrameError: The mask does not have one key per query.

    >>> import maskwright as mw
    >>> causal = mw.causal().on(4096)
    >>> round(balance(causal, 4, strategy="contiguous").cost_imbalance, 2)
    1.75
    >>> round(balance(causal, 4).cost_imbalance, 2)
    1.0
    """
    count = parse_int(ranks, "balance: ranks", minimum=1)
    size = parse_int(key_bytes, "balance: key_bytes", minimum=1)
    chosen = read_choice(strategy, "balance: strategy", ("auto", *STRATEGIES))
    _check_square(bound)
    cost = row_cost(bound)
    names = tuple(STRATEGIES) if chosen == "auto" else (chosen,)
    assignments = {name: _merged(STRATEGIES[name](cost, count)) for name in names}
    return min(_layouts(bound, assignments, count, size), key=_preference)


def _layouts(
    bound: BoundMask, assignments: Mapping[str, Assignment], ranks: int, key_bytes: int
) -> list[ShardLayout]:
    before = _prefix_sum(row_cost(bound))
    cuts = np.unique(np.concatenate([cuts for cuts, _ in assignments.values()]))
    offsets, starts, stops = required_keys(bound, cuts).flat  # read once for all assignments
    stretch = np.repeat(np.arange(cuts.size - 1), np.diff(offsets))
    layouts = []
    for name, assignment in assignments.items():
        cost = np.bincount(assignment.owner, np.diff(before[assignment.cuts]), ranks)
        owner = assignment.owner[np.searchsorted(assignment.cuts, cuts[:-1], "right") - 1]
        keys = Spans.from_pieces((1, 1, ranks), before.size - 1, owner[stretch], starts, stops)
        layouts.append(ShardLayout(name, ranks, assignment, cost.astype(np.int64), keys, key_bytes))
    return layouts


def _preference(layout: ShardLayout) -> tuple[int, float]:
    """Balanced layouts first, by communication; then those with balanced cost; then by cost."""
    if layout.cost_imbalance > MAX_COST:
        return 2, layout.cost_imbalance
    if layout.row_imbalance > MAX_ROWS + 0.05:
        return 1, layout.row_imbalance
    return 0, float(layout.keys_in.sum())


def _check_square(bound: BoundMask) -> None:
    if not isinstance(bound, BoundMask):
        raise ArgumentError(
            f"balance: the mask has type {type(bound).__name__}, expected BoundMask. "
            "Bind it first: mask.on(tokens)."
        )
    frame = bound.frame
    if frame.q_len != frame.kv_len or frame.q_start:
        raise FrameError(
            f"balance: the mask has {frame.q_len} queries, from position {frame.q_start}, and "
            f"{frame.kv_len} keys, expected one key per query. Bind it to as many queries as keys."
        )


def contiguous(cost: IntArray, ranks: int) -> Assignment:
    """One stretch per rank, all equally long.

    >>> import numpy as np
    >>> contiguous(np.ones(8, int), 2).cuts.tolist()
    [0, 4, 8]
    """
    return Assignment(_equal_cuts(cost.size, ranks), np.arange(ranks))


def zigzag(cost: IntArray, ranks: int) -> Assignment:
    """Two stretches per rank, one from each end, all equally long.

    >>> import numpy as np
    >>> zigzag(np.ones(8, int), 2).owner.tolist()
    [0, 1, 1, 0]
    """
    owner = np.concatenate((np.arange(ranks), np.arange(ranks)[::-1]))
    return Assignment(_equal_cuts(cost.size, 2 * ranks), owner)


def rebalanced(cost: IntArray, ranks: int) -> Assignment:
    """Equal stretches, of which overloaded ranks move chunks to others, large ones if that suffices.

    Most rows stay beside their neighbours. This suits masks with near keys only, such as packed
    documents of different lengths.

    >>> import numpy as np
    >>> rebalanced(np.array([1, 1, 1, 1, 5, 5, 1, 1]), 2).owner.tolist()
    [0, 1, 0, 1, 1]
    """
    borders, before = _equal_cuts(cost.size, ranks), _prefix_sum(cost)
    for per_rank in (1, 2, 4, CHUNKS_PER_RANK):
        cuts = np.unique(np.concatenate((_chunk_cuts(cost, ranks * per_rank), borders)))
        owner = np.searchsorted(borders, cuts[:-1], "right") - 1
        chunk_cost = np.diff(before[cuts])
        _rebalance(chunk_cost, np.diff(cuts), owner, ranks)
        if _imbalance(np.bincount(owner, chunk_cost, ranks)) <= GOOD_COST:
            break
    return Assignment(cuts, owner)


def chunked(cost: IntArray, ranks: int) -> Assignment:
    """Short chunks, the most expensive first, each to the rank with the least cost so far.

    This suits masks in which a few rows have much of the cost, such as global tokens.

    >>> import numpy as np
    >>> chunked(np.array([8, 1, 1, 8]), 2).owner.tolist()
    [0, 0, 1, 1]
    """
    cuts = _chunk_cuts(cost, ranks * CHUNKS_PER_RANK)
    chunk_cost, chunk_rows = np.diff(_prefix_sum(cost)[cuts]), np.diff(cuts)
    for limit in (MAX_ROWS, *MAX_ROWS_RELAXED):
        owner = _greedy(chunk_cost, chunk_rows, ranks, limit * cost.size / ranks)
        if _imbalance(np.bincount(owner, chunk_cost, ranks)) <= MAX_COST:
            break
    return Assignment(cuts, owner)


STRATEGIES: Final[dict[str, Callable[[IntArray, int], Assignment]]] = {
    "contiguous": contiguous,
    "zigzag": zigzag,
    "rebalanced": rebalanced,
    "chunked": chunked,
}


def _greedy(cost: IntArray, rows: IntArray, ranks: int, max_rows: float) -> IntArray:
    """The owner of each chunk: that of the chunk before it, or the rank with the least cost."""
    owner = np.full(cost.size + 1, -1)  # one more, so that chunk 0 has a chunk before it
    load, num_rows = np.zeros(ranks), np.zeros(ranks)
    mean = cost.sum() / ranks
    step = max(1.0, mean / CHUNKS_PER_RANK / 8)  # chunks of about the same cost stay in order
    for chunk in np.argsort(-np.round(cost / step), kind="stable").tolist():
        full = num_rows + rows[chunk] > max_rows
        rank = int(owner[chunk - 1])
        if rank < 0 or full[rank] or load[rank] + cost[chunk] > mean:
            rank = int(np.argmin(num_rows if full.all() else np.where(full, np.inf, load)))
        owner[chunk] = rank
        load[rank] += cost[chunk]
        num_rows[rank] += rows[chunk]
    return owner[:-1]


def _rebalance(cost: IntArray, rows: IntArray, owner: IntArray, ranks: int) -> None:
    """Move chunks, in place, until no rank exceeds `TARGET_COST`, or no move helps."""
    load, num_rows = np.bincount(owner, cost, ranks), np.bincount(owner, rows, ranks)
    max_cost, max_rows = TARGET_COST * load.mean(), MAX_ROWS * num_rows.mean()
    cost, rows = np.append(cost, 0), np.append(rows, 0)  # chunk -1 is empty
    active = np.ones(ranks, bool)
    while active.any():
        giver = int(np.argmax(np.where(active, load, -1)))
        if load[giver] <= max_cost:
            return
        mine = np.flatnonzero(owner == giver)[:, None]
        for taker in np.argsort(load, kind="stable")[:MAX_TAKERS].tolist():
            theirs = np.append(np.flatnonzero(owner == taker), -1)  # one chunk, or none, in return
            moved_cost, moved_rows = cost[mine] - cost[theirs], rows[mine] - rows[theirs]
            limit = min(max_cost - load[taker], load[giver] - load[taker] - 1)
            fits = (moved_cost > 0) & (moved_cost <= limit)
            fits &= (num_rows[taker] + moved_rows <= max_rows) & (
                num_rows[giver] - moved_rows <= max_rows
            )
            if fits.any():
                break
        else:
            active[giver] = False
            continue
        gain = np.where(fits, moved_cost, 0)
        # A move without return keeps more rows beside their neighbours.
        one_way = 2 * gain[:, -1].max() >= gain.max()
        i, j = (
            (gain[:, -1].argmax(), -1) if one_way else np.unravel_index(gain.argmax(), gain.shape)
        )
        owner[mine[i]] = taker
        if theirs[j] >= 0:
            owner[theirs[j]] = giver
        for sums, moved in ((load, moved_cost), (num_rows, moved_rows)):
            sums[giver] -= moved[i, j]
            sums[taker] += moved[i, j]


def _chunk_cuts(cost: IntArray, count: int) -> IntArray:
    """Cuts into chunks with at most about 1 / count of the rows, and of the cost if possible."""
    total = max(1, int(cost.sum()))
    size = _prefix_sum(cost / total + 1 / max(1, cost.size))
    inner = np.searchsorted(size, np.arange(1, 2 * count) * (size[-1] / (2 * count)))
    expensive = np.flatnonzero(cost * count > total)  # rows that are chunks of their own
    inner = np.minimum(inner, cost.size)
    return np.unique(np.concatenate(([0], inner, expensive, expensive + 1, [cost.size])))


def _equal_cuts(rows: int, count: int) -> IntArray:
    return np.arange(count + 1) * rows // count


def _merged(assignment: Assignment) -> Assignment:
    """The same without empty stretches, and with neighbouring stretches of one owner merged."""
    cuts, owner = assignment
    nonempty = np.diff(cuts) > 0
    starts, owner = cuts[:-1][nonempty], owner[nonempty]
    first = np.diff(owner, prepend=-1) != 0
    return Assignment(np.append(starts[first], cuts[-1]), owner[first])


def _prefix_sum(values: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(values)))


def _imbalance(values: np.ndarray) -> float:
    total = float(values.sum())
    return float(values.max() * values.size / total) if total else 1.0


def _table(columns: Mapping[str, Iterable[object]]) -> list[str]:
    texts = [
        [name, *(f"{cell:,}" if name != "rank" else str(cell) for cell in column)]
        for name, column in columns.items()
    ]
    padded = [[f"{cell:>{max(map(len, column))}}" for cell in column] for column in texts]
    return ["  ".join(row) for row in zip(*padded, strict=True)]
