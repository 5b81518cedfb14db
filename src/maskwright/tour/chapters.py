"""All chapters, in the order of the walk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maskwright.tour.audit import AUDIT
from maskwright.tour.cheat import CHEAT
from maskwright.tour.frameworks import FRAMEWORKS
from maskwright.tour.masks import SAY, SEE, WHY
from maskwright.tour.numbers import NUMBERS
from maskwright.tour.onward import ONWARD
from maskwright.tour.speed import SPEED

if TYPE_CHECKING:
    from maskwright.tour.chapter import Chapter

CHAPTERS: Final[tuple[Chapter, ...]] = (
    *(SAY, SEE, WHY),
    *(NUMBERS, FRAMEWORKS, SPEED),
    *(AUDIT, CHEAT, ONWARD),
)
