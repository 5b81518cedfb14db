"""Why a query may or may not see a key: which terms let the cell through, and which stop it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maskwright.core.compose import And, By, Not, Or, Transpose
from maskwright.core.literal import call_brief
from maskwright.core.mask import Atom, Cell, Mask
from maskwright.core.region import Region

if TYPE_CHECKING:
    from maskwright.core.frame import Frame


@dataclass(frozen=True)
class Why:
    """The answer to `why`: whether the cell may be seen, and a sentence that says because of what.

    >>> import maskwright as mw
    >>> why = (mw.window(back=1) | mw.keys([0])).on(4).why(3, 0)
    >>> why.allowed
    True
    >>> print(why)
    query 3 may see key 0: keys(...) lets it through (key 0 is chosen)
    """

    allowed: bool
    sentence: str

    def __repr__(self) -> str:
        return self.sentence


def explain(mask: Mask, frame: Frame, batch: int, head: int, row: int, column: int) -> Why:
    """Explain one cell of a frame, by its indices."""
    cell = Cell(batch, head, frame.q_start + row, frame.k_start + column)
    sees = _sees(mask, frame, cell)
    at = f" (at position {cell.query})" if cell.query != row else ""
    start = f"query {row}{at} {'may' if sees else 'may not'} see key {column}"
    return Why(sees, f"{start}: {'; '.join(_verdicts(mask, frame, cell))}")


def brief(mask: Mask) -> str:
    """The mask as text, with its data left out."""
    if isinstance(mask, Atom):
        name, arguments = mask._call()
        return call_brief(name, arguments) if arguments or name != "where" else repr(mask)
    if isinstance(mask, (And, Or)):
        sign = " & " if isinstance(mask, And) else " | "
        return f"({sign.join(brief(term) for term in mask.terms)})"
    if isinstance(mask, Not):
        return f"~{brief(mask.term)}"
    if isinstance(mask, Transpose):
        return f"{brief(mask.term)}.T"
    assert isinstance(mask, By)
    return f"{mask.name}(...)"


def _verdicts(mask: Mask, frame: Frame, cell: Cell) -> list[str]:
    """The terms that decide, each with its reason, and those that would have decided otherwise."""
    sees = _sees(mask, frame, cell)
    if isinstance(mask, By):
        member = mask.member(cell.batch, cell.head)
        who = f"head {cell.head}" if mask.axis == "head" else f"batch row {cell.batch}"
        first, *rest = _verdicts(member, frame, cell)
        return [f"{who} follows {brief(member)}; {first}", *rest]
    if not isinstance(mask, (And, Or)):
        word = "lets it through" if sees else "stops it"
        return [f"{brief(mask)} {word} ({_reason(mask, frame, cell)})"]
    answers = [(term, _sees(term, frame, cell)) for term in mask.terms]
    word = "lets it through" if sees else "stops it"
    decided = [
        f"{brief(term)} {word} ({_reason(term, frame, cell)})"
        for term, answer in answers
        if answer == sees
    ]
    others = [brief(term) for term, answer in answers if answer != sees]
    if others and not sees:
        decided.append(f"{' and '.join(others)} would allow it")
    return decided


def _reason(mask: Mask, frame: Frame, cell: Cell) -> str:
    if isinstance(mask, Atom):
        return mask._reason(cell, _sees(mask, frame, cell))
    if isinstance(mask, Not):
        return _reason(mask.term, frame, cell)
    if isinstance(mask, Transpose):
        turned = Cell(cell.batch, cell.head, cell.key, cell.query)
        return "with query and key changed over, " + _reason(mask.term, frame.transposed, turned)
    if isinstance(mask, By):
        member = mask.member(cell.batch, cell.head)
        return f"{brief(member)}: {_reason(member, frame, cell)}"
    assert isinstance(mask, (And, Or))
    sees = _sees(mask, frame, cell)
    deciding = [term for term in mask.terms if _sees(term, frame, cell) == sees]
    return ", ".join(f"{brief(term)}: {_reason(term, frame, cell)}" for term in deciding)


def _sees(mask: Mask, frame: Frame, cell: Cell) -> bool:
    row, column = cell.query - frame.q_start, cell.key - frame.k_start
    spans = mask._read(Region(frame, row, row + 1, column, column + 1))
    return bool(spans.row(0, cell.batch, cell.head))
