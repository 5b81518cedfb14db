"""Mask expressions: `Mask`, the base class, and `Atom`. The operators are in `core.operators`.

An expression has no size. `Mask.on()` binds it to one.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    NoReturn,
    TypeVar,
)

import numpy as np

from maskwright.core import spans as span_ops
from maskwright.core.cache import Cache, mask_property
from maskwright.core.expression import AtomExpression, Expression
from maskwright.core.frame import Frame, make_frame, merge_dims
from maskwright.core.interval_ops import CSR
from maskwright.core.mask_registry import HANDLES, MASKS, outside_graphs
from maskwright.core.nodes import Sizes
from maskwright.core.validate import FrozenArray, parse_int
from maskwright.errors import FrameError
from maskwright.messages import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.core.evaluate import View
    from maskwright.core.explain import CellQuery
    from maskwright.core.nodes import Cell, FormulaWriter, Operator, Row
    from maskwright.core.regions import SignedRegions
    from maskwright.core.spans import Spans

MAX_NODES: Final = 10_000
MAX_CHEAP_INTERVALS: Final = 8  # intervals per row up to which a term of an & is evaluated first
MAX_VIEW_ROWS: Final = 1024  # rows evaluated at a time where a term has more intervals than that
MAX_BOUND: Final = 16  # bound masks that a mask keeps
UNBOUNDED: Final = 2**31  # of intervals per row: there is no upper bound
MAX_TRANSPOSED: Final = 2**18  # keys of a view that are transposed at a time

ValueT = TypeVar("ValueT")
MaskT = TypeVar("MaskT", bound="Mask")
AtomT = TypeVar("AtomT", bound="Mask")
_DATA: Final = (FrozenArray, tuple)  # arguments that may be long
_NOT_COPIED: Final = ("_handle", "_cache", "_bounds")

OPERATORS: Final[dict[str, Callable[..., Mask]]] = {}
"""The classes of `&`, `|`, `~` and `.T`; `core.operators`, which imports this module, adds them."""


# Attributes that code for tensors reads first, such as that of a transformers model.
TENSOR_ATTRIBUTES: Final = frozenset({"dim", "device", "dtype", "ndim", "shape", "size", "to"})
NO_TENSOR: Final = (
    'A mask is not a tensor: pass **lower(mask, "hf", q_len=...) to a transformers model, and '
    'lower(mask, "torch.bool", q_len=...) where a tensor is expected.'
)
NO_BLOCK_MASK: Final = 'Pass lower(mask, "torch.flex", q_len=...) to flex_attention.'


def tensor_hint(attribute: str) -> str:
    """What to pass where a tensor or a BlockMask is expected, if it has this attribute; or ""."""
    if attribute == "BLOCK_SIZE":
        return f" {NO_BLOCK_MASK}"
    return f" {NO_TENSOR}" if attribute in TENSOR_ATTRIBUTES else ""


class Mask(Expression):
    """The set of (batch, head, query, key) cells in which the query attends to the key.

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

    `==` compares expressions, not cells: two masks are equal if they are built in the same way,
    where `&` and `|` ignore the order and repetition of their terms. `mask.on(n).equals(other)`
    compares cells.

    >>> mw.causal() & mw.keys([1]) == mw.keys([1]) & mw.causal()
    True
    >>> mw.window(back=2) == mw.causal(), bool(mw.window(back=2).on(3).equals(mw.causal()))
    (False, True)
    """

    _kind = "mask"
    _truth = "Write & for `and`, | for `or`, ~ for `not`."
    _wrap = "dense(...)"
    _handle: int  # in the mask registry; a plain attribute, which torch.compile can read
    _cache: Cache | None = None
    _bounds: Cache | None = None  # bound masks by size
    _nodes = 1  # number of atoms and operators
    # Upper bound on the intervals per row at any size. Read by torch.compile, hence an attribute.
    _max_intervals = UNBOUNDED
    _dims_known = True  # False if the batch and head counts depend on the frame
    _rank = 99  # position among the terms of a simplified & or |
    _bound_class: ClassVar[type[BoundMask]]  # set by core.bound, which imports this module

    def __new__(cls: type[MaskT], *_: object, **__: object) -> MaskT:
        """Enters the new mask into the registry."""
        mask = object.__new__(cls)
        mask.__dict__["_handle"] = handle = next(HANDLES)
        MASKS[handle] = mask
        return mask

    def __getstate__(self) -> dict[str, Any]:
        # A copy has its own handle and empty caches.
        state = self.__dict__.copy()  # atomic: another thread may be adding a cache
        for name in _NOT_COPIED:
            state.pop(name, None)
        return state

    # ── operators ─────────────────────────────────────────────────────────────────────────────

    def __and__(self, other: Mask) -> Mask:
        return self._chain("&", self._operand(other, "&"))

    def __or__(self, other: Mask) -> Mask:
        return self._chain("|", self._operand(other, "|"))

    def __sub__(self, other: Mask) -> Mask:
        inverse: Mask = ~self._operand(other, "-")
        return self & inverse

    def __invert__(self) -> Mask:
        return OPERATORS["~"](self)

    def _chain(self, operator: str, other: Mask) -> Mask:
        chain: Any = OPERATORS[operator]
        mask: Mask = chain(self._terms_of(chain) + other._terms_of(chain))
        return mask

    # These are called only if the left operand is not a mask.

    def __rand__(self, other: object) -> Any:
        return self._operand(other, "&")

    def __ror__(self, other: object) -> Any:
        return self._operand(other, "|")

    def __rsub__(self, other: object) -> Any:
        return self._operand(other, "-")

    # Called by torch in place of a function of its own that received a mask; set by the package
    __torch_function__: ClassVar[Any]

    @property
    def T(self) -> Mask:  # noqa: N802 - numpy's name for it
        """The transpose: q attends to k where k attended to q.

        >>> import maskwright as mw
        >>> both = mw.padding(lengths=[2]) & mw.padding(lengths=[2]).T
        >>> both.on(3).dense().astype(int).tolist()
        [[[[1, 1, 0], [1, 1, 0], [0, 0, 0]]]]
        """
        return OPERATORS[".T"](self)

    def __getattr__(self, name: str) -> NoReturn:
        hint = ""
        if not name.startswith("_") and hasattr(Mask._bound_class, name):
            hint = f" Bind it to a size first: mask.on(q_len).{name}."
        raise AttributeError(f"A mask has no attribute {name}.{hint}{tensor_hint(name)}")

    # ── binding ───────────────────────────────────────────────────────────────────────────────

    def on(
        self,
        q_len: int,
        kv_len: int | None = None,
        batch: int | None = None,
        heads: int | None = None,
        q_start: int | None = None,
    ) -> BoundMask:
        """Binds this mask to a size.

        Args:
            q_len: Number of queries.
            kv_len: Number of keys. Default: `q_len`.
            batch: Batch size. Default: that of the mask's data.
            heads: Number of heads. Default: that of the mask's data.
            q_start: Position of the first query. By default the last query is aligned with the
                last key, as with a KV cache; `q_start=0` aligns the first ones instead.

        Returns:
            The bound mask, from which spans, arrays and counts are computed.

        Raises:
            FrameError: If the mask's data does not fit these sizes.
            ArgumentError: If a size is not an integer of 0 or more.

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
        planes = merge_dims(self._dims)
        frame = make_frame(q_len, kv_len, batch, heads, q_start, planes)
        if q_start is None and frame.q_start != 0:
            self._check_alignment(frame)
        self._fit(frame)
        return Mask._bound_class(self, frame, planes=planes if self._dims_known else None)

    def bound_to(
        self,
        q_len: int,
        kv_len: int | None = None,
        batch: int | None = None,
        heads: int | None = None,
        q_start: int | None = None,
    ) -> BoundMask:
        """The same as `on`, but returns the same object again for the same arguments.

        A model passes one mask to all layers and steps; what is computed from the bound mask is
        then computed once. The 16 most recently used bound masks are kept.

        >>> import maskwright as mw
        >>> mask = mw.causal()
        >>> mask.bound_to(4, 4, 1, 1) is mask.bound_to(4, 4, 1, 1)
        True
        """
        bounds = self._bounds
        if bounds is None:
            bounds = self.__dict__.setdefault("_bounds", Cache(MAX_BOUND))  # atomic
        size = (q_len, kv_len, batch, heads, q_start)
        last, value = bounds.last
        bound: BoundMask = value if last == size else bounds.get(size, partial(self.on, *size))
        return bound

    def rows(
        self,
        start: int,
        stop: int,
        kv_len: int | None = None,
        batch: int | None = None,
        heads: int | None = None,
    ) -> BoundMask:
        """Binds this mask for the queries at positions `start` … `stop - 1`.

        The keys are 0 … `kv_len - 1`. `kv_len` defaults to `stop`, which is one chunk of a chunked
        prefill.

        >>> import maskwright as mw
        >>> mw.window(back=1).rows(2, 4).dense().astype(int).tolist()
        [[[[0, 1, 1, 0], [0, 0, 1, 1]]]]
        """
        first = parse_int(start, "rows: start", minimum=0)
        last = parse_int(stop, "rows: stop", minimum=first)
        keys = last if kv_len is None else kv_len
        try:
            return self.on(last - first, keys, batch, heads, first)
        except FrameError as error:
            hint = "Alternatively, bind the whole mask and slice it: mask.on(n).rows(start, stop)."
            raise FrameError(f"{error} {hint}") from None

    def step(
        self,
        position: int,
        kv_len: int | None = None,
        batch: int | None = None,
        heads: int | None = None,
    ) -> BoundMask:
        """Binds this mask for one decode step: the query at `position` and `position + 1` keys.

        >>> import maskwright as mw
        >>> mw.window(back=1).step(3).dense().astype(int).tolist()
        [[[[0, 0, 1, 1]]]]
        """
        at = parse_int(position, "step: position", minimum=0)
        return self.rows(at, at + 1, kv_len, batch, heads)

    def _cached(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """Returns the value of `key` in this mask's cache, calling `make` if there is none."""
        cache = self._cache
        if cache is None:
            cache = self.__dict__.setdefault("_cache", Cache())  # atomic
        return cache.get(key, make)

    # ── implemented by each kind of mask ──────────────────────────────────────────────────────

    @abstractmethod
    def _spans(self, view: View) -> Spans:
        """The spans of exactly this view."""

    @abstractmethod
    def _width(self, keys: int) -> int:
        """Upper bound on the intervals per row among `keys` keys, at most `keys // 2 + 1` per node."""

    @abstractmethod
    def _explain(self, query: CellQuery) -> Reason:
        """Why the cell is visible or masked."""

    def _row(self, row: Row) -> list[tuple[int, int]] | None:  # noqa: ARG002
        """The spans of one row in plain Python, for decode steps; None if `_spans` is to be used.

        A mask implements it if a row has few intervals, and finding them takes constant time.
        """
        return None

    def _terms_of(self, operator: type[Mask]) -> tuple[Mask, ...]:  # noqa: ARG002
        """The terms, if this is an `operator` mask (And, Or); else the mask itself as the only one."""
        return (self,)

    def _deciding_terms(self, query: CellQuery) -> tuple[Reason, ...]:
        """For each term that decides the cell, and each that would decide otherwise, a reason."""
        return _verdicts((self,), query, query.visible(self))

    def _transposed(self) -> Mask | None:
        """An equal mask of `self.T` without `.T`; None if there is none."""
        return None

    def _intersection(self, other: Any) -> Mask | None:  # noqa: ARG002
        """One node for `self & other`, where `other` is of the same class; None if there is none."""
        return None

    def _union(self, other: Any) -> Mask | None:  # noqa: ARG002
        """One node for `self | other`, where `other` is of the same class; None if there is none."""
        return None

    def _simpler(self) -> Mask | None:
        """An equal, simpler node; None if there is none."""
        return None

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str | None:  # noqa: ARG002
        """Source code of a comparison of the arrays `row` and `col`; None if there is none."""
        return None

    def _regions(self, batch: int, head: int) -> SignedRegions | None:  # noqa: ARG002
        """The mask as a sum and difference of regions, for counting; None if there is none."""
        return None

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:  # noqa: ARG002
        """The tokens of each token's own sequence, for `core.positions`; None if not determined.

        Those among them that come later do not matter. `operator` is the operator that this mask
        is a term of; a mask alone is the same as a term of `&`. A mask that masks out the first
        keys under `~`, and nothing else, answers with its complement.
        """
        return None

    def implied_sizes(self, *, exact: bool = False) -> Sizes:
        """Number of queries and keys that the mask's data describes.

        Args:
            exact: Ignore data that gives only a minimum, such as the lengths of sequences.

        Returns:
            A named tuple `(queries, keys)`, None where the data does not determine it.

        >>> import maskwright as mw
        >>> (mw.causal() & mw.padding(lengths=[3, 5])).implied_sizes()
        Sizes(queries=None, keys=5)
        >>> mw.padding(lengths=[3, 5]).implied_sizes(exact=True)
        Sizes(queries=None, keys=None)
        """
        return self._sizes(exact)

    def _sizes(self, exact: bool) -> Sizes:  # noqa: ARG002
        """What `implied_sizes` returns."""
        return Sizes()

    @mask_property
    def _query_tokens(self) -> int | None:
        """Number of tokens that data about queries alone describes, as padding under `.T`."""
        counts = (part._query_tokens for part in self._parts())
        return max((count for count in counts if count is not None), default=None)

    def _check_alignment(self, frame: Frame) -> None:
        """Raises FrameError if data about queries would be shifted by the lower-right alignment.

        Data that is not longer than the queries begins at the first of them, as in cross-attention.
        Longer data covers the cached tokens too.
        """
        count = self._query_tokens
        if count is not None and 0 < count <= frame.q_len:
            raise FrameError(
                f"on: {brief(self):.60} has data for queries 0 … {count - 1}, but the {frame.q_len} "
                f"queries have positions {frame.q_start} … {frame.q_stop - 1}, aligned with the last "
                f"of {frame.kv_len} keys: pass q_start=0 for cross-attention, or q_start={frame.q_start} "
                "if these positions are meant."
            )

    def _spans_transposed(self, view: View) -> Spans:
        """The spans of this view for `self.T`."""
        parts = []
        for key in range(view.key, max(view.key_stop, view.key + 1), MAX_TRANSPOSED):
            part = view.narrow(key, min(key + MAX_TRANSPOSED, view.key_stop))
            spans = self._spans(part.transposed).transpose(view.row, view.row_stop)
            parts.append(spans.shift(part.key, view.frame.kv_len))
        return parts[0] if len(parts) == 1 else span_ops.union(parts)

    def _width_transposed(self, keys: int) -> int:
        """Estimate of the intervals per row of `self.T` among `keys` keys."""
        return min(keys // 2 + 1, 64 + 4 * self._width(keys))

    def _extent(self) -> int | None:
        """Maximum distance between a row's first and last key; None if it is unlimited."""
        return None

    def _planes(self, frame: Frame) -> tuple[int, int]:  # noqa: ARG002 - for predicates
        """Number of batch rows and heads that differ, 1 where nothing varies."""
        return merge_dims(self._dims)


Mask._base = Mask
outside_graphs(Mask.__new__)


class Atom(AtomExpression, Mask):
    """Base class of masks that are not composed of others.

    A subclass is a frozen dataclass, as `AtomExpression` says. `ATOMS` in `core.atoms` maps the
    name to the function.
    """

    _data = _DATA

    def _width(self, keys: int) -> int:
        return min(keys // 2 + 1, max(self._max_intervals, 1))

    def _reason(self, cell: Cell, visible: bool) -> Reason:
        """Why the cell is visible or masked."""
        return self._reason_code(visible, query=cell.query, key=cell.key)

    def _reason_code(self, visible: bool, **params: Any) -> Reason:
        return Reason(f"{self.name}.{'visible' if visible else 'masked'}", params)

    def _explain(self, query: CellQuery) -> Reason:
        return self._reason(query.cell, query.visible(self))


def set_max_intervals(atom: Atom, count: int) -> None:
    """Stores the bound `_max_intervals` of an atom for which it depends on the data."""
    atom.__dict__["_max_intervals"] = count


class KeyOnly(Atom):
    """Base class of atoms that depend on the key alone: all queries attend to the same keys."""

    def _spans_transposed(self, view: View) -> Spans:
        # Transposed, a row attends to all keys or to none, as the one distinct row says.
        row_view = view.transposed._replace(row=0, row_stop=1)
        spans = self._spans(row_view)
        if spans.band is not None:
            rows = np.arange(view.row, view.row_stop)
            visible = (rows >= spans.band.low) & (rows < spans.band.high)
        else:
            offsets, starts, stops = spans.flat
            flat = CSR(offsets, starts - view.row, stops - view.row)
            cells = np.zeros((*spans.shape, view.rows), np.bool_)
            span_ops.Spans(spans.shape, view.rows, flat=flat).write_dense(cells)
            visible = cells[:, :, 0]
        return view.band(view.first, np.where(visible, view.last + 1, view.first))

    def _width_transposed(self, keys: int) -> int:  # noqa: ARG002 - all keys or none
        return 1


def walk(mask: Mask) -> Iterator[Mask]:
    """Yields the mask and all masks in it, outermost first.

    >>> import maskwright as mw
    >>> list(walk(mw.causal() & ~mw.keys([1])))
    [causal() & ~keys([1]), causal(), ~keys([1]), keys([1])]
    """
    yield mask
    for part in mask._parts():
        yield from walk(part)


def find(mask: Mask, kind: type[AtomT] | tuple[type[AtomT], ...]) -> list[AtomT]:
    """The masks of a class, or of one of several, in an expression.

    >>> import maskwright as mw
    >>> from maskwright.core.atoms.tokens import Padding
    >>> find(mw.causal() & mw.padding(lengths=[3]), Padding)
    [padding(lengths=[3])]
    """
    return [part for part in walk(mask) if isinstance(part, kind)]


def transpose(mask: Mask) -> Mask:
    """The transpose, without `.T` where the mask has a closed form for it.

    >>> import maskwright as mw
    >>> transpose(mw.causal()), transpose(mw.tree([-1, 0]))
    (window(back=0, ahead=None), tree([[-1, 0]]).T)
    """
    transposed = mask._transposed()
    return mask.T if transposed is None else transposed


def brief(expression: Expression) -> str:
    """A mask or bias as text, with `...` in place of arrays.

    >>> import maskwright as mw
    >>> brief(mw.causal() & mw.padding(lengths=[3, 4]))
    'causal() & padding(...)'
    """
    return expression._text(data=False)


def data_size(mask: Mask) -> int:
    """Number of values in the arrays of an expression.

    >>> import maskwright as mw
    >>> data_size(mw.causal() & mw.padding(lengths=[3, 4]))
    2
    """
    return sum(
        value.data.size if isinstance(value, FrozenArray) else len(value)
        for atom in find(mask, Atom)
        for value in atom._call()[1].values()
        if isinstance(value, _DATA)
    )


def _verdicts(terms: tuple[Mask, ...], query: CellQuery, visible: bool) -> tuple[Reason, ...]:
    verdict = "term.visible" if visible else "term.masked"
    deciding = [
        Reason(verdict, {"term": _bracketed(term), "reason": term._explain(query)})
        for term in terms
        if query.visible(term) == visible
    ]
    if not visible:
        deciding += [
            Reason("term.would_allow", {"term": _bracketed(term)})
            for term in terms
            if query.visible(term)
        ]
    return tuple(deciding)


def _bracketed(mask: Mask) -> str:
    return f"({brief(mask)})" if mask._precedence == 1 else brief(mask)
