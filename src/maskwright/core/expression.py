"""What masks and biases have in common: text, refused operators, and limits of nesting."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from maskwright.core.validate import literal
from maskwright.errors import ArgumentError, SizeError, TruthError

if TYPE_CHECKING:
    from maskwright.core.frame import BroadcastDims, Frame

MAX_DEPTH: Final = 100
MAX_TERMS: Final = 1_000  # of one operator


class Expression(ABC):
    """Base class of masks and biases, which have no size."""

    __array_ufunc__: ClassVar[None] = None  # numpy arrays defer their operators, which raise
    _base: ClassVar[type[Any]]  # Mask or Bias
    _kind: ClassVar[str]  # for messages
    _truth: ClassVar[str]  # what to write in place of a boolean value
    _wrap: ClassVar[str]  # how to make an expression of an array
    _depth = 1  # nesting depth of the expression
    _precedence = 3  # of its text; that of calls is 3

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        raise ArgumentError(
            f"A {self._kind} has no size, so it cannot be converted to an array. "
            f"Bind it first: {self._kind}.on(q_len).dense()."
        )

    def __bool__(self) -> NoReturn:
        raise TruthError(f"A {self._kind} has no boolean value. {self._truth}")

    def __repr__(self) -> str:
        return self._text()

    @abstractmethod
    def _text(self, data: bool = True) -> str:
        """Source code that constructs this expression; `...` in place of arrays if not `data`."""

    @abstractmethod
    def _parts(self) -> tuple[Any, ...]:
        """The expressions that this one is composed of."""

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        """Batch and head counts of the data."""
        return ()

    def _fit(self, frame: Frame) -> None:  # noqa: B027 - most atoms fit every frame
        """Raises FrameError if the data does not fit the frame."""

    def _in_brackets(self, precedence: int, data: bool) -> str:
        """The text, in brackets if an operator of this precedence needs them."""
        text = self._text(data)
        return f"({text})" if self._precedence < precedence else text

    def _operand(self, other: Any, operator: str) -> Any:
        """The other operand of an operator, which must be of the same kind."""
        if isinstance(other, self._base):
            return other
        bound = hasattr(other, self._kind) and hasattr(other, "frame")
        fix = "Combine before binding to a size" if bound else f"Wrap an array in {self._wrap}"
        raise ArgumentError(
            f"{operator}: expected a {self._kind}, got {type(other).__name__}. {fix}."
        )


class AtomExpression(Expression):
    """Base class of expressions that are not composed of others.

    A subclass is a frozen dataclass. Its text and JSON are derived from its fields, which have the
    names of the arguments of the function that constructs it, or name them in their metadata;
    fields with their default value are omitted.
    """

    name: ClassVar[str]
    positional: ClassVar[tuple[str, ...]] = ()  # arguments that text shows without their name
    serializable: ClassVar[bool] = True  # False if text and JSON cannot represent it
    _data: ClassVar[tuple[type, ...]]  # types of arguments that may be long

    def _parts(self) -> tuple[Any, ...]:
        return ()

    def _call(self) -> tuple[str, dict[str, Any]]:
        """Name and arguments of the call that constructs this atom."""
        arguments = {}
        for field in fields(self):  # type: ignore[arg-type]  # each subclass is a dataclass
            value = getattr(self, field.name)
            if value != field.default:
                arguments[field.metadata.get("argument", field.name)] = value
        return self.name, arguments

    def _text(self, data: bool = True) -> str:
        name, arguments = self._call()
        if not data and any(isinstance(value, self._data) for value in arguments.values()):
            return f"{name}(...)"
        shown = [
            literal(value) if key in self.positional else f"{key}={literal(value)}"
            for key, value in arguments.items()
        ]
        return f"{name}({', '.join(shown)})"


class CompositeExpression(Expression):
    """Base class of expressions that are composed of others."""

    operator: ClassVar[str]  # its name in JSON
    _max_parts: ClassVar[int] = MAX_TERMS
    _members: tuple[Any, ...]  # what _parts() returns

    def __post_init__(self) -> None:
        depth, parts = 0, self._parts()
        for part in parts:
            depth = part._depth if part._depth > depth else depth
        self.__dict__.update(_depth=depth + 1, _members=parts)
        if depth >= MAX_DEPTH:
            raise ArgumentError(
                f"The expression is nested deeper than {MAX_DEPTH} operators. "
                f"Flatten it, or pass an array to {self._wrap}."
            )
        if len(parts) > self._max_parts:
            raise ArgumentError(
                f"{self.operator} has {len(parts)} terms, more than {self._max_parts}. "
                f"Combine fewer, or pass an array to {self._wrap}."
            )

    def _operands(self, parts: list[Any]) -> Any:
        """The value of the operator in JSON, made of the JSON of the parts."""
        return parts

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        dims: list[BroadcastDims] = []
        for part in self._members:
            dims += part._dims
        return tuple(dims)

    def _fit(self, frame: Frame) -> None:
        for part in self._members:
            part._fit(frame)


class BoundExpression:
    """Base class of expressions that are bound to a size."""

    def _repr_svg_(self) -> str | None:
        return drawn(self, "notebook_svg")


def drawn(subject: object, how: str) -> str | None:
    """The picture shown by a notebook; None, which means the text, if it is too large."""
    # Imported by name: core does not depend on draw.
    draw = importlib.import_module("maskwright.draw.picture")
    try:
        picture: str = getattr(draw, how)(subject)
    except SizeError:
        return None
    return picture
