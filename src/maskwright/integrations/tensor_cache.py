"""What was read from a tensor, kept while the tensor lives and is not written into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

Value = TypeVar("Value")


class TensorCache:
    """One value for each tensor, by weak reference.

    >>> import torch
    >>> cache, x = TensorCache(), torch.zeros(2)
    >>> cache.get(x, (), lambda: "first"), cache.get(x, (), lambda: "second")
    ('first', 'first')
    >>> _ = x.add_(1)
    >>> cache.get(x, (), lambda: "third")
    'third'
    """

    def __init__(self) -> None:
        self._values = WeakTensorKeyDictionary()

    def get(self, tensor: torch.Tensor, state: Any, compute: Callable[[], Value]) -> Value:
        """The value of a tensor, computed again if the tensor was written into or `state` differs."""
        state = (tensor._version, state)
        known = self._values.get(tensor)
        if known is None or known[0] != state:
            known = self._values[tensor] = (state, compute())
        value: Value = known[1]
        return value
