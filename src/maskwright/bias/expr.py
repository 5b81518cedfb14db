"""Bias expressions: `Bias`, the base class; `BiasAtom`; sums and multiples; and bound biases.

An expression has no size. `Bias.on()` binds it to one.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

import numpy as np

from maskwright.bias.terms import dense_terms, merge_terms
from maskwright.bias.values import Values, is_torch, parse_factor
from maskwright.core.frame import MAX_BYTES, BroadcastDims, Frame, make_frame, merge_dims
from maskwright.errors import ArgumentError, FrameError, SizeError, TruthError

if TYPE_CHECKING:
    from maskwright.bias.terms import Term

MAX_DEPTH: Final = 100
MAX_TERMS: Final = 1_000  # of one sum


class Bias(ABC):
    """Numbers that are added to the attention scores: one for each (batch, head, query, key).

    A bias changes scores inside a mask; it never changes which keys are visible, so its values are
    finite. Biases are made by functions of `maskwright.bias`, such as `alibi(8)`, added with `+`
    and `-`, and multiplied by numbers. They have no size until `.on()` binds one.

    >>> import maskwright as mw
    >>> bias = mw.bias.alibi([0.5]) + 2 * mw.bias.per_key([0.0, 1.0, 0.0])
    >>> bias
    alibi([0.5]) + 2.0 * per_key([0.0, 1.0, 0.0])
    >>> bias.on(3).dense()[0, 0].tolist()
    [[0.0, 1.5, -1.0], [-0.5, 2.0, -0.5], [-1.0, 1.5, 0.0]]

    `==` compares expressions: arrays by content, torch tensors by identity, sums without regard to
    the order of their terms.
    """

    __array_ufunc__: ClassVar[None] = None  # numpy arrays defer + - * to the bias, which raises
    _precedence = 3  # of its text: + and - 1, * 2, calls 3

    # ── operators ─────────────────────────────────────────────────────────────────────────────

    def __add__(self, other: Bias) -> Bias:
        if not isinstance(other, Bias):
            raise _not_a_bias(other, "+")
        return Sum((*self._terms(), *other._terms()))

    def __radd__(self, other: object) -> Bias:
        if type(other) is int and other == 0:  # sum([a, b]) starts with 0
            return self
        raise _not_a_bias(other, "+")

    def __sub__(self, other: Bias) -> Bias:
        if not isinstance(other, Bias):
            raise _not_a_bias(other, "-")
        return self + -other

    def __rsub__(self, other: object) -> NoReturn:
        raise _not_a_bias(other, "-")

    def __neg__(self) -> Bias:
        return Multiple(-1.0, self)

    def __mul__(self, factor: float) -> Bias:
        return Multiple(parse_factor(factor, "The factor of a bias"), self)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Bias:
        number = parse_factor(divisor, "The divisor of a bias")
        if number == 0:
            raise ArgumentError("The divisor of a bias is 0. Divide by another number.")
        return Multiple(1 / number, self)

    def __bool__(self) -> NoReturn:
        raise TruthError("A bias has no boolean value. Compare with None: `bias is not None`.")

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        raise ArgumentError(
            "A bias has no size, so it cannot be converted to an array. "
            "Bind it first: bias.on(q_len).dense()."
        )

    # ── binding ───────────────────────────────────────────────────────────────────────────────

    def on(
        self,
        q_len: int,
        kv_len: int | None = None,
        batch: int | None = None,
        heads: int | None = None,
        q_start: int | None = None,
    ) -> BoundBias:
        """Binds this bias to a size.

        Args:
            q_len: Number of queries.
            kv_len: Number of keys. Default: `q_len`.
            batch: Batch size. Default: that of the bias's values.
            heads: Number of heads. Default: that of the bias's values.
            q_start: Position of the first query. By default the last query is aligned with the
                last key, as with a KV cache; `q_start=0` aligns the first ones instead.

        Returns:
            The bound bias.

        Raises:
            FrameError: If the values do not fit these sizes.
            ArgumentError: If a size is not an integer of 0 or more.

        >>> import maskwright as mw
        >>> mw.bias.alibi([1.0]).on(2, kv_len=3).dense().tolist()
        [[[[-1.0, 0.0, -1.0], [-2.0, -1.0, 0.0]]]]
        """
        frame = make_frame(q_len, kv_len, batch, heads, q_start, self.planes)
        self._fit(frame)
        return BoundBias(self, frame)

    def lower(self, frame: Frame) -> tuple[Term, ...]:
        """The bias as a sum of terms, for a backend.

        Terms of one kind are merged: there is at most one `DistanceTerm`, at most one `GridTerm`
        per grid size, and `TensorTerm`s of distinct shapes. Terms made of torch tensors are torch
        tensors, and differentiable.

        Args:
            frame: The sizes and positions.

        Returns:
            The terms; none where the sum has none.

        Raises:
            FrameError: If the values do not fit the frame.

        >>> import maskwright as mw
        >>> frame = mw.causal().on(2).frame
        >>> mw.bias.alibi([1.0]).lower(frame)
        (DistanceTerm(values=array([[-1.,  0., -1.]]), zero=1),)
        """
        self._fit(frame)
        for values in self._values():
            values.check_finite()
        return merge_terms(self._lower(frame))

    def dense(self, frame: Frame) -> Any:
        """All added scores of a frame, (batch or 1, heads or 1, queries, keys).

        A numpy array, or a differentiable tensor if a value is a torch tensor.

        >>> import maskwright as mw
        >>> mw.bias.per_key([1.0, 2.0]).dense(mw.causal().on(1, 2).frame).tolist()
        [[[[1.0, 2.0]]]]
        """
        batch, heads = self.planes
        size = 8 * batch * heads * frame.q_len * frame.kv_len
        if size > MAX_BYTES:
            raise SizeError(
                f"dense() would need {size / 1e9:.1f} GB, more than {MAX_BYTES / 1e9:.1f} GB. "
                "Use lower(frame), or fewer queries at a time."
            )
        return dense_terms(self.lower(frame), frame)

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The arrays and tensors that the bias holds, in the order of its text.

        >>> import maskwright as mw
        >>> [values.shape for values in mw.bias.alibi([0.5, 0.25]).tensors]
        [(2,)]
        """
        return tuple(values.data for values in self._values())

    @property
    def planes(self) -> tuple[int, int]:
        """Number of batch rows and heads of the values, 1 where nothing varies.

        >>> import maskwright as mw
        >>> mw.bias.alibi(8).planes
        (1, 8)
        """
        return merge_dims(self._dims)

    def __repr__(self) -> str:
        return self._text()

    # ── implemented by each kind of bias ──────────────────────────────────────────────────────

    @abstractmethod
    def _lower(self, frame: Frame) -> list[Term]:
        """The terms, before they are merged."""

    @abstractmethod
    def _text(self, data: bool = True) -> str:
        """Source code that constructs this bias; `...` in place of arrays if `data` is False."""

    @abstractmethod
    def _values(self) -> tuple[Values, ...]:
        """The values that the bias holds, in a fixed order."""

    @property
    @abstractmethod
    def _dims(self) -> tuple[BroadcastDims, ...]:
        """Batch and head counts of the values."""

    def _fit(self, frame: Frame) -> None:
        """Raises FrameError if the values do not fit the frame."""
        for (owner, *own), name in (
            (dim, name) for dim in self._dims for name in ("batch", "heads")
        ):
            count, size = own[name == "heads"], getattr(frame, name)
            if count not in (1, size):
                raise FrameError(
                    f"bias.{owner}: the values have {count} along {name}, the frame has {size}. "
                    f"Pass {name}={count}, or values for {size}."
                )

    @property
    def _depth(self) -> int:
        """Nesting depth of the expression."""
        return 1

    def _terms(self) -> tuple[Bias, ...]:
        """The terms of a sum; else the bias itself as the only one."""
        return (self,)


class BiasAtom(Bias):
    """Base class of biases that are not composed of others.

    A subclass is a frozen dataclass. Its text and JSON are derived from its fields, which have the
    names of the arguments of the function that constructs it; fields with their default value are
    omitted. `BIASES` in `bias.atoms` maps the name to the function.
    """

    name: ClassVar[str]
    positional: ClassVar[tuple[str, ...]] = ()  # arguments that text shows without their name

    def _call(self) -> tuple[str, dict[str, Any]]:
        """Name and arguments of the call that constructs this bias."""
        arguments = {}
        for field in fields(self):  # type: ignore[arg-type]  # each subclass is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Values) or value != field.default:
                arguments[field.name] = value
        return self.name, arguments

    def _values(self) -> tuple[Values, ...]:
        held = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return tuple(value for value in held if isinstance(value, Values))

    def _text(self, data: bool = True) -> str:
        name, arguments = self._call()
        if not data and self._values():
            return f"{name}(...)"
        shown = [
            repr(value) if key in self.positional else f"{key}={value!r}"
            for key, value in arguments.items()
        ]
        return f"{name}({', '.join(shown)})"


@dataclass(frozen=True, repr=False, eq=False)
class Sum(Bias):
    """The sum of several biases."""

    terms: tuple[Bias, ...]
    _precedence = 1

    def __post_init__(self) -> None:
        _check_depth(self._depth)
        if len(self.terms) > MAX_TERMS:
            raise ArgumentError(
                f"A sum of biases has {len(self.terms)} terms, more than {MAX_TERMS}. Add fewer."
            )
        merge_dims(self._dims)  # raises if the terms cannot be added

    @property
    def _depth(self) -> int:
        return 1 + max([0, *(term._depth for term in self.terms)])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sum):
            return NotImplemented if not isinstance(other, Bias) else False
        return self.terms == other.terms or Counter(self.terms) == Counter(other.terms)

    def __hash__(self) -> int:
        return hash(("sum", frozenset(Counter(self.terms).items())))

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return tuple(dim for term in self.terms for dim in term._dims)

    def _fit(self, frame: Frame) -> None:
        for term in self.terms:
            term._fit(frame)

    def _lower(self, frame: Frame) -> list[Term]:
        return [part for term in self.terms for part in term._lower(frame)]

    def _values(self) -> tuple[Values, ...]:
        return tuple(values for term in self.terms for values in term._values())

    def _terms(self) -> tuple[Bias, ...]:
        return self.terms

    def _text(self, data: bool = True) -> str:
        text = self.terms[0]._text(data)
        for term in self.terms[1:]:
            if isinstance(term, Multiple) and term.factor == -1.0:
                text += f" - {_in_brackets(term.term, 2, data)}"
            else:
                text += f" + {term._text(data)}"
        return text


@dataclass(frozen=True, repr=False)
class Multiple(Bias):
    """A bias, multiplied by a number."""

    factor: float
    term: Bias
    _precedence = 2

    def __post_init__(self) -> None:
        _check_depth(self._depth)

    @property
    def _depth(self) -> int:
        return 1 + self.term._depth

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return self.term._dims

    def _fit(self, frame: Frame) -> None:
        self.term._fit(frame)

    def _lower(self, frame: Frame) -> list[Term]:
        return [term._replace(values=term.values * self.factor) for term in self.term._lower(frame)]

    def _values(self) -> tuple[Values, ...]:
        return self.term._values()

    def _text(self, data: bool = True) -> str:
        if self.factor == -1.0:
            return f"-{_in_brackets(self.term, 3, data)}"
        return f"{self.factor!r} * {_in_brackets(self.term, 3, data)}"


@dataclass(frozen=True, eq=True, repr=False)
class BoundBias:
    """A bias bound to a size. Returned by `Bias.on()`; immutable.

    >>> import maskwright as mw
    >>> bound = mw.bias.alibi([0.5]).on(2)
    >>> bound
    (alibi([0.5])).on(2, kv_len=2, batch=1, heads=1, q_start=0)
    >>> bound.shape
    (1, 1, 2, 2)
    """

    bias: Bias
    frame: Frame

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys), with 1 where nothing varies: the shape of `dense()`."""
        return (*self.bias.planes, self.frame.q_len, self.frame.kv_len)

    def dense(self) -> Any:
        """All added scores, (batch or 1, heads or 1, queries, keys).

        >>> import maskwright as mw
        >>> mw.bias.relative([[-1.0, 0.0, 1.0]]).on(2).dense().tolist()
        [[[[0.0, 1.0], [-1.0, 0.0]]]]
        """
        return self.bias.dense(self.frame)

    def lower(self) -> tuple[Term, ...]:
        """The bias as a sum of terms, for a backend; see `Bias.lower`.

        >>> import maskwright as mw
        >>> [type(term).__name__ for term in mw.bias.alibi(2).on(4).lower()]
        ['DistanceTerm']
        """
        return self.bias.lower(self.frame)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The dense array, so that numpy functions accept bound biases."""
        values = self.dense()
        array = np.asarray(values.detach().cpu() if is_torch(values) else values)
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        frame = self.frame
        return (
            f"({self.bias!r}).on({frame.q_len}, kv_len={frame.kv_len}, batch={frame.batch}, "
            f"heads={frame.heads}, q_start={frame.q_start})"
        )

    def _repr_svg_(self) -> str | None:
        # Imported by name: bias does not depend on draw.
        draw = importlib.import_module("maskwright.draw.picture")
        try:
            picture: str = draw.notebook_svg(self)
        except SizeError:
            return None
        return picture


def brief(bias: Bias) -> str:
    """The text of a bias without its data."""
    return bias._text(data=False)


def _in_brackets(bias: Bias, precedence: int, data: bool) -> str:
    text = bias._text(data)
    return text if bias._precedence >= precedence else f"({text})"


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ArgumentError(f"The bias is nested deeper than {MAX_DEPTH} operators. Flatten it.")


def _not_a_bias(other: object, operator: str) -> ArgumentError:
    return ArgumentError(
        f"{operator} combines two biases, got {type(other).__name__}. "
        "Wrap an array or a number in mw.bias.tensor(...)."
    )
