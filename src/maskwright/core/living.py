"""Numbers for living masks: what can't hold a mask, such as a compiled graph, holds its number."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.mask import Mask

KEPT: Final = 1024  # masks that are kept alive after their last use by number

_numbers = count(1)
_living: WeakValueDictionary[int, Mask | BoundMask] = WeakValueDictionary()
_used: OrderedDict[int, Mask | BoundMask] = OrderedDict()


def new_number(mask: Mask | BoundMask) -> int:
    """A number that no other mask of this process has or had."""
    number = next(_numbers)
    _living[number] = mask
    return number


def by_number(number: int) -> Mask | BoundMask:
    """The mask of that number, which stays alive while it is among the last ones asked for."""
    mask = _used.pop(number, None)
    if mask is None:
        mask = _living.get(number)
    if mask is None:
        raise ArgumentError(
            f"Mask number {number} is no longer there. Keep the mask as long as what uses it."
        )
    _used[number] = mask
    if len(_used) > KEPT:
        _used.popitem(last=False)
    return mask
