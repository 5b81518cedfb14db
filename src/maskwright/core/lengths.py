"""How many queries and keys a mask's own data describes, for those who do not say it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.core.atoms_array import Dense
from maskwright.core.atoms_choice import Keys, Queries
from maskwright.core.atoms_relation import Image, Tree
from maskwright.core.atoms_tokens import Documents, Padding
from maskwright.core.compose import Transpose

if TYPE_CHECKING:
    from maskwright.core.mask import Mask

Told = tuple[int | None, int | None]


def told_lengths(mask: Mask) -> Told:
    """The queries and the keys that the data tells of; None where it tells nothing.

    >>> import maskwright as mw
    >>> told_lengths(mw.causal() & mw.padding(lengths=[3, 5]))
    (None, 5)
    """
    if isinstance(mask, Transpose):
        queries, keys = told_lengths(mask.term)
        return keys, queries
    told = [_of_atom(mask), *(told_lengths(part) for part in mask._parts())]
    queries, keys = (
        max((n for n in side if n is not None), default=None) for side in zip(*told, strict=True)
    )
    return queries, keys


def _of_atom(mask: Mask) -> Told:
    if isinstance(mask, Dense):
        return int(mask.array.data.shape[2]), int(mask.array.data.shape[3])
    if isinstance(mask, Padding):
        if mask.keep is not None:
            return None, int(mask.keep.data.shape[1])
        return None, int(mask.lengths.data.max(initial=0)) if mask.lengths is not None else None
    if isinstance(mask, Documents):
        if mask.ids is not None:
            return None, int(mask.ids.data.shape[1])
        return None, max((sum(row) for row in mask.lengths or ()), default=0)
    if isinstance(mask, Tree):
        return None, int(mask.parents.data.shape[1])
    if isinstance(mask, Image):
        return None, mask.height * mask.width
    if isinstance(mask, (Keys, Queries)) and mask.where.flags is not None:
        return None, int(mask.where.flags.data.shape[1])
    return None, None
