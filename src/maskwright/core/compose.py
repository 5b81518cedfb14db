"""What masks are combined by: and, or, not, transposition, and a mask for each head or batch row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

from maskwright.core import spans as sets
from maskwright.core.mask import Axes, Mask, join_planes
from maskwright.errors import ArgumentError, FrameError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maskwright.core.frame import Frame
    from maskwright.core.region import Region
    from maskwright.core.spans import Spans

DEEPEST: Final = 100
LONGEST: Final = 1_000  # terms of one & or |
LARGEST: Final = 10_000
CHEAP: Final = 8  # intervals a row up to which a term is read before the others of an &
VIEW: Final = 1024  # rows that are read at a time, at most, where a term has more than that


@dataclass(frozen=True, repr=False)
class And(Mask):
    """The cells that all terms allow."""

    terms: tuple[Mask, ...]

    def __post_init__(self) -> None:
        _check_size(self)

    def _read(self, region: Region) -> Spans:
        keys = region.key_stop - region.key
        cheap: list[Mask] = []
        dear: list[Mask] = []
        for term in self.terms:
            (cheap if term._width(keys) <= CHEAP else dear).append(term)
        seen = sets.intersection([term._read(region) for term in cheap]) if cheap else None
        for term in dear:
            if seen is None:
                seen = term._read(region)
                continue
            views = [region.narrow(first, stop) for first, stop in seen.reaches()]
            if not views:
                return seen
            looked = [term._read(view) for view in views]
            seen = sets.intersection([seen, sets.union(looked) if len(looked) > 1 else looked[0]])
        return region.everything() if seen is None else seen

    def _width(self, keys: int) -> int:
        extent = self._extent()
        # Rows are read some at a time, so the keys in view are a few more than one row's.
        view = keys if extent is None else min(keys, extent + VIEW)
        return sum(term._width(view) for term in self.terms)

    def _extent(self) -> int | None:
        known = [e for e in (term._extent() for term in self.terms) if e is not None]
        return min(known, default=None)

    def _parts(self) -> tuple[Mask, ...]:
        return self.terms

    def _text(self) -> str:
        return " & ".join(_in_brackets(term, Or) for term in self.terms)


@dataclass(frozen=True, repr=False)
class Or(Mask):
    """The cells that at least one term allows."""

    terms: tuple[Mask, ...]

    def __post_init__(self) -> None:
        _check_size(self)

    def _read(self, region: Region) -> Spans:
        if not self.terms:
            return region.nothing()
        return sets.union([term._read(region) for term in self.terms])

    def _width(self, keys: int) -> int:
        return sum(term._width(keys) for term in self.terms)

    def _parts(self) -> tuple[Mask, ...]:
        return self.terms

    def _text(self) -> str:
        return " | ".join(_in_brackets(term, And) for term in self.terms)


@dataclass(frozen=True, repr=False)
class Not(Mask):
    """The cells that the term does not allow."""

    term: Mask

    def __post_init__(self) -> None:
        _check_size(self)

    def _read(self, region: Region) -> Spans:
        return self.term._read(region).complement(region.key, region.key_stop)

    def _width(self, keys: int) -> int:
        return 1 + self.term._width(keys)

    def _parts(self) -> tuple[Mask, ...]:
        return (self.term,)

    def _text(self) -> str:
        return "~" + _in_brackets(self.term, And, Or)


@dataclass(frozen=True, repr=False)
class Transpose(Mask):
    """The cells (q, k) for which the term allows (k, q)."""

    term: Mask

    def __post_init__(self) -> None:
        _check_size(self)

    @cached_property
    def _closed(self) -> Mask | None:
        """The same set said without .T, where that is known."""
        from maskwright.core.simplify import transposed

        return transposed(self.term)

    def _read(self, region: Region) -> Spans:
        return (
            self.term._read_turned(region) if self._closed is None else self._closed._read(region)
        )

    def _fit(self, frame: Frame) -> None:
        try:
            self.term._fit(frame.transposed)
        except FrameError as error:
            raise FrameError(
                f"Under .T, with queries read as keys and keys as queries, {error}"
            ) from None

    def _planes(self, frame: Frame) -> tuple[int, int]:
        return self.term._planes(frame.transposed)

    def _width(self, keys: int) -> int:
        if self._closed is None:
            return self.term._width_turned(keys)
        return self._closed._width(keys)

    def _extent(self) -> int | None:
        return None if self._closed is None else self._closed._extent()

    def _parts(self) -> tuple[Mask, ...]:
        return (self.term,)

    def _text(self) -> str:
        return _in_brackets(self.term, And, Or, Not) + ".T"


@dataclass(frozen=True, repr=False)
class By(Mask):
    """A different mask for every head, or for every batch row."""

    axis: Literal["batch", "head"]
    masks: tuple[Mask, ...]

    def __post_init__(self) -> None:
        _check_size(self)

    @property
    def name(self) -> str:
        """What the user called."""
        return f"by_{self.axis}"

    def member(self, batch: int, head: int) -> Mask:
        """The mask that this batch row or head follows."""
        index = head if self.axis == "head" else batch
        return self.masks[0 if len(self.masks) == 1 else index]

    def _read(self, region: Region) -> Spans:
        if len(self.masks) == 1:
            return self.masks[0]._read(region)
        read = {mask: mask._read(region) for mask in set(self.masks)}  # equal masks are read once
        axis = 1 if self.axis == "head" else 0
        parts = [read[mask].plane(axis, index) for index, mask in enumerate(self.masks)]
        return sets.Spans.stack(parts, axis)

    def _axes(self) -> Iterator[Axes]:
        yield Axes(f"{self.name}([{len(self.masks)} masks])", *self._own)
        yield from super()._axes()

    def _planes(self, frame: Frame) -> tuple[int, int]:
        return join_planes([self._own, super()._planes(frame)])

    @property
    def _own(self) -> tuple[int, int]:
        return (1, len(self.masks)) if self.axis == "head" else (len(self.masks), 1)

    def _width(self, keys: int) -> int:
        return max(mask._width(keys) for mask in self.masks)

    def _extent(self) -> int | None:
        extents = [mask._extent() for mask in self.masks]
        known = [extent for extent in extents if extent is not None]
        return max(known) if len(known) == len(extents) else None

    def _parts(self) -> tuple[Mask, ...]:
        return self.masks

    def _text(self) -> str:
        return f"{self.name}([{', '.join(mask._text() for mask in self.masks)}])"


def by_head(masks: Sequence[Mask]) -> Mask:
    """A different mask for every head: head h follows `masks[h]`.

    >>> import maskwright as mw
    >>> mask = mw.by_head([mw.causal(), mw.window(back=1)])
    >>> mask.on(3).dense().shape
    (1, 2, 3, 3)
    >>> mask.on(3).spans.row(2, head=1)
    [(1, 3)]
    """
    return By("head", _members(masks, "by_head"))


def by_batch(masks: Sequence[Mask]) -> Mask:
    """A different mask for every batch row: row b follows `masks[b]`.

    >>> import maskwright as mw
    >>> mw.by_batch([mw.causal(), mw.everything()]).on(2).dense().astype(int).tolist()
    [[[[1, 0], [1, 1]]], [[[1, 1], [1, 1]]]]
    """
    return By("batch", _members(masks, "by_batch"))


def both(one: Mask, other: Mask) -> Mask:
    """One & other, with nested ones made flat."""
    return And((*_terms(one, And), *_terms(other, And)))


def either(one: Mask, other: Mask) -> Mask:
    """One | other, with nested ones made flat."""
    return Or((*_terms(one, Or), *_terms(other, Or)))


def operand(other: object, sign: str) -> Mask:
    """The other side of an operator, if it is a mask."""
    if isinstance(other, Mask):
        return other
    bound = hasattr(other, "mask") and hasattr(other, "frame")
    fix = "Combine masks before binding" if bound else "Wrap an array in dense(...)"
    raise ArgumentError(
        f"{sign}: the other side is of type {type(other).__name__}, no mask. {fix}."
    )


def _terms(mask: Mask, kind: type[And] | type[Or]) -> tuple[Mask, ...]:
    return mask.terms if isinstance(mask, kind) else (mask,)


def _members(masks: Sequence[Mask], name: str) -> tuple[Mask, ...]:
    if isinstance(masks, Mask) or not hasattr(masks, "__iter__"):
        raise ArgumentError(f"{name}: got {type(masks).__name__}. Give a list of masks.")
    members = tuple(masks)
    if not members:
        raise ArgumentError(f"{name}: the list is empty. Give one mask at least.")
    for member in members:
        if not isinstance(member, Mask):
            raise ArgumentError(
                f"{name}: the list holds a {type(member).__name__}. Give a list of masks."
            )
    return members


def _check_size(mask: Mask) -> None:
    """Measure a new mask, and refuse one that could not be worked with."""
    parts = mask._parts()
    mask.__dict__["_depth"] = 1 + max(part._depth for part in parts)
    mask.__dict__["_nodes"] = 1 + sum(part._nodes for part in parts)
    if mask._depth > DEEPEST:
        raise ArgumentError(
            f"The expression nests deeper than {DEEPEST} operators. Flatten it, or give dense(...)."
        )
    if isinstance(mask, (And, Or)) and len(mask.terms) > LONGEST:
        raise ArgumentError(
            f"An & or | has more than {LONGEST} terms. Say it in fewer, such as one keys([...])."
        )
    if mask._nodes > LARGEST:
        raise ArgumentError(
            f"The expression has more than {LARGEST} parts. Make it smaller, or give dense(...)."
        )


def _in_brackets(mask: Mask, *looser: type[Mask]) -> str:
    return f"({mask._text()})" if isinstance(mask, looser) else mask._text()
