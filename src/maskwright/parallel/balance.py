"""`balance`: give the rows of a mask to ranks, so that all have as much to do and little is moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.core.bound import BoundMask
from maskwright.core.spans import Spans
from maskwright.core.validate import parse_int, read_choice
from maskwright.errors import ArgumentError, FrameError
from maskwright.parallel.assign import MOST_ROWS, MOST_WORK, chunked, contiguous, even, zigzag
from maskwright.parallel.level import levelled
from maskwright.parallel.shards import Shards, joined
from maskwright.parallel.work import row_work, seen_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.validate import IntArray
    from maskwright.parallel.assign import Assignment

WAYS: Final[dict[str, Callable[[IntArray, int], Assignment]]] = {
    "contiguous": lambda work, ranks: contiguous(work.size, ranks),
    "zig-zag": lambda work, ranks: zigzag(work.size, ranks),
    "even": even,
    "levelled": levelled,
    "chunked": chunked,
}


def balance(bound: BoundMask, ranks: int, *, how: str = "auto", key_bytes: int = 1) -> Shards:
    """The rows of a bound mask over `ranks` ranks, by the cells that they really see.

    `how` is "contiguous" (equal stretches), "zig-zag" (two each, from both ends), "even" (stretches
    of equal work), "levelled" (equal stretches, but parts of the heavy ones go to others), "chunked"
    (many short ones, dealt by their work), or "auto": of these the one that moves the fewest keys,
    where work and rows come out even. `key_bytes` is what one token's
    key and value take, and turns keys into bytes.

    Every rank has the keys of its own rows, so there must be one key for each row.

    >>> import maskwright as mw
    >>> causal = mw.causal().on(4096)
    >>> round(balance(causal, 4, how="contiguous").balance, 2)
    1.75
    >>> round(balance(causal, 4).balance, 2)
    1.0
    """
    count = parse_int(ranks, "balance: ranks", minimum=1)
    size = parse_int(key_bytes, "balance: key_bytes", minimum=1)
    way = read_choice(how, "balance: how", ("auto", *WAYS))
    _check(bound)
    work = row_work(bound)
    names = tuple(WAYS) if way == "auto" else (way,)
    found = [joined(WAYS[name](work, count)) for name in names]
    cuts = np.unique(np.concatenate([assignment.cuts for assignment in found]))
    seen = seen_keys(bound, cuts)  # read once, for all ways
    before = np.concatenate(([0], np.cumsum(work)))
    made = [
        _shards(name, assignment, count, size, before, cuts, seen)
        for name, assignment in zip(names, found, strict=True)
    ]
    return made[0] if len(made) == 1 else min(made, key=_cost)


def assigned(bound: BoundMask, layout: Shards) -> Shards:
    """Another mask on rows that are given out already: its own work and needs.

    >>> import maskwright as mw
    >>> layout = balance(mw.causal().on(8), 2)
    >>> assigned(mw.window(back=1).on(8), layout).keys_in.tolist()
    [1, 1]
    """
    _check(bound)
    if bound.frame.kv_len != layout.tokens:
        raise FrameError(
            f"The mask has {bound.frame.kv_len} keys but {layout.tokens} tokens were given out. "
            "Bind it to the whole sequence, not to a rank's part."
        )
    before = np.concatenate(([0], np.cumsum(row_work(bound))))
    cuts = layout.assignment.cuts
    seen = seen_keys(bound, cuts)
    return _shards(
        layout.how, layout.assignment, layout.ranks, layout.key_bytes, before, cuts, seen
    )


def _shards(
    name: str,
    assignment: Assignment,
    ranks: int,
    key_bytes: int,
    before: IntArray,
    cuts: IntArray,
    seen: Spans,
) -> Shards:
    work = np.diff(before[assignment.cuts])
    load = np.zeros(ranks, np.int64)
    np.add.at(load, assignment.owner, work)
    offsets, starts, stops = seen.flat
    stretch = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    place = np.searchsorted(assignment.cuts, cuts[:-1], "right") - 1
    owner = assignment.owner[place][stretch]
    needs = Spans.from_pieces((1, 1, ranks), seen.kv_len, owner, starts, stops)
    return Shards(name, ranks, assignment, load, needs, key_bytes)


def _cost(shards: Shards) -> tuple[int, float]:
    """Even ones first, by what is moved; then those with even work; else by work."""
    if shards.balance > MOST_WORK:
        return 2, shards.balance
    if shards.evenness > MOST_ROWS + 0.05:
        return 1, shards.evenness
    return 0, float(shards.keys_in.sum())


def _check(bound: BoundMask) -> None:
    if not isinstance(bound, BoundMask):
        raise ArgumentError(
            f"balance: the mask is of type {type(bound).__name__}. Bind it first: mask.on(tokens)."
        )
    frame = bound.frame
    if frame.q_len != frame.kv_len or frame.q_start:
        raise FrameError(
            f"balance: the mask has {frame.q_len} queries from position {frame.q_start} on and "
            f"{frame.kv_len} keys, and a rank holds the keys of its own queries. "
            "Bind it to as many queries as keys."
        )
