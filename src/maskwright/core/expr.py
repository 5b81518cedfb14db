"""Mask expressions: `Mask`, the base class; `Atom`; and the operators that combine masks.

An expression has no size. `Mask.on()` binds it to one.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    cast,
    overload,
)

import numpy as np

from maskwright.core import spans as sets
from maskwright.core.frame import BroadcastDims, Frame, make_frame, merge_dims
from maskwright.core.mask_registry import HANDLES, MASKS
from maskwright.core.source_repr import call_text
from maskwright.core.validate import parse_int
from maskwright.errors import ArgumentError, FrameError, TruthError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from maskwright.core.bound import BoundMask
    from maskwright.core.evaluate import View
    from maskwright.core.spans import Spans

MAX_DEPTH: Final = 100
MAX_TERMS: Final = 1_000  # of one & or |
MAX_NODES: Final = 10_000
MAX_CHEAP: Final = 8  # intervals per row up to which a term of an & is evaluated first
MAX_VIEW_ROWS: Final = 1024  # rows evaluated at a time where a term has more intervals than that
MAX_BOUND: Final = 16  # bound masks that a mask keeps

ValueT = TypeVar("ValueT")
MaskT = TypeVar("MaskT", bound="Mask")
MISSING: Final[Any] = object()  # None is a value
_NOT_COPIED: Final = ("_handle", "_cache", "_bounds")


class Cell(NamedTuple):
    """One (batch row, head, query position, key position)."""

    batch: int
    head: int
    query: int
    key: int


class Cache:
    """Values computed on first use. Thread-safe, and shared by neither copies nor pickles.

    With `max_entries`, the least recently used value is dropped when there are more.

    >>> squares = Cache(max_entries=2)
    >>> [squares.get(n, lambda: n * n) for n in (1, 2, 3)]
    [1, 4, 9]
    >>> 1 in squares, 3 in squares, len(squares)
    (False, True, 2)
    """

    __slots__ = ("_lock", "_max_entries", "values")

    def __init__(self, max_entries: int | None = None) -> None:
        self._max_entries = max_entries
        self._lock = RLock()  # reentrant: one value may be computed from another
        self.values: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """Returns the value of `key`, calling `make` if there is none."""
        values, limit = self.values, self._max_entries
        if limit is None:
            value = values.get(key, MISSING)
            if value is not MISSING:
                return cast("ValueT", value)
        with self._lock:
            value = values.get(key, MISSING)
            if value is MISSING:
                value = make()
            elif limit is not None:
                del values[key]  # inserted again below, as the most recently used
            values.setdefault(key, value)
            while limit is not None and len(values) > limit:
                del values[next(iter(values))]
        return cast("ValueT", value)

    def __contains__(self, key: Hashable) -> bool:
        return key in self.values

    def __len__(self) -> int:
        return len(self.values)

    def __reduce__(self) -> tuple[type[Cache], tuple[int | None]]:
        return Cache, (self._max_entries,)


class mask_property(Generic[ValueT]):  # noqa: N801 - a decorator, as functools.cached_property is
    """Property of a mask that is computed on first use and kept in the mask's cache.

    >>> import maskwright as mw
    >>> mask = mw.documents(ids=[[0, 1, 0]])
    >>> mask._most_runs
    2
    >>> "_most_runs" in mask._cache
    True
    """

    def __init__(self, make: Callable[[Any], ValueT]) -> None:
        self.make = make
        self.name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, mask: None, owner: object) -> mask_property[ValueT]: ...
    @overload
    def __get__(self, mask: object, owner: object) -> ValueT: ...
    def __get__(self, mask: Any, owner: object) -> mask_property[ValueT] | ValueT:
        if mask is None:
            return self
        return cast("ValueT", mask._cached(self.name, lambda: self.make(mask)))


class Mask(ABC):
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
    """

    __array_ufunc__: ClassVar[None] = None  # numpy arrays defer & | - to the mask, which raises
    _handle: int  # in the mask registry; a plain attribute, which torch.compile can read
    _cache: Cache | None = None
    _bounds: Cache | None = None  # bound masks by size
    _depth = 1  # nesting depth of the expression
    _nodes = 1  # number of atoms and operators
    _dims_known = True  # False if the batch and head counts depend on the frame

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
        if not isinstance(other, Mask):
            raise _not_a_mask(other, "&")
        left = self.terms if isinstance(self, And) else (self,)
        return And(left + (other.terms if isinstance(other, And) else (other,)))

    def __or__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise _not_a_mask(other, "|")
        left = self.terms if isinstance(self, Or) else (self,)
        return Or(left + (other.terms if isinstance(other, Or) else (other,)))

    def __sub__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise _not_a_mask(other, "-")
        return self & Not(other)

    def __invert__(self) -> Mask:
        return Not(self)

    # These are called only if the left operand is not a mask.

    def __rand__(self, other: object) -> NoReturn:
        raise _not_a_mask(other, "&")

    def __ror__(self, other: object) -> NoReturn:
        raise _not_a_mask(other, "|")

    def __rsub__(self, other: object) -> NoReturn:
        raise _not_a_mask(other, "-")

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        raise ArgumentError(
            "A mask has no size, so it cannot be converted to an array. "
            "Bind it first: mask.on(q_len).dense()."
        )

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by torch in place of a function of its own that received a mask."""
        return answer_torch(func, args, kwargs or {})

    @property
    def T(self) -> Mask:  # noqa: N802 - numpy's name for it
        """The transpose: q attends to k where k attended to q.

        >>> import maskwright as mw
        >>> both = mw.padding(lengths=[2]) & mw.padding(lengths=[2]).T
        >>> both.on(3).dense().astype(int).tolist()
        [[[[1, 1, 0], [1, 1, 0], [0, 0, 0]]]]
        """
        return Transpose(self)

    def __getattr__(self, name: str) -> NoReturn:
        from maskwright.core.bound import BoundMask

        hint = ""
        if not name.startswith("_") and hasattr(BoundMask, name):
            hint = f" Bind it to a size first: mask.on(q_len).{name}."
        raise AttributeError(f"A mask has no attribute {name}.{hint}")

    def __bool__(self) -> NoReturn:
        raise TruthError(
            "The truth value of a mask is ambiguous. Write & for `and`, | for `or`, ~ for `not`."
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
        """Binds this mask to a size.

        Args:
            q_len: Number of queries.
            kv_len: Number of keys. Default: `q_len`.
            batch: Batch size. Default: that of the mask's data.
            heads: Number of heads. Default: that of the mask's data.
            q_start: Position of the first query. By default the last query is aligned with the
                last key, as with a KV cache; `q_start=0` aligns the first ones instead.

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

        planes = merge_dims(self._dims)
        frame = make_frame(q_len, kv_len, batch, heads, q_start, planes)
        self._fit(frame)
        return BoundMask(self, frame, planes=planes if self._dims_known else None)

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
        bound: BoundMask = bounds.get(size, partial(self.on, *size))
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
    def _text(self) -> str:
        """Source code that constructs this mask."""

    @abstractmethod
    def _parts(self) -> tuple[Mask, ...]:
        """The masks that this one is composed of."""

    def _spans_transposed(self, view: View) -> Spans:
        """The spans of this view for `self.T`."""
        spans = self._spans(view.transposed).transpose(view.row, view.row_stop)
        return spans.shift(view.key, view.frame.kv_len)

    def _width_transposed(self, keys: int) -> int:
        """Estimate of the intervals per row of `self.T` among `keys` keys."""
        return min(keys // 2 + 1, 64 + 4 * self._width(keys))

    def _extent(self) -> int | None:
        """Maximum distance between a row's first and last key; None if it is unlimited."""
        return None

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        """Batch and head counts of the mask's data."""
        return ()

    def _fit(self, frame: Frame) -> None:  # noqa: B027 - most atoms fit every frame
        """Raises FrameError if the mask's data does not fit the frame."""

    def _planes(self, frame: Frame) -> tuple[int, int]:  # noqa: ARG002 - for predicates
        """Number of batch rows and heads that differ, 1 where nothing varies."""
        return merge_dims(self._dims)

    def __repr__(self) -> str:
        return self._text()


class Atom(Mask):
    """Base class of masks that are not composed of others."""

    name: ClassVar[str]

    def _parts(self) -> tuple[Mask, ...]:
        return ()

    def _width(self, keys: int) -> int:  # noqa: ARG002 - one interval for any number of keys
        return 1

    def _call(self) -> tuple[str, dict[str, Any]]:
        """Name and arguments of the call that constructs this atom."""
        return self.name, {}

    @abstractmethod
    def _reason(self, cell: Cell, sees: bool) -> str:
        """Short explanation of why the cell is visible or masked."""

    def _text(self) -> str:
        return call_text(*self._call())


class KeyOnly(Atom):
    """Base class of atoms that depend on the key alone: all queries attend to the same keys."""

    def _spans_transposed(self, view: View) -> Spans:
        # Transposed, a row attends to all keys or to none, as the one distinct row says.
        one = view.transposed._replace(row=0, row_stop=1)
        spans = self._spans(one)
        b, h, _ = spans.shape
        visible = np.zeros((b, h, 1, one.frame.kv_len), np.bool_)
        spans.write_dense(visible)
        rows = visible[:, :, 0, view.row : view.row_stop]
        return view.band(view.first, np.where(rows, view.last + 1, view.first))

    def _width_transposed(self, keys: int) -> int:  # noqa: ARG002 - all keys or none
        return 1


class Composite(Mask):
    """Base class of masks that are composed of others."""

    _members: tuple[Mask, ...]  # what _parts() returns

    def __post_init__(self) -> None:
        depth, nodes, known = 0, 1, True
        parts = self._parts()
        for part in parts:
            depth = part._depth if part._depth > depth else depth
            nodes += part._nodes
            known = known and part._dims_known
        self.__dict__.update(_depth=depth + 1, _nodes=nodes, _dims_known=known, _members=parts)
        if depth >= MAX_DEPTH:
            raise ArgumentError(
                f"The expression is nested deeper than {MAX_DEPTH} operators. "
                "Flatten it, or pass an array to dense(...)."
            )
        if len(parts) > MAX_TERMS and isinstance(self, (And, Or)):
            raise ArgumentError(
                f"An & or | has {len(parts)} terms, more than {MAX_TERMS}. "
                "Write it with fewer, such as one keys([...])."
            )
        if nodes > MAX_NODES:
            raise ArgumentError(
                f"The expression has {nodes} nodes, more than {MAX_NODES}. "
                "Make it smaller, or pass an array to dense(...)."
            )

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        dims: list[BroadcastDims] = []
        for part in self._members:
            dims += part._dims
        return tuple(dims)

    def _fit(self, frame: Frame) -> None:
        for part in self._members:
            part._fit(frame)

    def _planes(self, frame: Frame) -> tuple[int, int]:
        batch, heads = merge_dims(self._dims)
        if not self._dims_known:
            for part in self._members:
                b, h = part._planes(frame)
                batch, heads = (b if b != 1 else batch), (h if h != 1 else heads)
        return batch, heads


@dataclass(frozen=True, repr=False)
class And(Composite):
    """The cells that are visible in all terms."""

    terms: tuple[Mask, ...]

    def _spans(self, view: View) -> Spans:
        keys = view.key_stop - view.key
        cheap: list[Spans] = []
        dear: list[Mask] = []
        for term in self.terms:
            if term._width(keys) <= MAX_CHEAP:
                cheap.append(term._spans(view))
            else:
                dear.append(term)
        spans = sets.intersection(cheap) if cheap else None
        for term in dear:
            if spans is None:
                spans = term._spans(view)
                continue
            views = [view.narrow(first, stop) for first, stop in spans.reaches()]
            if not views:
                return spans
            parts = [term._spans(part) for part in views]
            spans = sets.intersection([spans, sets.union(parts) if len(parts) > 1 else parts[0]])
        return view.everything() if spans is None else spans

    def _width(self, keys: int) -> int:
        extent = self._extent()
        # A block has several rows, so its view has more keys than one row attends to.
        view = keys if extent is None else min(keys, extent + MAX_VIEW_ROWS)
        return sum(term._width(view) for term in self.terms)

    def _extent(self) -> int | None:
        known = [e for e in (term._extent() for term in self.terms) if e is not None]
        return min(known, default=None)

    def _parts(self) -> tuple[Mask, ...]:
        return self.terms

    def _text(self) -> str:
        return " & ".join(_in_brackets(term, Or) for term in self.terms)


@dataclass(frozen=True, repr=False)
class Or(Composite):
    """The cells that are visible in at least one term."""

    terms: tuple[Mask, ...]

    def _spans(self, view: View) -> Spans:
        if not self.terms:
            return view.nothing()
        return sets.union([term._spans(view) for term in self.terms])

    def _width(self, keys: int) -> int:
        return sum(term._width(keys) for term in self.terms)

    def _parts(self) -> tuple[Mask, ...]:
        return self.terms

    def _text(self) -> str:
        return " | ".join(_in_brackets(term, And) for term in self.terms)


@dataclass(frozen=True, repr=False)
class Not(Composite):
    """The cells that the term masks out."""

    term: Mask

    def _spans(self, view: View) -> Spans:
        return self.term._spans(view).complement(view.key, view.key_stop)

    def _width(self, keys: int) -> int:
        return 1 + self.term._width(keys)

    def _parts(self) -> tuple[Mask, ...]:
        return (self.term,)

    def _text(self) -> str:
        return "~" + _in_brackets(self.term, And, Or)


@dataclass(frozen=True, repr=False)
class Transpose(Composite):
    """The cells (q, k) for which (k, q) is visible in the term."""

    term: Mask

    @mask_property
    def _closed(self) -> Mask | None:
        """An equal mask without `.T`, if one is known."""
        from maskwright.core.simplify import transposed

        return transposed(self.term)

    def _spans(self, view: View) -> Spans:
        closed = self._closed
        return self.term._spans_transposed(view) if closed is None else closed._spans(view)

    def _fit(self, frame: Frame) -> None:
        try:
            self.term._fit(frame.transposed)
        except FrameError as error:
            raise FrameError(f"Under .T, with queries and keys exchanged: {error}") from None

    def _planes(self, frame: Frame) -> tuple[int, int]:
        return super()._planes(frame) if self._dims_known else self.term._planes(frame.transposed)

    def _width(self, keys: int) -> int:
        closed = self._closed
        return self.term._width_transposed(keys) if closed is None else closed._width(keys)

    def _extent(self) -> int | None:
        return None if self._closed is None else self._closed._extent()

    def _parts(self) -> tuple[Mask, ...]:
        return (self.term,)

    def _text(self) -> str:
        return _in_brackets(self.term, And, Or, Not) + ".T"


@dataclass(frozen=True, repr=False)
class PerAxis(Composite):
    """A separate mask for each head, or for each batch row."""

    axis: Literal["batch", "head"]
    masks: tuple[Mask, ...]

    @property
    def name(self) -> str:
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
        return BroadcastDims(f"{self.name}([{count} masks])", batch, heads), *super()._dims

    def _spans(self, view: View) -> Spans:
        if len(self.masks) == 1:
            return self.masks[0]._spans(view)
        spans = {mask: mask._spans(view) for mask in set(self.masks)}  # equal masks once
        axis = 1 if self.axis == "head" else 0
        parts = [spans[mask].plane(axis, index) for index, mask in enumerate(self.masks)]
        return sets.Spans.stack(parts, axis)

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
    """A separate mask for each head: head h uses `masks[h]`.

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

    >>> import maskwright as mw
    >>> mw.by_batch([mw.causal(), mw.everything()]).on(2).dense().astype(int).tolist()
    [[[[1, 0], [1, 1]]], [[[1, 1], [1, 1]]]]
    """
    return PerAxis("batch", _members(masks, "by_batch"))


# Filled by the torch integration when it is first needed.
TORCH: dict[str, Callable[..., Any]] = {}


def answer_torch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handles a torch function that received a mask: attention is computed, the rest refused."""
    if not TORCH:
        # Imported by name: core depends on no framework, and torch is loaded by now.
        importlib.import_module("maskwright.integrations.torch")
    return TORCH["call"](func, args, kwargs)


def walk(mask: Mask) -> Iterator[Mask]:
    """Yields the mask and all masks in it, outermost first."""
    yield mask
    for part in mask._parts():
        yield from walk(part)


def _not_a_mask(other: object, operator: str) -> ArgumentError:
    bound = hasattr(other, "mask") and hasattr(other, "frame")
    fix = "Combine masks before binding them" if bound else "Wrap an array in dense(...)"
    return ArgumentError(f"{operator}: expected a mask, got {type(other).__name__}. {fix}.")


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


def _in_brackets(mask: Mask, *looser: type[Mask]) -> str:
    return f"({mask._text()})" if isinstance(mask, looser) else mask._text()
