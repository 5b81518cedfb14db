"""Which part of an expression a refusal is about: the smallest that can be named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from maskwright.core.bound import BoundMask
from maskwright.core.expr import And, Not, Or, brief

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.expr import Mask

MOST_TERMS: Final = 64  # of one & or |; beyond, the whole is named
LONGEST: Final = 80  # letters of a term in a message; beyond, its data is left out


class Culprit(NamedTuple):
    """The term as text, and in short with the operator that it stands under."""

    term: str
    brief: str
    whole: bool  # is it the whole mask?


def culprit(bound: BoundMask, sayable: Callable[[BoundMask], bool]) -> Culprit:
    """The smallest term that can't be said, alone or beside the others that can."""

    def fine(mask: Mask) -> bool:
        return sayable(BoundMask(mask, bound._home, bound._part))

    mask, under = _search(bound.mask, fine, "")
    text = repr(mask)
    short = text if len(text) <= LONGEST else brief(mask)
    return Culprit(text, f"{short}{under}", mask is bound.mask)


def _search(mask: Mask, fine: Callable[[Mask], bool], under: str) -> tuple[Mask, str]:
    if isinstance(mask, Not) and not fine(mask.term):
        return _search(mask.term, fine, " under ~")
    if not isinstance(mask, (And, Or)) or not 1 < len(mask.terms) <= MOST_TERMS:
        return mask, under
    sign = " under &" if isinstance(mask, And) else " under |"
    for term in mask.terms:
        if not fine(term):
            return _search(term, fine, sign)
    # Each can be said alone: which one, last first, can't stand beside the others?
    for index in reversed(range(len(mask.terms))):
        rest = mask.terms[:index] + mask.terms[index + 1 :]
        if fine(rest[0] if len(rest) == 1 else type(mask)(rest)):
            return mask.terms[index], sign
    return mask, under
