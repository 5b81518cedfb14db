"""Mistakes: what a mask becomes when it is got wrong in one of the usual ways."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from maskwright.core.atoms import causal, everything, window
from maskwright.core.atoms.position import Chunks, Window
from maskwright.core.atoms.tokens import Documents, Padding
from maskwright.core.expr import And

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.expr import Mask

CAUSES: Final = {
    "after-softmax": "hidden keys are taken out after the softmax, when they have had their share",
    "aligned-lower-right": "the mask is aligned lower right, where it should be upper left",
    "aligned-upper-left": "the mask is aligned upper left, where the cache has moved the queries on",
    "attends-across-batch": "attention runs over the batch instead of the positions",
    "batch-on-heads": "the mask's batch axis lands on the heads",
    "documents-leak": "documents that were packed together are not kept apart",
    "dtype-differs": "the mask is another one in half precision",
    "empty-row-nan": "a row that sees nothing gives NaN",
    "fill-at-limit": "the lowest numbers are added up to -inf",
    "fill-overflows": "the fill does not fit the dtype",
    "fill-too-weak": "the fill is too near to 0 to hide anything",
    "future-visible": "the future is not hidden",
    "ignores-input": "the outputs do not depend on the inputs",
    "integer-wrapped": "~ or - of whole numbers 0 and 1 does not invert them",
    "inverted": "the mask hides what it should show, and the other way round",
    "mask-missing": "no mask is used at all",
    "missing-in-layer": "this layer has no mask, though others have",
    "not-finite": "outputs or gradients are not finite",
    "not-through-attention": "the masks are right: something else mixes the positions",
    "order-of-batch": "the mask belongs to another sequence of the batch",
    "own-position-hidden": "a position does not see itself",
    "padding-on-queries": "padding hides rows instead of columns",
    "padding-visible": "padding is not hidden",
    "path-differs": "this way to run the model uses another mask",
    "positions-shifted": "positions are counted over padding, or not from each sequence's start",
    "queries-and-keys-swapped": "the mask is transposed",
    "raises": "the model raises",
    "step-differs": "the cache, or the mask beside it, does not continue where it stopped",
    "too-narrow": "what should be seen is hidden",
    "window-missing": "the window is missing",
    "window-off-by-one": "the window is one key too long or too short",
    "zero-one-added": "0 and 1 are added to the scores, which hides nothing",
}

FIXES: Final = {
    "after-softmax": "Hide keys before the softmax: scores.masked_fill(~seen, -inf).",
    "aligned-lower-right": "Align the mask upper left: q_start=0.",
    "aligned-upper-left": "Align it lower right: tril(diagonal=kv_len - q_len), or mask.step(position).",
    "attends-across-batch": "Pass batch_first=True, or transpose (batch, positions) before attention.",
    "batch-on-heads": "Give the mask an axis for the heads: mask[:, None].",
    "documents-leak": "Combine the mask with documents(ids=...), and restart the positions.",
    "dtype-differs": "Make the mask as truth values, and let attention choose the fill.",
    "empty-row-nan": "Let no row be empty, or give such rows zeros, as mw.attention does.",
    "fill-at-limit": "Combine masks as truth values, and fill once.",
    "fill-overflows": "Fill with torch.finfo(scores.dtype).min, or -inf.",
    "fill-too-weak": "Fill with -inf, or torch.finfo(scores.dtype).min.",
    "future-visible": "Combine the mask with causal().",
    "ignores-input": "Check that the output picked is the one meant, and that weights are not 0.",
    "integer-wrapped": "Turn the mask into bool before ~.",
    "inverted": "Invert the mask, or pass it to what reads True as this does.",
    "mask-missing": "Pass the mask to attention.",
    "missing-in-layer": "Pass the mask to every layer.",
    "not-finite": "Look for overflow before the softmax, and for rows that see nothing.",
    "not-through-attention": "Look at what runs along the positions beside attention.",
    "order-of-batch": "Reorder the mask along with the sequences.",
    "own-position-hidden": "Keep the diagonal: tril(0), or causal().",
    "padding-on-queries": "Hide keys: mask[:, None, None, :].",
    "padding-visible": "Combine the mask with padding(...).",
    "path-differs": "Give this path the mask of the others.",
    "positions-shifted": "Count positions from each sequence's first token: cumsum(mask) - 1.",
    "queries-and-keys-swapped": "Transpose the mask's last two axes.",
    "raises": "Run the model by itself on these inputs.",
    "step-differs": "Give every step the mask of its rows: mask.step(position), over all cached keys.",
    "too-narrow": "Compare the mask with the expected one: mw.lint(mask, expects=...).",
    "window-missing": "Combine the mask with window(back=...).",
    "window-off-by-one": "Count the query itself: a window of W keys is window(back=W - 1).",
    "zero-one-added": "Pass truth values, or 0 and -inf.",
}


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
