"""Explanations: why a query attends to a key or not, and which terms of the mask decide it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maskwright.core.evaluate import View
from maskwright.core.nodes import Cell
from maskwright.messages import Reason, render

if TYPE_CHECKING:
    from maskwright.core.expr import Mask
    from maskwright.core.frame import Frame


@dataclass(frozen=True)
class Why:
    """What `BoundMask.why` returns: whether the cell is visible, and the reason.

    >>> import maskwright as mw
    >>> why = (mw.window(back=1) | mw.keys([0])).on(4).why(3, 0)
    >>> why.visible
    True
    >>> print(why)
    query 3 attends to key 0: keys(...) allows it (key 0 is selected)
    >>> why.text("zh")
    '查询 3 关注键 0：keys(...) 允许（键 0 被选中）'
    >>> why.reason.code
    'cell.visible'
    """

    visible: bool
    reason: Reason

    def text(self, lang: str = "en") -> str:
        """The reason as a sentence.

        Args:
            lang: "en" or "zh".

        Returns:
            The sentence.

        Raises:
            ArgumentError: If the language is not known.

        >>> import maskwright as mw
        >>> mw.causal().on(2).why(0, 1).text()
        'query 0 does not attend to key 1: causal() masks it (1 > 0)'
        """
        return render(self.reason, lang)

    def __repr__(self) -> str:
        return self.text()


def explain(mask: Mask, frame: Frame, cell: Cell, row: int) -> Why:
    """Explains one cell of a frame, whose query is in row `row`."""
    query = CellQuery(frame, cell)
    visible = query.visible(mask)
    params = {"query": row, "key": cell.key, "terms": mask._deciding_terms(query)}
    code = "cell.visible" if visible else "cell.masked"
    if cell.query != row:
        code, params["position"] = f"{code}_at", cell.query
    return Why(visible, Reason(code, params))


class CellQuery:
    """A cell, and whether each term makes it visible: terms nest, and each is evaluated once."""

    def __init__(self, frame: Frame, cell: Cell) -> None:
        self.frame, self.cell = frame, cell
        self._visible: dict[int, bool] = {}

    def visible(self, mask: Mask) -> bool:
        """Whether the mask makes the cell visible."""
        if id(mask) not in self._visible:
            cell, frame = self.cell, self.frame
            row, column = cell.query - frame.q_start, cell.key - frame.k_start
            spans = mask._spans(View(frame, row, row + 1, column, column + 1))
            self._visible[id(mask)] = bool(spans.row(0, cell.batch, cell.head))
        return self._visible[id(mask)]

    def transposed(self) -> CellQuery:
        """The cell with query and key exchanged."""
        cell = self.cell
        return CellQuery(self.frame.transposed, Cell(cell.batch, cell.head, cell.key, cell.query))
