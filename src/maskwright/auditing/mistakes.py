"""Mistakes: what a mask becomes when it is got wrong in one of the usual ways."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from maskwright.core.atoms import causal, everything, window
from maskwright.core.atoms.position import Chunks, Window
from maskwright.core.atoms.tokens import Documents, Padding
from maskwright.core.expr import And

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.expr import Mask


def mistakes(mask: Mask) -> Iterator[tuple[str, Mask]]:
    """What this mask may have become, each with the code of the mistake; the likeliest first."""
    terms = terms_of(mask)
    yield "inverted", ~mask
    for n, term in enumerate(terms):
        rest = [other for m, other in enumerate(terms) if m != n]
        for code, wrong in _of_term(term):
            yield code, reduce(and_, [*rest, wrong])
    if len(terms) > 1:
        yield "queries-and-keys-swapped", mask.T
        yield "mask-missing", everything()


def terms_of(mask: Mask) -> tuple[Mask, ...]:
    """What a mask is joined from by &."""
    return mask.terms if isinstance(mask, And) else (mask,)


def _of_term(term: Mask) -> Iterator[tuple[str, Mask]]:
    yield missing(term), everything()
    yield "inverted", ~term
    if isinstance(term, Padding):
        yield "padding-on-queries", term.T
    elif isinstance(term, Window):
        yield from _of_window(term)
    else:
        yield "queries-and-keys-swapped", term.T


def _of_window(term: Window) -> Iterator[tuple[str, Mask]]:
    yield "queries-and-keys-swapped", term.T
    if term.back is not None:
        for back in (term.back + 1, term.back - 1):
            if back >= 0:
                yield "window-off-by-one", window(back=back, ahead=term.ahead)
        if term.ahead == 0:
            yield "window-missing", causal()
        if term.ahead is not None:
            yield "future-visible", window(back=term.back, ahead=None)
            yield "window-off-by-one", window(back=term.back, ahead=term.ahead + 1)
            if term.ahead > 0:
                yield "window-off-by-one", window(back=term.back, ahead=term.ahead - 1)
    elif term.ahead == 0:
        yield "future-visible", window(back=None, ahead=1)
        yield "own-position-hidden", causal() & ~window(0, 0)


def missing(term: Mask) -> str:
    """What it is called when a term is missing."""
    if isinstance(term, Padding):
        return "padding-visible"
    if isinstance(term, (Documents, Chunks)):
        return "documents-leak"
    if isinstance(term, Window):
        return "future-visible" if term.back is None else "window-missing"
    return "mask-missing"
