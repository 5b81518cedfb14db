"""What a caller states about a mask, read into masks: each allows all that the statement allows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from maskwright.core import atoms
from maskwright.core.expr import Mask
from maskwright.core.validate import describe_type, parse_bool, parse_int, read_array
from maskwright.errors import ArgumentError

Limits = tuple[int | None, int | None]


@dataclass(frozen=True)
class Facts:
    """What was stated about a mask."""

    causal: bool = False
    padding: Mask | None = None
    documents: Mask | None = None
    window: Limits | None = None  # (back, ahead) without the query itself, None is no limit
    expects: Mask | None = None

    @property
    def local(self) -> bool:
        """Whether queries and keys are the same tokens, so that a query should see itself."""
        return self.causal or self.documents is not None or self.window is not None

    @property
    def batch(self) -> int:
        """How many sequences the statements are about; 1 where they hold for any."""
        return max((axes.batch for mask in self.masks() for axes in mask._dims), default=1)

    def masks(self, *, but: str = "") -> list[Mask]:
        """The statements as masks, all but one."""
        bounds = {
            "causal": atoms.causal() if self.causal else None,
            "window": atoms.window(*self.window) if self.window else None,
            "padding": self.padding,
            "documents": self.documents,
            "expects": self.expects,
        }
        return [mask for name, mask in bounds.items() if mask is not None and name != but]

    def allowed(self, *, but: str = "") -> Mask:
        """The cells that all statements allow, or all but one of them."""
        return reduce(and_, self.masks(but=but) or [atoms.everything()])


def read_facts(
    causal: object,
    padding: Any,
    documents: Any,
    window: Any,
    expects: object,
    tokens: int | None,
) -> Facts:
    """The statements, checked. `tokens` is how many keys there are, where that is known."""
    if expects is not None and not isinstance(expects, Mask):
        raise ArgumentError(
            f"lint: expects is {describe_type(expects)}. Give a mask, not yet bound."
        )
    limits = _read_window(window)
    # A window given as one number is that of a decoder, as transformers has it.
    one_number = window is not None and not isinstance(window, (tuple, list))
    return Facts(
        parse_bool(causal, "lint: causal") or one_number,
        _read_padding(padding),
        _read_documents(documents, tokens),
        limits,
        expects,
    )


def sizes_in(masks: list[Mask]) -> tuple[int | None, int | None]:
    """How many queries and keys the masks' data is about, None where it does not say."""
    told = [(None, None), *(mask.implied_sizes(exact=True) for mask in masks)]
    queries, keys = (
        max((n for n in side if n is not None), default=None) for side in zip(*told, strict=True)
    )
    return queries, keys


def _read_padding(value: Any) -> Mask | None:
    if value is None or isinstance(value, Mask):
        return value
    array = read_array(value, "lint: padding")
    if array.ndim < 2 and array.dtype.kind in "iu":
        return atoms.padding(lengths=array)
    return atoms.padding(keep=array)


def _read_documents(value: Any, tokens: int | None) -> Mask | None:
    """A mask; or ids, which are as many as the tokens; or lengths, which are fewer."""
    if value is None or isinstance(value, Mask):
        return value
    try:
        array = read_array(value, "lint: documents")
    except ArgumentError:
        return atoms.documents(lengths=value)  # ragged, or no data at all
    if array.ndim and array.shape[-1] == tokens:
        return atoms.documents(ids=array)
    return atoms.documents(lengths=value)


def _read_window(value: Any) -> Limits | None:
    if value is None:
        return None
    if not isinstance(value, (tuple, list)):
        return parse_int(value, "lint: window", minimum=1) - 1, 0
    if len(value) != 2:
        raise ArgumentError(
            f"lint: window has {len(value)} numbers. Give how many keys a query sees, or (back, ahead)."
        )
    back, ahead = (
        None if side is None or parse_int(side, f"lint: window[{i}]") == -1
        else parse_int(side, f"lint: window[{i}]", minimum=0)
        for i, side in enumerate(value)
    )  # fmt: skip
    return back, ahead
