"""Finds the smallest term of an expression that a target cannot represent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from maskwright.core.bound import BoundMask
from maskwright.core.expr import brief
from maskwright.core.operators import Chain, Not

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.expr import Mask

MAX_TERMS: Final = 64  # of one & or |; with more, the whole operation is reported
MAX_TERM_CHARS: Final = 80  # in a message; of a longer term the data is left out


class UnsupportedTerm(NamedTuple):
    """A term of a mask that a target cannot represent."""

    term: str  # its source
    description: str  # its source, shortened, and the operator that it is an operand of
    is_whole_mask: bool


def find_unsupported_term(
    bound: BoundMask, representable: Callable[[BoundMask], bool]
) -> UnsupportedTerm:
    """Returns the smallest term that is not representable, alone or with its sibling terms."""

    def accepted(mask: Mask) -> bool:
        return representable(BoundMask(mask, bound._home, bound._part))

    mask, operator = _search(bound.mask, accepted, "")
    text = repr(mask)
    short = text if len(text) <= MAX_TERM_CHARS else brief(mask)
    return UnsupportedTerm(text, f"{short}{operator}", mask is bound.mask)


def _search(mask: Mask, accepted: Callable[[Mask], bool], operator: str) -> tuple[Mask, str]:
    if isinstance(mask, Not) and not accepted(mask.term):
        return _search(mask.term, accepted, " under ~")
    if not isinstance(mask, Chain) or not 1 < len(mask.terms) <= MAX_TERMS:
        return mask, operator
    sign = f" under {mask.symbol}"
    for term in mask.terms:
        if not accepted(term):
            return _search(term, accepted, sign)
    # Each term is representable alone: find the last one whose removal makes the rest so.
    for index in reversed(range(len(mask.terms))):
        rest = mask.terms[:index] + mask.terms[index + 1 :]
        if accepted(rest[0] if len(rest) == 1 else mask._with_parts(rest)):
            return mask.terms[index], sign
    return mask, operator
