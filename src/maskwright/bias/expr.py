"""Bias expressions: `Bias`, the base class; `BiasAtom`; sums and multiples; and bound biases.

An expression has no size. `Bias.on()` binds it to one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.bias.terms import dense_terms, merge_terms
from maskwright.bias.values import Values, is_torch, parse_factor
from maskwright.core.expr import brief as brief
from maskwright.core.expression import (
    AtomExpression,
    BoundExpression,
    CompositeExpression,
    Expression,
)
from maskwright.core.frame import Frame, check_size, make_frame, merge_dims, on_call
from maskwright.errors import ArgumentError, FrameError

if TYPE_CHECKING:
    from maskwright.bias.terms import Term


class Bias(Expression):
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

    _kind = "bias"
    _truth = "Compare with None: `bias is not None`."
    _wrap = "mw.bias.tensor(...)"

    # ── operators ─────────────────────────────────────────────────────────────────────────────

    def __add__(self, other: Bias) -> Bias:
        return Sum((*self._terms(), *self._operand(other, "+")._terms()))

    def __radd__(self, other: object) -> Any:
        if type(other) is int and other == 0:  # sum([a, b]) starts with 0
            return self
        return self._operand(other, "+")

    def __sub__(self, other: Bias) -> Bias:
        return self + Multiple(-1.0, self._operand(other, "-"))

    def __rsub__(self, other: object) -> Any:
        return self._operand(other, "-")

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
        check_size("dense()", size, "lower(frame), or fewer queries at a time")
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

    # ── implemented by each kind of bias ──────────────────────────────────────────────────────

    @abstractmethod
    def _lower(self, frame: Frame) -> list[Term]:
        """The terms, before they are merged."""

    @abstractmethod
    def _values(self) -> tuple[Values, ...]:
        """The values that the bias holds, in a fixed order."""

    def _terms(self) -> tuple[Bias, ...]:
        """The terms of a sum; else the bias itself as the only one."""
        return (self,)


Bias._base = Bias


class BiasAtom(AtomExpression, Bias):
    """Base class of biases that are not composed of others.

    A subclass is a frozen dataclass, as `AtomExpression` says. `BIASES` in `bias.atoms` maps the
    name to the function.
    """

    positional = ("slopes", "table", "values")
    _data = (Values,)

    def _values(self) -> tuple[Values, ...]:
        arguments = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return tuple(value for value in arguments if isinstance(value, Values))

    def _fit(self, frame: Frame) -> None:
        for owner, *planes in self._dims:
            sizes = (frame.batch, frame.heads)
            for name, count, size in zip(("batch", "heads"), planes, sizes, strict=True):
                if count not in (1, size):
                    raise FrameError(
                        f"bias.{owner}: the values have {count} along {name}, the frame has {size}. "
                        f"Pass {name}={count}, or values for {size}."
                    )


class CompositeBias(CompositeExpression, Bias):
    """Base class of biases that are composed of others."""

    _members: tuple[Bias, ...]

    def _values(self) -> tuple[Values, ...]:
        return tuple(values for part in self._members for values in part._values())


@dataclass(frozen=True, repr=False, eq=False)
class Sum(CompositeBias):
    """The sum of several biases."""

    terms: tuple[Bias, ...]
    operator = "sum"
    _precedence = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        merge_dims(self._dims)  # raises if the terms cannot be added

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sum):
            return NotImplemented if not isinstance(other, Bias) else False
        return self.terms == other.terms or Counter(self.terms) == Counter(other.terms)

    def __hash__(self) -> int:
        return hash(("sum", frozenset(Counter(self.terms).items())))

    def _parts(self) -> tuple[Bias, ...]:
        return self.terms

    def _lower(self, frame: Frame) -> list[Term]:
        return [part for term in self.terms for part in term._lower(frame)]

    def _terms(self) -> tuple[Bias, ...]:
        return self.terms

    def _text(self, data: bool = True) -> str:
        text = self.terms[0]._text(data)
        for term in self.terms[1:]:
            if isinstance(term, Multiple) and term.factor == -1.0:
                text += f" - {term.term._in_brackets(2, data)}"
            else:
                text += f" + {term._text(data)}"
        return text


@dataclass(frozen=True, repr=False)
class Multiple(CompositeBias):
    """A bias, multiplied by a number."""

    factor: float
    term: Bias
    operator = "multiple"
    _precedence = 2

    def _parts(self) -> tuple[Bias, ...]:
        return (self.term,)

    def _operands(self, parts: list[Any]) -> Any:
        return [self.factor, *parts]

    def _lower(self, frame: Frame) -> list[Term]:
        return [term._replace(values=term.values * self.factor) for term in self.term._lower(frame)]

    def _text(self, data: bool = True) -> str:
        sign = "-" if self.factor == -1.0 else f"{self.factor!r} * "
        return sign + self.term._in_brackets(3, data)


@dataclass(frozen=True, eq=True, repr=False)
class BoundBias(BoundExpression):
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
        return f"({self.bias!r}).{on_call(self.frame)}"
