"""What a target is: its capabilities, as data, and the two ways in which it may refuse."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """What a framework's form of a mask can say, and how it says it.

    >>> import maskwright as mw
    >>> mw.capabilities()["torch.mha"].polarity
    'True drops'
    """

    name: str
    gives: str  # what `lower` returns
    says: str  # which masks it can say, as the end of "it can say …"
    polarity: str  # which value keeps
    shape: str  # B batch, H heads, T queries, S keys
    alignment: str  # where the form itself puts the first query
    empty_rows: str  # what the target gives for a row that sees nothing
    reads: str = ""  # an array of cells: "keep" or "drop" by truth, "additive"; "" if it takes none
    adds_floats: bool = False  # and floats, which it adds, beside truth values
    axes: str = ""  # what an array's axes are, where they do not line up from the right
    masks: int = 1  # how many it takes
    needs: str = ""  # the framework that must be installed
    checked: str = "run here"  # or "format checked, kernel not run here"
    instead: tuple[str, ...] = ()  # what can say the masks that this one can't


class CannotSay(Exception):  # noqa: N818 - caught by `lower`, which names the term
    """The target has no form for this mask, for a reason that may be empty."""


class LeavesEmpty(CannotSay):
    """The target would not give zero for the row (batch, head, query), which sees nothing."""

    def __init__(self, batch: int, head: int, query: int) -> None:
        super().__init__()
        self.row = batch, head, query
