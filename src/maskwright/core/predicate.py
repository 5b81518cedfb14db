"""Calls of predicates of `where`, with numpy arrays or, as FlexAttention does, with tensors.

A predicate that uses tensors is called by PyTorch's `create_mask`: its operators may mean something
else for a tensor and an array (`&` of both returns uint8). Only one that fails with tensors, as it
converts the arrays itself, is called with arrays. One that runs with both must return the same
mask. PyTorch is not imported: a predicate that uses tensors has imported it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.core.validate import read_array
from maskwright.errors import ArgumentError, MaskError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.validate import BoolArray, IntArray

    Predicate = Callable[[Any, Any, Any, Any], Any]


class Positions(NamedTuple):
    """The cells that a predicate is called for: their batch rows, heads, queries and keys.

    Batch rows and heads count from 0, queries and keys are consecutive positions.
    """

    batch: int
    heads: int
    queries: IntArray
    keys: IntArray

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Number of batch rows, heads, queries and keys."""
        return self.batch, self.heads, self.queries.size, self.keys.size


class Frameworks(NamedTuple):
    """What a predicate is called with.

    With both, the results are compared in each call. That is needed where tensors compute floats:
    in float32, arrays in float64. Otherwise the first and last cells are compared if it runs with
    tensors, too: a function of the whole array, such as `q.max()`, is one of a position there.
    """

    arrays: bool
    tensors: bool
    device: Any = None
    compares: bool = False


def frameworks(fn: Predicate, positions: Positions, text: str) -> Frameworks:
    """What `fn` is written for: called for a few positions.

    Raises:
        ArgumentError: If the predicate fails, returns anything but booleans, or runs with arrays
            and with tensors but returns different masks.
    """
    torch = sys.modules.get("torch")
    array_call: Any = _recorder(torch)(refuses_arrays=True) if torch else nullcontext()
    cells, error = None, None
    try:
        with array_call:
            cells = call_with_arrays(fn, positions, text)
    except MaskError as problem:
        error = problem
    if torch is not None:
        if array_call.calls:
            try:
                call_with_tensors(fn, positions, text, array_call.device)
            except ArgumentError:
                if cells is None or array_call.mixes:
                    raise
                return Frameworks(arrays=True, tensors=False)  # converts arrays to tensors itself
            return Frameworks(arrays=False, tensors=True, device=array_call.device)
        tensor_call = _recorder(torch)(refuses_arrays=False)
        try:
            with tensor_call:
                other = _check(_vmap(torch, fn, positions), positions, text)
        except Exception:
            pass  # the predicate is written for arrays
        else:
            if cells is None:
                return Frameworks(arrays=False, tensors=True)
            _compare(cells, other, positions, text)
            return Frameworks(arrays=True, tensors=tensor_call.floats, compares=True)
    elif "torch" in sys.modules:  # the predicate has imported it
        return frameworks(fn, positions, text)
    if error is not None:
        raise error
    return Frameworks(arrays=True, tensors=False)


def call(fn: Predicate, positions: Positions, text: str, by: Frameworks) -> BoolArray:
    """The predicate's result, (batch or 1, heads or 1, queries, keys)."""
    if not by.arrays:
        return call_with_tensors(fn, positions, text, by.device)
    cells = call_with_arrays(fn, positions, text)
    if by.tensors:
        _compare(cells, call_with_tensors(fn, positions, text, by.device), positions, text)
    elif by.compares:
        _compare_corners(fn, cells, positions, text)
    return cells


def call_with_arrays(fn: Predicate, positions: Positions, text: str) -> BoolArray:
    """The result of a predicate of broadcastable numpy arrays."""
    b = np.arange(positions.batch).reshape(-1, 1, 1, 1)
    h = np.arange(positions.heads).reshape(1, -1, 1, 1)
    q, k = positions.queries.copy(), positions.keys.copy()  # which the predicate may change
    q, k = q.reshape(1, 1, -1, 1), k.reshape(1, 1, 1, -1)
    try:
        return _check(fn(b, h, q, k), positions, text)
    except MaskError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"{text}: the predicate failed with {type(error).__name__}: {error}. "
            "It must take four broadcastable arrays b, h, q, k and return booleans."
        ) from error


def call_with_tensors(fn: Predicate, positions: Positions, text: str, device: Any) -> BoolArray:
    """The result of a FlexAttention mask_mod, by PyTorch's `create_mask`."""
    flex = import_module("torch.nn.attention.flex_attention")
    start, first = int(positions.queries[0]), int(positions.keys[0])  # create_mask counts from 0
    try:
        cells = flex.create_mask(
            lambda b, h, q, k: fn(b, h, q + start, k + first),
            *positions.shape,
            device=device or "cpu",
        )
    except MaskError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"{text}: the predicate uses tensors, so it is called with tensors b, h, q, k of one "
            f"position each, as in FlexAttention, and failed with {type(error).__name__}: {error}. "
            "Index tensors with tensors only, and return a boolean tensor."
        ) from error
    return _check(cells, positions, text)


def _vmap(torch: Any, fn: Predicate, positions: Positions) -> Any:
    """What `create_mask` computes for a predicate that indexes no tensor, without importing it."""
    for axis in (3, 2, 1, 0):
        fn = torch.vmap(fn, in_dims=tuple(0 if place == axis else None for place in range(4)))
    b, h = torch.arange(positions.batch), torch.arange(positions.heads)
    return fn(b, h, torch.tensor(positions.queries), torch.tensor(positions.keys))


def _check(answer: Any, positions: Positions, text: str) -> BoolArray:
    """The cells that a predicate returned; an axis that they do not depend on has size 1."""
    if hasattr(answer, "detach"):
        answer = answer.detach().cpu()
    cells = read_array(answer, text)
    if cells.dtype != np.bool_:
        raise ArgumentError(f"{text}: the predicate returned dtype {cells.dtype}. Return booleans.")
    whole = positions.shape
    if cells.ndim > 4 or any(
        size not in (1, full) for size, full in zip(cells.shape[::-1], whole[::-1], strict=False)
    ):
        raise ArgumentError(
            f"{text}: the predicate returned shape {cells.shape} for cells {whole}. "
            "Return an array that broadcasts to them."
        )
    cells = cells.reshape((1,) * (4 - cells.ndim) + cells.shape)
    # vmap repeats what does not depend on b or h.
    if not cells.strides[0]:
        cells = cells[:1]
    if not cells.strides[1]:
        cells = cells[:, :1]
    return np.broadcast_to(cells, (*cells.shape[:2], *whole[2:]))


def _compare_corners(fn: Predicate, cells: BoolArray, positions: Positions, text: str) -> None:
    """Raises ArgumentError if tensors of the first and last positions return other cells."""
    rows, columns = ([0, size - 1] for size in positions.shape[2:])
    corners = Positions(
        min(positions.batch, 2),
        min(positions.heads, 3),
        positions.queries[rows],
        positions.keys[columns],
    )
    try:
        tensors = _check(_vmap(sys.modules["torch"], fn, corners), corners, text)
    except Exception:
        return  # PyTorch has no mask to compare with
    arrays = np.broadcast_to(cells, positions.shape)[: corners.batch, : corners.heads]
    _compare(arrays[:, :, rows][..., columns], tensors, corners, text)


def _compare(arrays: BoolArray, tensors: BoolArray, positions: Positions, text: str) -> None:
    """Raises ArgumentError if a predicate has returned different masks."""
    different = arrays != tensors
    if different.any():
        b, h, q, k = np.argwhere(different)[0].tolist()
        raise ArgumentError(
            f"{text}: the predicate returns different masks for arrays and for tensors, first in "
            f"row {positions.queries[q]} and column {positions.keys[k]} of batch {b}, head {h}. "
            "Compare integers instead of floats, without functions of whole arrays such as all() "
            "or max()."
        )


@cache
def _recorder(torch: Any) -> Any:
    """The class of contexts that record the functions of PyTorch that a predicate calls."""
    conversions = (torch.as_tensor, torch.asarray, torch.from_numpy, torch.tensor)

    class Recorder(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __init__(self, *, refuses_arrays: bool) -> None:
            super().__init__()
            self.refuses_arrays = refuses_arrays
            self.calls = False
            self.mixes = False  # passes arrays to functions of tensors
            self.floats = False
            self.device: Any = None  # of the first tensor

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls = True
            leaves = torch.utils._pytree.tree_leaves((args, kwargs))
            tensors = (x for x in leaves if isinstance(x, torch.Tensor))
            self.device = self.device or next((x.device for x in tensors), None)
            refuses = self.refuses_arrays and func not in conversions
            if refuses and any(isinstance(x, (np.ndarray, np.generic)) for x in leaves):
                self.mixes = True
                raise TypeError("a function of tensors was called with an array")
            result = func(*args, **(kwargs or {}))
            self.floats |= isinstance(result, torch.Tensor) and result.is_floating_point()
            return result

    return Recorder
