"""The operators that combine masks: `&`, `|`, `~`, `.T`, `by_head` and `by_batch`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from maskwright.core import regions
from maskwright.core import spans as span_ops
from maskwright.core.cache import mask_property
from maskwright.core.expr import (
    MAX_CHEAP_INTERVALS,
    MAX_NODES,
    MAX_VIEW_ROWS,
    OPERATORS,
    UNBOUNDED,
    Atom,
    KeyOnly,
    Mask,
    _verdicts,
    brief,
    transpose,
)
from maskwright.core.expression import CompositeExpression
from maskwright.core.frame import BroadcastDims, Frame, merge_dims
from maskwright.core.interval_ops import complement_row, intersect_rows, unite_rows
from maskwright.core.nodes import Sizes
from maskwright.errors import ArgumentError, FrameError
from maskwright.messages import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.core.evaluate import View
    from maskwright.core.explain import CellQuery
    from maskwright.core.nodes import FormulaWriter, Operator, Row
    from maskwright.core.regions import SignedRegions
    from maskwright.core.spans import Spans


class Composite(CompositeExpression, Mask):
    """Base class of masks that are composed of others."""

    _members: tuple[Mask, ...]

    def _bound_intervals(self) -> int:
        """The bound `_max_intervals` from those of the parts."""
        return UNBOUNDED

    def __post_init__(self) -> None:
        super().__post_init__()
        nodes, known = 1, True
        for part in self._members:
            nodes += part._nodes
            known = known and part._dims_known
        intervals = min(self._bound_intervals(), UNBOUNDED)
        self.__dict__.update(_nodes=nodes, _dims_known=known, _max_intervals=intervals)
        if nodes > MAX_NODES:
            raise ArgumentError(
                f"The expression has {nodes} nodes, more than {MAX_NODES}. "
                "Make it smaller, or pass an array to dense(...)."
            )

    @abstractmethod
    def _with_parts(self, parts: tuple[Mask, ...]) -> Mask:
        """The same operator on other masks."""

    def _planes(self, frame: Frame) -> tuple[int, int]:
        batch, heads = merge_dims(self._dims)
        if not self._dims_known:
            for part in self._members:
                b, h = part._planes(frame)
                batch, heads = (b if b != 1 else batch), (h if h != 1 else heads)
        return batch, heads

    def _transposed(self) -> Mask | None:
        return self._with_parts(tuple(transpose(part) for part in self._members))

    def _sizes(self, exact: bool) -> Sizes:
        sizes = [part._sizes(exact) for part in self._members]
        queries = (size.queries for size in sizes if size.queries is not None)
        keys = (size.keys for size in sizes if size.keys is not None)
        return Sizes(max(queries, default=None), max(keys, default=None))


class Chain(Composite):
    """Base class of `&` and `|`, which have any number of terms in any order."""

    terms: tuple[Mask, ...]
    symbol: ClassVar[str]
    _precedence = 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Chain) or self.symbol != other.symbol:
            return NotImplemented if not isinstance(other, Mask) else False
        return self.terms == other.terms or set(self.terms) == set(other.terms)

    def __hash__(self) -> int:
        return hash((self.symbol, frozenset(self.terms)))

    def _terms_of(self, operator: type[Mask]) -> tuple[Mask, ...]:
        return self.terms if type(self) is operator else (self,)

    def _parts(self) -> tuple[Mask, ...]:
        return self.terms

    def _with_parts(self, parts: tuple[Mask, ...]) -> Mask:
        return type(self)(parts)

    def _width(self, keys: int) -> int:
        return sum(term._width(keys) for term in self.terms)

    def _text(self, data: bool = True) -> str:
        shown = [
            f"({term._text(data)})"
            if term._precedence == 1 and type(term) is not type(self)
            else term._text(data)
            for term in self.terms
        ]
        return f" {self.symbol} ".join(shown)

    def _explain(self, query: CellQuery) -> Reason:
        visible = query.visible(self)
        deciding = tuple(
            Reason("term.reason", {"term": brief(term), "reason": term._explain(query)})
            for term in self.terms
            if query.visible(term) == visible
        )
        return Reason("terms", {"terms": deciding})

    def _deciding_terms(self, query: CellQuery) -> tuple[Reason, ...]:
        return _verdicts(self.terms, query, query.visible(self))

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str | None:
        neutral = "everything" if self.symbol == "&" else "nothing"
        terms = [term for term in self.terms if getattr(type(term), "name", "") != neutral]
        if not terms:
            return writer.constant(self.symbol == "&", row, col)
        formulas = []
        for term in terms:
            formula = term._formula(writer, row, col)
            if formula is None:
                return None
            formulas.append(formula)
        return f"({f' {self.symbol} '.join(formulas)})" if len(formulas) > 1 else formulas[0]


@dataclass(frozen=True, repr=False, eq=False)
class And(Chain):
    """The cells that are visible in all terms."""

    terms: tuple[Mask, ...]
    operator: ClassVar[str] = "and"
    symbol: ClassVar[str] = "&"

    def _spans(self, view: View) -> Spans:
        keys = view.key_stop - view.key
        cheap: list[Spans] = []
        expensive: list[Mask] = []
        for term in self.terms:
            if term._width(keys) <= MAX_CHEAP_INTERVALS:
                cheap.append(term._spans(view))
            else:
                expensive.append(term)
        spans = span_ops.intersection(cheap) if cheap else None
        for term in expensive:
            if spans is None:
                spans = term._spans(view)
                continue
            views = [view.narrow(first, stop) for first, stop in spans.reaches()]
            if not views:
                return spans
            parts = [term._spans(part) for part in views]
            spans = span_ops.intersection(
                [spans, span_ops.union(parts) if len(parts) > 1 else parts[0]]
            )
        return view.everything() if spans is None else spans

    def _row(self, row: Row) -> list[tuple[int, int]] | None:
        intervals = row.cut(row.first, row.stop)
        for term in self.terms:
            part = term._row(row)
            if part is None:
                return None
            intervals = intersect_rows(intervals, part)
        return intervals

    def _width(self, keys: int) -> int:
        extent = self._extent()
        # A block has several rows, so its view has more keys than one row attends to.
        view = keys if extent is None else min(keys, extent + MAX_VIEW_ROWS)
        return sum(term._width(view) for term in self.terms)

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:
        if operator == "~":
            return None
        terms: dict[Mask, None] = {}  # without repetition
        for term in self.terms:
            sequence = term._sequence(frame)
            if sequence is not None:
                terms.update(dict.fromkeys(sequence._terms_of(And)))
        return And(tuple(terms)) if len(terms) > 1 else next(iter(terms), None)

    def _bound_intervals(self) -> int:
        # n intervals have n - 1 gaps between them, and each gap of the intersection is one of a term.
        return 1 + sum(max(term._max_intervals, 1) - 1 for term in self.terms)

    def _extent(self) -> int | None:
        known = [e for e in (term._extent() for term in self.terms) if e is not None]
        return min(known, default=None)

    def _regions(self, batch: int, head: int) -> SignedRegions | None:
        return regions.intersection([term._regions(batch, head) for term in self.terms])


@dataclass(frozen=True, repr=False, eq=False)
class Or(Chain):
    """The cells that are visible in at least one term."""

    terms: tuple[Mask, ...]
    operator: ClassVar[str] = "or"
    symbol: ClassVar[str] = "|"

    def _spans(self, view: View) -> Spans:
        if not self.terms:
            return view.nothing()
        return span_ops.union([term._spans(view) for term in self.terms])

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:
        # Sequences with a prefix in common: every other term is a prefix.
        if operator == "~":
            return None
        prefixes = tuple(term for term in self.terms if term._sequence(frame, "~") is not None)
        rest = [term for term in self.terms if term not in prefixes]
        sequence = rest[0]._sequence(frame, "|") if len(rest) == 1 else None
        return None if sequence is None else Or((sequence, *prefixes))

    def _bound_intervals(self) -> int:
        return sum(term._max_intervals for term in self.terms)

    def _row(self, row: Row) -> list[tuple[int, int]] | None:
        intervals: list[tuple[int, int]] = []
        for term in self.terms:
            part = term._row(row)
            if part is None:
                return None
            intervals = unite_rows(intervals, part)
        return intervals

    def _regions(self, batch: int, head: int) -> SignedRegions | None:
        # De Morgan: the complement of the intersection of the complements.
        terms = [regions.complement(term._regions(batch, head)) for term in self.terms]
        return regions.complement(regions.intersection(terms))


class Unary(Composite):
    """Base class of `~` and `.T`, which have one term."""

    term: Mask

    def _parts(self) -> tuple[Mask, ...]:
        return (self.term,)

    def _with_parts(self, parts: tuple[Mask, ...]) -> Mask:
        return type(self)(*parts)

    def _operands(self, parts: list[Any]) -> Any:
        return parts[0]


@dataclass(frozen=True, repr=False)
class Not(Unary):
    """The cells that the term masks out."""

    term: Mask
    operator: ClassVar[str] = "not"
    _precedence = 2

    def _spans(self, view: View) -> Spans:
        return self.term._spans(view).complement(view.key, view.key_stop)

    def _row(self, row: Row) -> list[tuple[int, int]] | None:
        part = self.term._row(row)
        return None if part is None else complement_row(part, row.first, row.stop)

    def _width(self, keys: int) -> int:
        return 1 + self.term._width(keys)

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:
        return self.term._sequence(frame, "~") if operator == "&" else None

    def _bound_intervals(self) -> int:
        return 1 + self.term._max_intervals

    def _text(self, data: bool = True) -> str:
        return f"~{self.term._in_brackets(2, data)}"

    def _explain(self, query: CellQuery) -> Reason:
        return self.term._explain(query)

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str | None:
        term = self.term._formula(writer, row, col)
        return None if term is None else f"~{term}"

    def _regions(self, batch: int, head: int) -> SignedRegions | None:
        return regions.complement(self.term._regions(batch, head))


@dataclass(frozen=True, repr=False)
class Transpose(Unary):
    """The cells (q, k) for which (k, q) is visible in the term."""

    term: Mask
    operator: ClassVar[str] = "transpose"

    @mask_property
    def _closed(self) -> Mask | None:
        """An equal mask without `.T`, if one is known."""
        return self.term._transposed()

    def _spans(self, view: View) -> Spans:
        closed = self._closed
        return self.term._spans_transposed(view) if closed is None else closed._spans(view)

    def _row(self, row: Row) -> list[tuple[int, int]] | None:
        return None if self._closed is None else self._closed._row(row)

    def _fit(self, frame: Frame) -> None:
        try:
            self.term._fit(frame.transposed)
        except FrameError as error:
            raise FrameError(f"Under .T, with queries and keys exchanged: {error}") from None

    def _planes(self, frame: Frame) -> tuple[int, int]:
        return super()._planes(frame) if self._dims_known else self.term._planes(frame.transposed)

    def _bound_intervals(self) -> int:
        if isinstance(self.term, KeyOnly):
            return 1  # all keys or none
        if not isinstance(self.term, Atom) or self.term._max_intervals == UNBOUNDED:
            return UNBOUNDED
        closed = self.term._transposed()
        return UNBOUNDED if closed is None else closed._max_intervals

    def _width(self, keys: int) -> int:
        closed = self._closed
        return self.term._width_transposed(keys) if closed is None else closed._width(keys)

    def _extent(self) -> int | None:
        return None if self._closed is None else self._closed._extent()

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:
        return None if self._closed is None else self._closed._sequence(frame, operator)

    def _transposed(self) -> Mask:
        return self.term

    def _sizes(self, exact: bool) -> Sizes:
        queries, keys = self.term._sizes(exact)
        return Sizes(keys, queries)

    @mask_property
    def _query_tokens(self) -> int | None:
        closed = self._closed
        return self.term._sizes(exact=False).keys if closed is None else closed._query_tokens

    def _text(self, data: bool = True) -> str:
        return f"{self.term._in_brackets(3, data)}.T"

    def _explain(self, query: CellQuery) -> Reason:
        return Reason("transpose", {"reason": self.term._explain(query.transposed())})

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str | None:
        return self.term._formula(writer, col, row)

    def _regions(self, batch: int, head: int) -> SignedRegions | None:
        return regions.transpose(self.term._regions(batch, head))


@dataclass(frozen=True, repr=False)
class PerAxis(Composite):
    """A separate mask for each head, or for each batch row."""

    axis: Literal["batch", "head"]
    masks: tuple[Mask, ...]
    _max_parts = MAX_NODES

    @property
    def operator(self) -> str:  # type: ignore[override]
        """The function that constructs this mask: by_head or by_batch."""
        return f"by_{self.axis}"

    def member(self, batch: int, head: int) -> Mask:
        """The mask of this batch row or head."""
        index = head if self.axis == "head" else batch
        return self.masks[0 if len(self.masks) == 1 else index]

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        count = len(self.masks)
        batch, heads = (1, count) if self.axis == "head" else (count, 1)
        return BroadcastDims(f"{self.operator}([{count} masks])", batch, heads), *super()._dims

    def _spans(self, view: View) -> Spans:
        if len(self.masks) == 1:
            return self.masks[0]._spans(view)
        spans = {mask: mask._spans(view) for mask in set(self.masks)}  # equal masks once
        axis = 1 if self.axis == "head" else 0
        parts = [spans[mask].plane(axis, index) for index, mask in enumerate(self.masks)]
        return span_ops.Spans.stack(parts, axis)

    def _row(self, row: Row) -> list[tuple[int, int]] | None:
        return self.member(row.batch, row.head)._row(row)

    def _width(self, keys: int) -> int:
        return max(mask._width(keys) for mask in self.masks)

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:
        if operator != "&":
            return None
        sequences = {mask: mask._sequence(frame) for mask in set(self.masks)}  # equal masks once
        distinct = set(sequences.values())
        if self.axis == "head" or distinct == {None}:
            return distinct.pop() if len(distinct) == 1 else None
        # In a row that determines none, all tokens count, as without position_ids.
        rows = [sequences[mask] for mask in self.masks]
        return PerAxis("batch", tuple(And(()) if row is None else row for row in rows))

    def _bound_intervals(self) -> int:
        return max((mask._max_intervals for mask in self.masks), default=0)

    def _extent(self) -> int | None:
        extents = [mask._extent() for mask in self.masks]
        known = [extent for extent in extents if extent is not None]
        return max(known) if len(known) == len(extents) else None

    def _parts(self) -> tuple[Mask, ...]:
        return self.masks

    def _with_parts(self, parts: tuple[Mask, ...]) -> Mask:
        return PerAxis(self.axis, parts)

    def _text(self, data: bool = True) -> str:
        if not data:
            return f"{self.operator}(...)"
        return f"{self.operator}([{', '.join(mask._text() for mask in self.masks)}])"

    def _explain(self, query: CellQuery) -> Reason:
        member = self.member(query.cell.batch, query.cell.head)
        return Reason("term.reason", {"term": brief(member), "reason": member._explain(query)})

    def _deciding_terms(self, query: CellQuery) -> tuple[Reason, ...]:
        cell = query.cell
        member = self.member(cell.batch, cell.head)
        index = cell.head if self.axis == "head" else cell.batch
        uses = Reason(f"axis.{self.axis}", {"index": index, "term": brief(member)})
        return uses, *member._deciding_terms(query)

    def _regions(self, batch: int, head: int) -> SignedRegions | None:
        return self.member(batch, head)._regions(batch, head)


def by_head(masks: Sequence[Mask]) -> Mask:
    """A separate mask for each head: head h uses `masks[h]`.

    Args:
        masks: One mask per head.

    Returns:
        The mask.

    Raises:
        ArgumentError: If `masks` is empty or has another element than a mask.

    >>> import maskwright as mw
    >>> mask = mw.by_head([mw.causal(), mw.window(back=1)])
    >>> mask.on(3).dense().shape
    (1, 2, 3, 3)
    >>> mask.on(3).spans.row(2, head=1)
    [(1, 3)]
    """
    return PerAxis("head", _members(masks, "by_head"))


def by_batch(masks: Sequence[Mask]) -> Mask:
    """A separate mask for each batch row: row b uses `masks[b]`.

    Args:
        masks: One mask per batch row.

    Returns:
        The mask.

    Raises:
        ArgumentError: If `masks` is empty or has another element than a mask.

    >>> import maskwright as mw
    >>> mw.by_batch([mw.causal(), mw.everything()]).on(2).dense().astype(int).tolist()
    [[[[1, 0], [1, 1]]], [[[1, 1], [1, 1]]]]
    """
    return PerAxis("batch", _members(masks, "by_batch"))


def _members(masks: Sequence[Mask], name: str) -> tuple[Mask, ...]:
    if isinstance(masks, Mask) or not hasattr(masks, "__iter__"):
        raise ArgumentError(
            f"{name}: expected a list of masks, got {type(masks).__name__}. Pass [mask, ...]."
        )
    members = tuple(masks)
    if not members:
        raise ArgumentError(f"{name}: the list is empty. Pass at least one mask.")
    for index, member in enumerate(members):
        if not isinstance(member, Mask):
            raise ArgumentError(
                f"{name}: expected a list of masks, got {type(member).__name__} at index {index}. "
                "Wrap an array in dense(...)."
            )
    return members


OPERATORS.update({"&": And, "|": Or, "~": Not, ".T": Transpose})
