"""Reads a mask function of transformers by calling it with symbols in place of its indices.

Such a function compares indices with each other and with tensors that it holds, as in

    def inner_mask(batch_idx, head_idx, q_idx, kv_idx):
        return (kv_idx <= q_idx) & padding_mask[batch_idx, kv_idx]

Called with `Index` objects it returns its own formula: here `("and", ("le", "k", "q"), ("get", 0, "b",
"k"))`, where 0 is the number of the tensor. torch.compile can trace this: the formula is a constant of the
graph and the tensors are values in it, so other padding or other documents do not compile it again.
"""

from __future__ import annotations

import operator
from ast import literal_eval
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode

from maskwright.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Formula = Any  # nested tuples ("le", part, part), names of indices "b", "h", "q", "k", and integers

# The operators of an `Index`. Each is an operation of a formula, with the name that Python has for it.
OPERATORS: Final = (
    *("abs", "add", "and", "eq", "floordiv", "ge", "gt", "invert"),
    *("le", "lt", "mod", "mul", "ne", "or", "sub"),
)
# The operations of a formula, by name.
OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    **{name: getattr(operator, f"__{name}__") for name in OPERATORS},
    "true": lambda: torch.tensor(True),
    "false": lambda: torch.tensor(False),
}


class Index:
    """A symbol: an index of a cell, or an operation on others.

    >>> q, k = Index("q"), Index("k")
    >>> write_formula((k <= q) & (k > q - 3), [])
    "('and', ('le', 'k', 'q'), ('gt', 'k', ('sub', 'q', 3)))"
    """

    device = torch.device("cpu")  # a mask function moves its parts to one device

    def __init__(self, name: str, *parts: Any) -> None:
        self.name = name
        self.parts = parts

    __hash__ = None  # type: ignore[assignment]  # comparisons are symbols

    def __bool__(self) -> bool:
        raise Unsupported("A mask function that branches on an index has no formula.")

    def new_ones(self, _: tuple[()], *, dtype: torch.dtype) -> Index:
        """True: the first operand of `and_masks` of transformers."""
        return _constant("true", dtype)

    def new_zeros(self, _: tuple[()], *, dtype: torch.dtype) -> Index:
        """False: the first operand of `or_masks` of transformers."""
        return _constant("false", dtype)

    def to(self, device: torch.device) -> Index:
        """Itself: a symbol has no device."""
        if not isinstance(device, torch.device):
            raise Unsupported("A mask function that converts an index has no formula.")
        return self


def _constant(name: str, dtype: torch.dtype) -> Index:
    if dtype != torch.bool:
        raise Unsupported("A mask function that makes numbers of an index has no formula.")
    return Index(name)


def _operation(name: str) -> Callable[..., Index]:
    def operate(*operands: Any) -> Index:
        return Index(name, *operands)

    return operate


for _name in OPERATORS:
    setattr(Index, f"__{_name}__", _operation(_name))


class ReadElements(TorchFunctionMode):
    """Within it, a tensor that is indexed by symbols is a symbol."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace `tensor[index]` and `tensor[index, index]`."""
        if func is torch.Tensor.__getitem__:
            index = args[1]
            first = index[0] if isinstance(index, tuple) and len(index) > 0 else index
            if isinstance(first, Index):
                parts = index if isinstance(index, tuple) else (index,)
                return Index("get", args[0], *parts)
        return func(*args, **(kwargs or {}))


def read_formula(function: Callable[..., Any]) -> tuple[str, list[torch.Tensor]]:
    """The formula of a mask function as text, and the tensors in it. torch.compile can trace it.

    Args:
        function: A function of (batch, head, query, key) that only compares, adds and combines
            them, and indexes tensors with them.

    Returns:
        The text of a `Formula`, and the tensors that its "get" operations number.

    >>> import torch
    >>> from transformers.masking_utils import padding_mask_function
    >>> read_formula(padding_mask_function(torch.tensor([[True, False]])))
    ("('get', 0, 'b', 'k')", [tensor([[ True, False]])])
    """
    tensors: list[torch.Tensor] = []
    with ReadElements():
        formula = function(Index("b"), Index("h"), Index("q"), Index("k"))
    return write_formula(formula, tensors), tensors


def write_formula(part: Any, tensors: list[torch.Tensor]) -> str:
    """The text of a symbol; tensors are appended to `tensors`, and replaced by their number."""
    if isinstance(part, torch.Tensor):
        return f"('tensor', {_number(part, tensors)})"
    if not isinstance(part, Index):
        if isinstance(part, bool) or not isinstance(part, int):
            raise Unsupported("A mask function with this value has no formula.")
        return str(part)
    name, parts = part.name, part.parts
    if name == "get":
        texts = [str(_number(parts[0], tensors)), *[write_formula(x, tensors) for x in parts[1:]]]
    elif len(parts) == 0:
        return repr(name) if len(name) == 1 else f"({name!r},)"
    else:
        texts = [write_formula(x, tensors) for x in parts]
    return f"({name!r}, {', '.join(texts)})"


def _number(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> int:
    """The place of a tensor in the list, to which it is appended if it is new."""
    for number, known in enumerate(tensors):
        if known is tensor:
            return number
    tensors.append(tensor)
    return len(tensors) - 1


@lru_cache(maxsize=64)
def parse_formula(text: str) -> Formula:
    """The formula of a text."""
    return literal_eval(text)


def formula_function(formula: Formula, tensors: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """The mask function of a formula.

    >>> import torch
    >>> function = formula_function(("le", "k", ("add", "q", 1)), [])
    >>> function(None, None, torch.tensor(1), torch.arange(4))
    tensor([ True,  True,  True, False])
    """

    def mask_function(b: Any, h: Any, q: Any, k: Any) -> Any:
        return _value(formula, {"b": b, "h": h, "q": q, "k": k}, tensors)

    return mask_function


def _value(formula: Formula, indices: dict[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(formula, str):
        return indices[formula]
    if isinstance(formula, int):
        return formula
    name, *parts = formula
    if name == "tensor":
        return tensors[parts[0]]
    if name == "get":
        number, *places = parts
        return tensors[number][tuple(_value(place, indices, tensors) for place in places)]
    return OPERATIONS[name](*(_value(part, indices, tensors) for part in parts))
