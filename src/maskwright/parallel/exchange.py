"""The exchange of keys between ranks under a mask: which keys each rank sends and receives."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.core.cache import Cache
from maskwright.parallel.balance import assigned
from maskwright.parallel.cutout import cut_out

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import IntArray
    from maskwright.parallel.shards import Shards

RING: Final = 0.95  # of all keys, from which on whoever needs so many may as well see all go by
KEPT: Final = 8  # exchanges that a bound mask remembers


@dataclass(frozen=True, eq=False)
class Exchange:
    """One rank's part of an attention.

    Keys come in rank after rank; `sorting` puts them in the order of their positions, which is
    the order of `foreign`'s keys.
    """

    bound: BoundMask  # the whole
    shards: Shards
    rank: int
    own: BoundMask  # my rows, my keys
    foreign: BoundMask  # my rows, the keys that come in
    sent: IntArray  # which of my keys go out, rank after rank
    out_counts: tuple[int, ...]  # to each rank
    in_counts: tuple[int, ...]  # from each rank
    sorting: IntArray
    quiet: bool  # does no rank need a key of another?

    @property
    def rings(self) -> bool:
        """Does nearly everybody need nearly everything? Then keys may as well go round."""
        return self.shards.ranks > 2 and self.shards.ring_share >= RING

    @cached_property
    def round(self) -> tuple[BoundMask, ...]:
        """My rows and each rank's keys: mine, those of the rank before me, and so on."""
        mine, ranks = self.shards.positions(self.rank), self.shards.ranks
        others = ((self.rank - step) % ranks for step in range(1, ranks))
        parts = (cut_out(self.bound, mine, self.shards.positions(other)) for other in others)
        return (self.own, *parts)

    @property
    def unsorting(self) -> IntArray:
        """Puts keys in the order of their positions back into the order in which they came."""
        back = np.empty_like(self.sorting)
        back[self.sorting] = np.arange(self.sorting.size)
        return back


def exchange_of(bound: BoundMask, layout: Shards, rank: int) -> Exchange:
    """The exchange of a rank, made once. The layout may have been made for another mask.

    >>> import maskwright as mw
    >>> from maskwright.parallel.balance import balance
    >>> bound = mw.window(back=1).on(8)
    >>> exchange_of(bound, balance(bound, 2), 1).in_counts
    (1, 0)
    """
    exchanges = bound.cached("exchanges", lambda: Cache(KEPT))
    # The layout is part of the value: its id is valid only while it is alive.
    _, exchange = exchanges.get(
        (id(layout), rank), lambda: (layout, _make(bound, assigned(bound, layout), rank))
    )
    return exchange


def digest_of(bound: BoundMask, layout: Shards) -> bytes:
    """32 bytes that are the same on two ranks where mask, frame and layout are."""
    digests = bound.cached("digests", lambda: Cache(KEPT))
    _, digest = digests.get(id(layout), lambda: (layout, _digest(bound, layout)))
    return digest


def _digest(bound: BoundMask, layout: Shards) -> bytes:
    spans = bound.spans
    digest = hashlib.sha256(repr((bound.frame, spans.shape, layout.ranks)).encode())
    for array in (*spans.flat, *layout.assignment):
        digest.update(np.ascontiguousarray(array, np.int64).data)
    return digest.digest()


def _make(bound: BoundMask, shards: Shards, rank: int) -> Exchange:
    others = [other for other in range(shards.ranks) if other != rank]
    mine = shards.positions(rank)
    out = {other: shards.wanted(other, rank) for other in others}
    into = {other: shards.positions(other)[shards.wanted(rank, other)] for other in others}
    came = np.concatenate([np.zeros(0, np.int64), *into.values()])
    sorting = np.argsort(came)
    nothing = np.zeros(0, np.int64)
    return Exchange(
        bound=bound,
        shards=shards,
        rank=rank,
        own=cut_out(bound, mine, mine),
        foreign=cut_out(bound, mine, came[sorting]),
        sent=np.concatenate([nothing, *out.values()]),
        out_counts=tuple(out.get(other, nothing).size for other in range(shards.ranks)),
        in_counts=tuple(into.get(other, nothing).size for other in range(shards.ranks)),
        sorting=sorting,
        quiet=not shards.keys_in.any(),
    )
