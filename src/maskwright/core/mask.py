"""The interfaces: `Mask`, what every mask can be asked, and `Atom`, a mask not made of others.

The atoms, which name sets of cells, live in the `atoms_*` files; what combines them in `compose`.
An expression has no size; `.on()` gives it one.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, TypeVar

import numpy as np

from maskwright.core.arrays import read_whole
from maskwright.core.frame import Frame, make_frame, merge_axis
from maskwright.core.literal import call_text
from maskwright.core.living import new_number
from maskwright.errors import ArgumentError, FrameError, TruthError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.core.region import Region
    from maskwright.core.spans import Spans


Some = TypeVar("Some", bound="Mask")


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
    _depth = 1  # how deep the expression nests
    _nodes = 1  # how many atoms and operators it has
    _number: int

    def __new__(cls: type[Some], *_: object, **__: object) -> Some:
        """Number it, for what can't hold a mask itself."""
        mask = object.__new__(cls)
        mask.__dict__["_number"] = new_number(mask)
        return mask

    def __getstate__(self) -> dict[str, Any]:
        # A copy has a number of its own, and remembers no sizes.
        return {k: v for k, v in self.__dict__.items() if k not in ("_number", "_bound_to")}

    # ── saying ────────────────────────────────────────────────────────────────────────────────

    def __and__(self, other: Mask) -> Mask:
        return compose.both(self, compose.operand(other, "&"))

    def __or__(self, other: Mask) -> Mask:
        return compose.either(self, compose.operand(other, "|"))

    def __sub__(self, other: Mask) -> Mask:
        return self & ~compose.operand(other, "-")

    def __invert__(self) -> Mask:
        return compose.Not(self)

    def __rand__(self, other: object) -> Mask:
        return compose.operand(other, "&")  # a mask on the left would have answered itself

    def __ror__(self, other: object) -> Mask:
        return compose.operand(other, "|")

    def __rsub__(self, other: object) -> Mask:
        return compose.operand(other, "-")

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        raise ArgumentError(
            "A mask has no size, so it is no array. Bind it first: mask.on(q_len).dense()."
        )

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What torch calls in place of a function of its own that was given a mask."""
        return answer_torch(func, args, kwargs or {})

    @property
    def T(self) -> Mask:  # noqa: N802 - numpy's name for it
        """Queries and keys change places: q may see k where k could see q.

        >>> import maskwright as mw
        >>> both = mw.padding(lengths=[2]) & mw.padding(lengths=[2]).T
        >>> both.on(3).dense().astype(int).tolist()
        [[[[1, 1, 0], [1, 1, 0], [0, 0, 0]]]]
        """
        return compose.Transpose(self)

    def __getattr__(self, name: str) -> NoReturn:
        from maskwright.core.bound import BoundMask

        hint = ""
        if not name.startswith("_") and hasattr(BoundMask, name):
            hint = f" Bind it to a size first: mask.on(q_len).{name}."
        raise AttributeError(f"A mask has no attribute {name}.{hint}")

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
        first = read_whole(start, "rows: start", least=0)
        last = read_whole(stop, "rows: stop", least=first)
        keys = last if kv_len is None else kv_len
        try:
            return self.on(last - first, keys, batch, heads, first)
        except FrameError as error:
            hint = "Or bind the whole mask and cut that: mask.on(n).rows(start, stop)."
            raise FrameError(f"{error} {hint}") from None

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
        at = read_whole(position, "step: position", least=0)
        return self.rows(at, at + 1, kv_len, batch, heads)

    # ── what a kind of mask must answer ───────────────────────────────────────────────────────

    @abstractmethod
    def _read(self, region: Region) -> Spans:
        """The spans of exactly this region."""

    @abstractmethod
    def _width(self, keys: int) -> int:
        """At most so many intervals a row has, among `keys` keys in view."""

    @abstractmethod
    def _text(self) -> str:
        """Source that makes this mask again."""

    @abstractmethod
    def _parts(self) -> tuple[Mask, ...]:
        """The masks that this one is made of."""

    def _read_turned(self, region: Region) -> Spans:
        """The spans of this region for `self.T`."""
        turned = self._read(region.transposed).transpose(region.row, region.row_stop)
        return turned.shift(region.key, region.frame.kv_len)

    def _width_turned(self, keys: int) -> int:
        """About so many intervals a row of `self.T` has, among `keys` keys in view."""
        return min(keys // 2 + 1, 64 + 4 * self._width(keys))

    def _extent(self) -> int | None:
        """At most so many keys lie between a row's first and last; None if there is no limit."""
        return None

    def _fit(self, frame: Frame) -> None:
        """Raise FrameError where the mask's data does not fit the frame."""
        for part in self._parts():
            part._fit(frame)

    def _axes(self) -> Iterator[Axes]:
        """The batch and head counts of the data in this mask."""
        for part in self._parts():
            yield from part._axes()

    def _planes(self, frame: Frame) -> tuple[int, int]:
        """How many batch rows and heads differ, 1 along an axis on which nothing varies."""
        return join_planes(part._planes(frame) for part in self._parts())

    def __repr__(self) -> str:
        return self._text()


class Atom(Mask):
    """The interface of masks that are not made of others."""

    name: ClassVar[str]

    def _parts(self) -> tuple[Mask, ...]:
        return ()

    def _planes(self, frame: Frame) -> tuple[int, int]:  # noqa: ARG002 - the data has the say
        return join_planes((axes.batch, axes.heads) for axes in self._axes())

    def _width(self, keys: int) -> int:  # noqa: ARG002 - one interval, however many keys
        return 1

    def _call(self) -> tuple[str, dict[str, Any]]:
        """The name and the arguments of the call that makes this atom."""
        return self.name, {}

    @abstractmethod
    def _reason(self, cell: Cell, sees: bool) -> str:
        """Why this atom lets the cell through, or stops it: a few words."""

    def _text(self) -> str:
        return call_text(*self._call())


class SameForAll(Atom):
    """The interface of atoms in which every query of a sequence sees the same keys."""

    def _read_turned(self, region: Region) -> Spans:
        # Turned over, a row sees all keys or none: those that the one distinct row says.
        one = region.transposed._replace(row=0, row_stop=1)
        spans = self._read(one)
        b, h, _ = spans.shape
        seen = np.zeros((b, h, 1, one.frame.kv_len), np.bool_)
        spans.paint(seen)
        rows = seen[:, :, 0, region.row : region.row_stop]
        return region.band(region.first, np.where(rows, region.last + 1, region.first))

    def _width_turned(self, keys: int) -> int:  # noqa: ARG002 - all keys or none
        return 1


# What answers torch, filled in by the file that knows torch when that is first needed.
TORCH: dict[str, Callable[..., Any]] = {}


def answer_torch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A torch function that was given a mask: attention is computed, all else refused."""
    if not TORCH:
        # Found by its name: what a mask is knows no framework, and this one is loaded by now.
        importlib.import_module("maskwright.integrations.torch")
    return TORCH["call"](func, args, kwargs)


def walk(mask: Mask) -> Iterator[Mask]:
    """The mask and all masks in it, outermost first."""
    yield mask
    for part in mask._parts():
        yield from walk(part)


def join_planes(planes: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The (batch, heads) of several together; 1 broadcasts."""
    batch = heads = 1
    for b, h in planes:
        batch, heads = (b if b != 1 else batch), (h if h != 1 else heads)
    return batch, heads


# The operators make what is made of masks, which is itself a mask: the two files need each other.
from maskwright.core import compose  # noqa: E402
