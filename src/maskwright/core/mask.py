"""Masks as expressions: frozen, hashable, comparable, composed by & | ~ and -.

What may enter here: the interface `Mask`, and the ways to combine masks. The atoms, which name the
sets that are combined, live in the `atoms_*` files. An expression has no size; `.on()` gives it one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, NoReturn

from maskwright.core import spans as sets
from maskwright.core.frame import Frame, make_frame, merge_axis
from maskwright.errors import ArgumentError, FrameError, TruthError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maskwright.core.bound import BoundMask
    from maskwright.core.region import Region
    from maskwright.core.spans import Spans

DEEPEST: Final = 100
LARGEST: Final = 10_000
CHEAP: Final = 8  # intervals a row up to which a term is read before the others of an &


class Cell(NamedTuple):
    """One (batch row, head, query position, key position)."""

    batch: int
    head: int
    query: int
    key: int


class Axes(NamedTuple):
    """How many batch rows and heads a term's data has, 1 where it has no say."""

    owner: str
    batch: int
    heads: int


class Mask(ABC):
    """The set of (batch, head, query, key) cells in which a query may see a key.

    Masks are made by atoms such as `causal()` and `padding(...)` and combined by `&` (and),
    `|` (or), `~` (not) and `-` (and not). They have no size until `.on()` binds one.

    >>> import maskwright as mw
    >>> mask = mw.causal() & ~mw.keys([1])
    >>> mask
    causal() & ~keys([1])
    >>> print(mask.on(3))
    causal() & ~keys([1])
    3 queries × 3 keys, density 0.44
    ■ · ·
    ■ · ·
    ■ · ■
    """

    __array_ufunc__: ClassVar[None] = None  # numpy arrays leave & | - to us, and we explain

    # ── saying ────────────────────────────────────────────────────────────────────────────────

    def __and__(self, other: Mask) -> Mask:
        return And((*_terms(self, And), *_terms(_operand(other, "&"), And)))

    def __or__(self, other: Mask) -> Mask:
        return Or((*_terms(self, Or), *_terms(_operand(other, "|"), Or)))

    def __sub__(self, other: Mask) -> Mask:
        return self & ~_operand(other, "-")

    def __invert__(self) -> Mask:
        return Not(self)

    def __rand__(self, other: object) -> NoReturn:
        _operand(other, "&")
        raise AssertionError  # a Mask on the left would have answered itself

    __ror__ = __rsub__ = __rand__

    @property
    def T(self) -> Mask:  # noqa: N802 - numpy's name for it
        """Queries and keys change places: q may see k where k could see q.

        >>> import maskwright as mw
        >>> both = mw.padding(lengths=[2]) & mw.padding(lengths=[2]).T
        >>> both.on(3).dense().astype(int).tolist()
        [[[[1, 1, 0], [1, 1, 0], [0, 0, 0]]]]
        """
        return Transpose(self)

    def __bool__(self) -> NoReturn:
        raise TruthError(
            "A mask is a set of cells, neither true nor false. "
            "Write & for `and`, | for `or`, ~ for `not`."
        )

    # ── binding ───────────────────────────────────────────────────────────────────────────────

    def on(
        self,
        q_len: int,
        kv_len: int | None = None,
        batch: int | None = None,
        heads: int | None = None,
        q_start: int | None = None,
    ) -> BoundMask:
        """This mask for `q_len` queries and `kv_len` keys (as many, if not given).

        The last query sits at the last key, as with a KV cache; `q_start=0` puts the first query
        at the first key instead. Batch and heads come from the mask's data if not given.

        >>> import maskwright as mw
        >>> print(mw.causal().on(2, kv_len=4))
        causal()
        2 queries × 4 keys, queries at 2 … 3, density 0.88
        ■ ■ ■ ·
        ■ ■ ■ ■
        >>> print(mw.causal().on(2, kv_len=4, q_start=0))
        causal()
        2 queries × 4 keys, density 0.38
        ■ · · ·
        ■ ■ · ·
        """
        from maskwright.core.bound import BoundMask

        axes = list(self._axes())
        frame = make_frame(
            q_len,
            kv_len,
            batch,
            heads,
            q_start,
            data_batch=merge_axis([(a.batch, a.owner) for a in axes], "batch"),
            data_heads=merge_axis([(a.heads, a.owner) for a in axes], "heads"),
        )
        self._fit(frame)
        return BoundMask(self, frame)

    def rows(
        self,
        start: int,
        stop: int,
        kv_len: int | None = None,
        batch: int | None = None,
        heads: int | None = None,
    ) -> BoundMask:
        """The queries at positions `start` … `stop - 1`, with keys 0 … `kv_len - 1`.

        `kv_len` is `stop` if not given: one piece of a chunked prefill, after all that came before.

        >>> import maskwright as mw
        >>> mw.window(back=1).rows(2, 4).dense().astype(int).tolist()
        [[[[0, 1, 1, 0], [0, 0, 1, 1]]]]
        """
        return self.on(stop - start, stop if kv_len is None else kv_len, batch, heads, start)

    def step(
        self,
        position: int,
        kv_len: int | None = None,
        batch: int | None = None,
        heads: int | None = None,
    ) -> BoundMask:
        """The one query at `position`, with the `position + 1` keys cached by then.

        >>> import maskwright as mw
        >>> mw.window(back=1).step(3).dense().astype(int).tolist()
        [[[[0, 0, 1, 1]]]]
        """
        return self.rows(position, position + 1, kv_len, batch, heads)

    # ── what a kind of mask must answer ───────────────────────────────────────────────────────

    @abstractmethod
    def _read(self, region: Region) -> Spans:
        """The spans of exactly this region."""

    @abstractmethod
    def _fit(self, frame: Frame) -> None:
        """Raise FrameError where the mask's data does not fit the frame."""

    @abstractmethod
    def _axes(self) -> Iterator[Axes]:
        """The batch and head counts of the data in this mask."""

    @abstractmethod
    def _width(self, keys: int) -> int:
        """At most so many intervals a row has, among `keys` keys in view."""

    @abstractmethod
    def _extent(self) -> int | None:
        """At most so many keys lie between a row's first and last; None if there is no limit."""

    @abstractmethod
    def _text(self) -> str:
        """Source that makes this mask again."""

    @abstractmethod
    def _parts(self) -> tuple[Mask, ...]:
        """The masks that this one is made of."""

    def _planes(self, frame: Frame) -> tuple[int, int]:
        """How many batch rows and heads differ, 1 along an axis on which nothing varies."""
        return _join_planes(part._planes(frame) for part in self._parts())

    @cached_property
    def _depth(self) -> int:
        """How deep the expression nests; an atom is 1."""
        return 1 + max((part._depth for part in self._parts()), default=0)

    @cached_property
    def _nodes(self) -> int:
        """How many atoms and operators the expression has."""
        return 1 + sum(part._nodes for part in self._parts())

    def __repr__(self) -> str:
        return self._text()


class Atom(Mask):
    """The interface of masks that are not made of others."""

    name: ClassVar[str]

    def _parts(self) -> tuple[Mask, ...]:
        return ()

    def _fit(self, frame: Frame) -> None:
        """Choices of positions fit every frame; atoms with data about tokens check it here."""

    def _axes(self) -> Iterator[Axes]:
        return iter(())

    def _planes(self, frame: Frame) -> tuple[int, int]:  # noqa: ARG002 - the data has the say
        return _join_planes((axes.batch, axes.heads) for axes in self._axes())

    def _width(self, keys: int) -> int:  # noqa: ARG002 - one interval, however many keys
        return 1

    def _extent(self) -> int | None:
        return None

    def _call(self) -> tuple[str, dict[str, Any]]:
        """The name and the arguments of the call that makes this atom."""
        return self.name, {}

    @abstractmethod
    def _reason(self, cell: Cell, sees: bool) -> str:
        """Why this atom lets the cell through, or stops it: a few words."""

    def _text(self) -> str:
        from maskwright.core.literal import call_text

        return call_text(*self._call())


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
            first, stop = seen.reach()
            if first == stop:
                return seen
            seen = sets.intersection([seen, term._read(region.narrow(first, stop))])
        return region.everything() if seen is None else seen

    def _fit(self, frame: Frame) -> None:
        for term in self.terms:
            term._fit(frame)

    def _axes(self) -> Iterator[Axes]:
        for term in self.terms:
            yield from term._axes()

    def _width(self, keys: int) -> int:
        extent = self._extent()
        # Rows are read some at a time, so the keys in view are a few more than one row's.
        view = keys if extent is None else min(keys, extent + 1024)
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

    def _fit(self, frame: Frame) -> None:
        for term in self.terms:
            term._fit(frame)

    def _axes(self) -> Iterator[Axes]:
        for term in self.terms:
            yield from term._axes()

    def _width(self, keys: int) -> int:
        return sum(term._width(keys) for term in self.terms)

    def _extent(self) -> int | None:
        return None

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

    def _fit(self, frame: Frame) -> None:
        self.term._fit(frame)

    def _axes(self) -> Iterator[Axes]:
        return self.term._axes()

    def _width(self, keys: int) -> int:
        return 1 + self.term._width(keys)

    def _extent(self) -> int | None:
        return None

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
        if self._closed is not None:
            return self._closed._read(region)
        turned = self.term._read(region.transposed).transpose(region.row, region.row_stop)
        return turned.shift(region.key, region.frame.kv_len)

    def _fit(self, frame: Frame) -> None:
        try:
            self.term._fit(frame.transposed)
        except FrameError as error:
            raise FrameError(f"Under .T, where queries and keys change places: {error}") from None

    def _planes(self, frame: Frame) -> tuple[int, int]:
        return self.term._planes(frame.transposed)

    def _axes(self) -> Iterator[Axes]:
        return self.term._axes()

    def _width(self, keys: int) -> int:
        return keys // 2 + 1 if self._closed is None else self._closed._width(keys)

    def _extent(self) -> int | None:
        return None if self._closed is None else self._closed._extent()

    def _parts(self) -> tuple[Mask, ...]:
        return (self.term,)

    def _text(self) -> str:
        return _in_brackets(self.term, And, Or, Not) + ".T"


@dataclass(frozen=True, repr=False)
class ByHead(Mask):
    """A different mask for every head."""

    masks: tuple[Mask, ...]

    def __post_init__(self) -> None:
        _check_size(self)

    def _read(self, region: Region) -> Spans:
        return _read_by(self.masks, region, axis=1, count=region.frame.heads)

    def _fit(self, frame: Frame) -> None:
        for mask in self.masks:
            mask._fit(frame)

    def _axes(self) -> Iterator[Axes]:
        yield Axes(f"by_head([{len(self.masks)} masks])", 1, len(self.masks))
        for mask in self.masks:
            yield from mask._axes()

    def _width(self, keys: int) -> int:
        return max((mask._width(keys) for mask in self.masks), default=1)

    def _extent(self) -> int | None:
        return _widest(self.masks)

    def _planes(self, frame: Frame) -> tuple[int, int]:
        return _join_planes([(1, len(self.masks)), super()._planes(frame)])

    def _parts(self) -> tuple[Mask, ...]:
        return self.masks

    def _text(self) -> str:
        return f"by_head([{', '.join(mask._text() for mask in self.masks)}])"


@dataclass(frozen=True, repr=False)
class ByBatch(Mask):
    """A different mask for every batch row."""

    masks: tuple[Mask, ...]

    def __post_init__(self) -> None:
        _check_size(self)

    def _read(self, region: Region) -> Spans:
        return _read_by(self.masks, region, axis=0, count=region.frame.batch)

    def _fit(self, frame: Frame) -> None:
        for mask in self.masks:
            mask._fit(frame)

    def _axes(self) -> Iterator[Axes]:
        yield Axes(f"by_batch([{len(self.masks)} masks])", len(self.masks), 1)
        for mask in self.masks:
            yield from mask._axes()

    def _width(self, keys: int) -> int:
        return max((mask._width(keys) for mask in self.masks), default=1)

    def _extent(self) -> int | None:
        return _widest(self.masks)

    def _planes(self, frame: Frame) -> tuple[int, int]:
        return _join_planes([(len(self.masks), 1), super()._planes(frame)])

    def _parts(self) -> tuple[Mask, ...]:
        return self.masks

    def _text(self) -> str:
        return f"by_batch([{', '.join(mask._text() for mask in self.masks)}])"


def by_head(masks: Sequence[Mask]) -> Mask:
    """A different mask for every head: head h follows `masks[h]`.

    >>> import maskwright as mw
    >>> mask = mw.by_head([mw.causal(), mw.window(back=1)])
    >>> mask.on(3).dense().shape
    (1, 2, 3, 3)
    >>> mask.on(3).spans.row(2, head=1)
    [(1, 3)]
    """
    return ByHead(_members(masks, "by_head"))


def by_batch(masks: Sequence[Mask]) -> Mask:
    """A different mask for every batch row: row b follows `masks[b]`.

    >>> import maskwright as mw
    >>> mw.by_batch([mw.causal(), mw.everything()]).on(2).dense().astype(int).tolist()
    [[[[1, 0], [1, 1]]], [[[1, 1], [1, 1]]]]
    """
    return ByBatch(_members(masks, "by_batch"))


def walk(mask: Mask) -> Iterator[Mask]:
    """The mask and all masks in it, outermost first."""
    yield mask
    for part in mask._parts():
        yield from walk(part)


def _read_by(masks: tuple[Mask, ...], region: Region, axis: int, count: int) -> Spans:
    from maskwright.core.spans import Spans

    if len(masks) == 1:
        return masks[0]._read(region)
    if not count:
        return region.nothing()
    read = {mask: mask._read(region) for mask in set(masks)}  # equal masks are read once
    return Spans.stack([read[mask].plane(axis, i) for i, mask in enumerate(masks)], axis)


def _join_planes(planes: Iterable[tuple[int, int]]) -> tuple[int, int]:
    batch = heads = 1
    for b, h in planes:
        batch, heads = (b if b != 1 else batch), (h if h != 1 else heads)
    return batch, heads


def _widest(masks: Iterable[Mask]) -> int | None:
    extents = [mask._extent() for mask in masks]
    known = [extent for extent in extents if extent is not None]
    return max(known, default=None) if len(known) == len(extents) else None


def _terms(mask: Mask, kind: type[And] | type[Or]) -> tuple[Mask, ...]:
    return mask.terms if isinstance(mask, kind) else (mask,)


def _operand(other: object, sign: str) -> Mask:
    if isinstance(other, Mask):
        return other
    raise ArgumentError(
        f"{sign}: the other side is of type {type(other).__name__}. "
        "Combine masks with masks; wrap an array in dense(...)."
    )


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
    if mask._depth > DEEPEST:
        raise ArgumentError(
            f"The expression nests deeper than {DEEPEST} operators. Flatten it, or give dense(...)."
        )
    if mask._nodes > LARGEST:
        raise ArgumentError(
            f"The expression has more than {LARGEST} parts. Make it smaller, or give dense(...)."
        )


def _in_brackets(mask: Mask, *looser: type[Mask]) -> str:
    return f"({mask._text()})" if isinstance(mask, looser) else mask._text()
