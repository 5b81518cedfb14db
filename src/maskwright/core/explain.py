"""Why a query may or may not see a key: which terms let the cell through, and which stop it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maskwright.core.evaluate import View
from maskwright.core.expr import And, Atom, Cell, Mask, Not, Or, PerAxis, Transpose
from maskwright.core.source_repr import call_summary

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


def explain(mask: Mask, frame: Frame, cell: Cell, row: int) -> Why:
    """Explain one cell of a frame, whose query the user counts as `row`."""
    asked = _Asked(frame, cell)
    sees = asked.sees(mask)
    at = f" (at position {cell.query})" if cell.query != row else ""
    start = f"query {row}{at} {'may' if sees else 'may not'} see key {cell.key}"
    return Why(sees, f"{start}: {'; '.join(_verdicts(mask, asked))}")


def brief(mask: Mask) -> str:
    """The mask as text, with its data left out."""
    if isinstance(mask, Atom):
        name, arguments = mask._call()
        return call_summary(name, arguments) if arguments or name != "where" else repr(mask)
    if isinstance(mask, (And, Or)):
        sign = " & " if isinstance(mask, And) else " | "
        return f"({sign.join(brief(term) for term in mask.terms)})"
    if isinstance(mask, Not):
        return f"~{brief(mask.term)}"
    if isinstance(mask, Transpose):
        return f"{brief(mask.term)}.T"
    assert isinstance(mask, PerAxis)
    return f"{mask.name}(...)"


class _Asked:
    """A cell, and the answers about it so far: terms nest, and each is asked once."""

    def __init__(self, frame: Frame, cell: Cell) -> None:
        self.frame, self.cell = frame, cell
        self._answers: dict[int, bool] = {}

    def sees(self, mask: Mask) -> bool:
        """Does this term allow the cell?"""
        if id(mask) not in self._answers:
            cell, frame = self.cell, self.frame
            row, column = cell.query - frame.q_start, cell.key - frame.k_start
            spans = mask._spans(View(frame, row, row + 1, column, column + 1))
            self._answers[id(mask)] = bool(spans.row(0, cell.batch, cell.head))
        return self._answers[id(mask)]

    def turned(self) -> _Asked:
        """The cell with query and key changed over."""
        cell = self.cell
        return _Asked(self.frame.transposed, Cell(cell.batch, cell.head, cell.key, cell.query))


def _verdicts(mask: Mask, asked: _Asked) -> list[str]:
    """The terms that decide, each with its reason, and those that would have decided otherwise."""
    sees, cell = asked.sees(mask), asked.cell
    if isinstance(mask, PerAxis):
        member = mask.member(cell.batch, cell.head)
        who = f"head {cell.head}" if mask.axis == "head" else f"batch row {cell.batch}"
        first, *rest = _verdicts(member, asked)
        return [f"{who} follows {brief(member)}; {first}", *rest]
    terms = mask.terms if isinstance(mask, (And, Or)) else (mask,)
    word = "lets it through" if sees else "stops it"
    decided = [
        f"{brief(term)} {word} ({_reason(term, asked)})"
        for term in terms
        if asked.sees(term) == sees
    ]
    others = [brief(term) for term in terms if asked.sees(term) != sees]
    if others and not sees:
        decided.append(f"{' and '.join(others)} would allow it")
    return decided


def _reason(mask: Mask, asked: _Asked) -> str:
    if isinstance(mask, Atom):
        return mask._reason(asked.cell, asked.sees(mask))
    if isinstance(mask, Not):
        return _reason(mask.term, asked)
    if isinstance(mask, Transpose):
        return "with query and key changed over, " + _reason(mask.term, asked.turned())
    if isinstance(mask, PerAxis):
        member = mask.member(asked.cell.batch, asked.cell.head)
        return f"{brief(member)}: {_reason(member, asked)}"
    assert isinstance(mask, (And, Or))
    sees = asked.sees(mask)
    deciding = [term for term in mask.terms if asked.sees(term) == sees]
    return ", ".join(f"{brief(term)}: {_reason(term, asked)}" for term in deciding)
