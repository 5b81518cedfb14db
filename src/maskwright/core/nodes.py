"""What the nodes of a mask expression pass to each other: cells, rows, sizes and formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from maskwright.core.validate import FrozenArray

Operator = Literal["&", "|", "~"]


class Cell(NamedTuple):
    """One (batch row, head, query position, key position)."""

    batch: int
    head: int
    query: int
    key: int


class Sizes(NamedTuple):
    """Number of queries and keys that a mask's data describes; None where it describes neither."""

    queries: int | None = None
    keys: int | None = None


class Row(NamedTuple):
    """One query row of one plane: its position, and the keys `first` … `stop - 1`.

    `batch` and `head` are 0 where nothing varies.
    """

    query: int
    first: int
    stop: int
    batch: int
    head: int

    def cut(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The interval `start` … `stop - 1`, cut to the keys of the row; none if it is empty."""
        first, last = self.first, self.stop
        start, stop = first if start < first else start, last if stop > last else stop
        return [(start, stop)] if start < stop else []


class FormulaWriter(Protocol):
    """Writes source code for formulas, as code generation passes it to the nodes."""

    def constant(self, value: bool, row: str, col: str) -> str:
        """An array of one value."""

    def before(self, position: str, lengths: FrozenArray) -> str:
        """Whether `position` is one of the first `lengths` tokens of its sequence."""

    def lookup(self, name: str, table: Any, position: str) -> str:
        """The entry of a (batch, tokens) table at `position`."""

    def contains(self, positions: Any, position: str) -> str:
        """Whether `position` is in a list of positions."""

    @property
    def tokens(self) -> int:
        """Number of positions of the frame."""
