"""Grammars of expressions: one table of functions and operators, for their text and their JSON.

`MASKS` is the grammar of masks; `bias.text` has that of biases.
"""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from maskwright.core.atoms import ATOMS
from maskwright.core.expr import Mask
from maskwright.core.operators import And, Or, by_batch, by_head

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ExpressionT = TypeVar("ExpressionT")


@dataclass(frozen=True)
class Grammar(Generic[ExpressionT]):
    """The functions and operators of one kind of expression."""

    base: type[Any]
    kind: str  # the key of a JSON document
    # For messages
    plural: str
    module: str  # what stands before the names of its functions
    example: str
    symbols: str
    allowed: str  # what text may contain
    atoms: Mapping[str, Callable[..., ExpressionT]]
    # JSON; each is called with the reader of `core.serialize` and the value of its key
    operators: Mapping[str, Callable[[Any, Any], ExpressionT]]
    unary: Mapping[type[ast.unaryop], Callable[..., ExpressionT]]
    binary: Mapping[type[ast.operator], Callable[..., ExpressionT]]
    scaling: tuple[type[ast.operator], ...] = ()  # those of `binary` with a number on the right
    attributes: tuple[str, ...] = ()  # of an expression, which are expressions
    # functions of one list of expressions
    lists: Mapping[str, Callable[..., ExpressionT]] = field(default_factory=dict)
    numbers: tuple[type, ...] = (int,)
    ranges: bool = False  # whether an argument may be range(…), and in JSON runs of equal values


def _chain(kind: type[And | Or], parts: list[Mask]) -> Mask:
    """The terms of one operator, combined at once: one by one takes quadratic time."""
    terms = tuple(term for part in parts for term in part._terms_of(kind))
    return kind(terms) if len(terms) > 1 else parts[0]


MASKS: Final[Grammar[Mask]] = Grammar(
    base=Mask,
    kind="mask",
    plural="masks",
    module="",
    example="causal() & window(back=3)",
    symbols="&, |, ~ or -",
    allowed="atoms, &, |, ~, -, .T, integers, lists and range()",
    atoms=ATOMS,
    unary={ast.Invert: operator.invert},
    binary={ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.Sub: operator.sub},
    operators={
        "not": lambda reader, value: ~reader.read(value),
        "transpose": lambda reader, value: reader.read(value).T,
        "and": lambda reader, value: _chain(And, reader.read_list(value)),
        "or": lambda reader, value: _chain(Or, reader.read_list(value)),
        "by_head": lambda reader, value: by_head(reader.read_list(value)),
        "by_batch": lambda reader, value: by_batch(reader.read_list(value)),
    },
    attributes=("T",),
    lists={"by_head": by_head, "by_batch": by_batch},
    ranges=True,
)
