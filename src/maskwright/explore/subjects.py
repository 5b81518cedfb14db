"""From a request's subject to a bound mask, with its cost known before any row of it is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from maskwright.core.atoms import padding
from maskwright.core.expr import brief, data_size
from maskwright.core.parser import parse
from maskwright.core.simplify import simplify
from maskwright.draw import masks as pictures
from maskwright.errors import FrameError, MaskError, SizeError
from maskwright.explore.faults import ADVICE, Fault, too_large
from maskwright.explore.numbers import check_ranges
from maskwright.explore.requests import MOST_PLANES, PAD

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.explore.requests import Subject, View

MOST_INTERVALS: Final = 2**23  # read for one answer, with a few for every term
MOST_SIMPLIFIED: Final = 200  # terms
MOST_SHOWN: Final = 20_000  # values of data in a text


@dataclass(frozen=True)
class Bound:
    """A mask on its frame, and the tokens of every sequence where there are any."""

    mask: Mask
    on: BoundMask
    tokens: tuple[tuple[str, ...], ...] | None

    @cached_property
    def weight(self) -> int:
        """About how many intervals are read for all of it."""
        return weigh(self.on, self.on.shape[2], self.on.shape[3])

    @property
    def light(self) -> bool:
        """May all of it be read?"""
        return self.weight <= MOST_INTERVALS

    def labels(self, batch: int) -> tuple[str, ...] | None:
        """The tokens of one sequence."""
        return None if self.tokens is None else self.tokens[batch if len(self.tokens) > 1 else 0]


def bind(
    subject: Subject,
    expression: str | None = None,
    batch: int | None = None,
    heads: int | None = None,
) -> Bound:
    """The subject's mask, or another expression in its place, on the subject's frame."""
    said = subject.expression if expression is None else expression
    check_ranges(said)
    mask = parse(said)
    tokens = subject.tokens
    if tokens is None:
        many, wide = batch or subject.batch, heads or subject.heads
        on = mask.on(subject.size, subject.keys, many, wide, subject.q_start)
        return Bound(mask, check_planes(on), None)
    keep = [[token != PAD for token in row] for row in tokens]
    if subject.padding and not all(map(all, keep)):
        mask = mask & padding(keep=keep)
    many = len(tokens) if len(tokens) > 1 else batch
    return Bound(mask, check_planes(mask.on(len(tokens[0]), None, many, heads)), tokens)


def bind_together(subject: Subject, others: tuple[str, ...]) -> list[Bound]:
    """The subject's mask and others, all on one frame: one may be all that tells of heads."""
    found = [bind(subject), *(bind_other(subject, other) for other in others)]
    batch = max(bound.on.frame.batch for bound in found)
    heads = max(bound.on.frame.heads for bound in found)
    if all((bound.on.frame.batch, bound.on.frame.heads) == (batch, heads) for bound in found):
        return found
    return [
        bind(subject, None, batch, heads),
        *(bind_other(subject, other, batch, heads) for other in others),
    ]


def bind_other(
    subject: Subject, expression: str, batch: int | None = None, heads: int | None = None
) -> Bound:
    """An expression to compare with; the place of an error is one in it, and the sentence says so."""
    try:
        return bind(subject, expression, batch, heads)
    except MaskError as error:
        status = 413 if isinstance(error, SizeError) else 422
        kind = type(error).__name__
        raise Fault(status, f"In {expression:.60}: {error}", kind, error.at) from None


def check_planes(on: BoundMask) -> BoundMask:
    """Refuse more sequences or heads than a page can show."""
    frame = on.frame
    for name, size in (("sequences", frame.batch), ("heads", frame.heads)):
        if size > MOST_PLANES:
            raise too_large(f"The mask has {size} {name}, more than {MOST_PLANES}. Give fewer.")
    return on


def check_plane(on: BoundMask, batch: int, head: int) -> None:
    """Refuse a batch row or head that is not there."""
    frame = on.frame
    for name, index, size in (("batch", batch, frame.batch), ("head", head, frame.heads)):
        if index >= size:
            raise FrameError(f"{name} {index} is not there. Give a number from 0 to {size - 1}.")


def check_view(on: BoundMask, view: View | None) -> pictures.View | None:
    """The part that is looked at, if it lies within the mask."""
    if view is None:
        return None
    rows, keys = on.shape[2:]
    if view.row + view.rows > rows or view.key + view.keys > keys:
        raise FrameError(
            f"The view reaches row {view.row + view.rows} and key {view.key + view.keys}, but there "
            f"are {rows} and {keys}. Give a view within the mask."
        )
    return pictures.View(view.row, view.rows, view.key, view.keys)


def check_weight(weight: int, most: int = MOST_INTERVALS) -> None:
    """Refuse what would take too long."""
    if weight > most:
        raise too_large(f"This mask may have {weight:,} intervals, more than {most:,}. {ADVICE}")


def weigh(on: BoundMask, rows: int, keys: int) -> int:
    """About how many intervals are read for so many rows and keys; nothing is read to know it."""
    planes = max(1, on.shape[0] * on.shape[1])
    return planes * rows * (max(1, on.mask._width(keys)) + on.mask._nodes - 1)


def text_of(mask: Mask) -> str:
    """The mask as text, its data left out where that is very long."""
    return repr(mask) if data_size(mask) <= MOST_SHOWN else brief(mask)


def shorter_text(mask: Mask) -> str | None:
    """The mask as the laws shorten it, where they do."""
    if mask._nodes > MOST_SIMPLIFIED:
        return None
    said, shorter = text_of(mask), text_of(simplify(mask))
    return shorter if len(shorter) < len(said) else None
