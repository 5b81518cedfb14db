"""Which of two readings of an array is meant: the one that looks like a mask, if only one does.

An array of truth values does not say whether True keeps or drops. What may enter here: signs that
no one would make such a mask. Where there is none, both readings stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from maskwright.recognition.plane import any_along

if TYPE_CHECKING:
    from maskwright.core.validate import BoolArray


class Looks(NamedTuple):
    """What speaks for a reading and what against it."""

    itself: bool  # all queries that see something see themselves
    past: bool  # and nothing of the future
    own: float  # the share of queries that see themselves
    blind: float  # the share of rows that see nothing; 1 if a whole sequence does


class Choice(NamedTuple):
    """The reading that is more likely meant, and whether that is beyond doubt."""

    best: int
    clear: bool


def choose(one: BoolArray, other: BoolArray, starts: set[int]) -> Choice:
    """0 or 1 for the likelier of two readings, each (batch, heads, queries, keys).

    A mask that hides the future is meant so; turned over, it shows all of it. A mask of which most
    rows see nothing, or all of one sequence, is not meant. That no query sees itself makes a
    reading less likely, no more: a graph without loops is such a mask. `starts` are the places
    where the first query may sit; none if there are no queries.
    """
    if not one.size:
        return Choice(0, clear=True)
    if bool(one.all()) or bool(other.all()):
        return Choice(int(other.all()), clear=False)
    looks = [_best_look(cells, starts) for cells in (one, other)]
    points = [look.itself + look.past for look in looks]
    scores = [(n, look.past, look.own, -look.blind) for n, look in zip(points, looks, strict=True)]
    best = int(scores[1] > scores[0])
    mine, theirs = looks[best], looks[1 - best]
    causal = mine.past and points[1 - best] == 0
    blinded = theirs.blind > 0.5 >= mine.blind and points[best] >= points[1 - best]
    return Choice(best, causal or blinded)


def _best_look(cells: BoolArray, starts: set[int]) -> Looks:
    """What speaks for these cells as a mask, wherever that is most, and what against."""
    seeing = any_along(cells, 3)
    whole = bool(any_along(seeing, 2).all())  # does every sequence see something?
    blind = 1 - float(seeing.mean()) if whole else 1.0
    if bool((cells[:, :, 1:] == cells[:, :, :-1]).all()):
        return Looks(False, False, 0.0, blind)  # nothing depends on the query or where it sits
    looks = [_look(cells, seeing, start) for start in starts]
    itself, past, own = max(looks, key=sum, default=(False, False, 0.0))
    return Looks(itself, past, own, blind)


def _look(cells: BoolArray, seeing: BoolArray, start: int) -> tuple[bool, bool, float]:
    """Do all that see something see themselves, and nothing of the future; how many do?"""
    rows, keys = cells.shape[2:]
    own = np.arange(max(start, 0), min(start + rows, keys))
    if not own.size:
        return False, False, 0.0
    itself = cells[:, :, own - start, own]
    last = keys - 1 - cells[:, :, :, ::-1].argmax(axis=3)
    past = (last <= np.arange(start, start + rows)) | ~seeing
    all_see = bool((itself | ~seeing[:, :, own - start]).all())
    return all_see, bool(past.all()), float(itself.mean())
