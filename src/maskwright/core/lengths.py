"""How many queries and keys a mask's own data describes, for those who do not say it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.core.atoms.array import Dense
from maskwright.core.atoms.index import Keys, Queries
from maskwright.core.atoms.structure import Image, Tree
from maskwright.core.atoms.tokens import Documents, Padding
from maskwright.core.expr import Transpose

if TYPE_CHECKING:
    from maskwright.core.expr import Mask

Sizes = tuple[int | None, int | None]


def implied_sizes(mask: Mask, *, at_least: bool = True) -> Sizes:
    """The queries and the keys that the data tells of; None where it tells nothing.

    Lengths of padded sequences and of documents tell only how many keys there are at least; they
    count if that is good enough.

    >>> import maskwright as mw
    >>> implied_sizes(mw.causal() & mw.padding(lengths=[3, 5]))
    (None, 5)
    """
    if isinstance(mask, Transpose):
        queries, keys = implied_sizes(mask.term, at_least=at_least)
        return keys, queries
    told = [_exactly(mask), *(implied_sizes(part, at_least=at_least) for part in mask._parts())]
    if at_least:
        told.append((None, _at_least(mask)))
    queries, keys = (
        max((n for n in side if n is not None), default=None) for side in zip(*told, strict=True)
    )
    return queries, keys


def _exactly(mask: Mask) -> Sizes:
    if isinstance(mask, Dense):
        return int(mask.array.data.shape[2]), int(mask.array.data.shape[3])
    if isinstance(mask, Image):
        return None, mask.height * mask.width
    data = None
    if isinstance(mask, Padding):
        data = mask.keep
    elif isinstance(mask, Documents):
        data = mask.ids
    elif isinstance(mask, Tree):
        data = mask.parents
    elif isinstance(mask, (Keys, Queries)):
        data = mask.where.flags
    return None, None if data is None else int(data.data.shape[1])


def _at_least(mask: Mask) -> int | None:
    if isinstance(mask, Padding) and mask.lengths is not None:
        return int(mask.lengths.data.max(initial=0))
    if isinstance(mask, Documents) and mask.lengths is not None:
        return max((sum(row) for row in mask.lengths), default=0)
    return None
