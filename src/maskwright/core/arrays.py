"""Arrays from outside: any framework's array in, a read-only one that compares by content out.

No framework is imported here. An array is read by `__array__` or by DLPack, so torch, jax and
numpy arrays all work, and so do plain lists.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from maskwright.errors import ArgumentError

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

_LARGEST: Final = 2**62


class FrozenArray:
    """A read-only copy of an array, equal and hashed by shape and content."""

    __slots__ = ("_hash", "data")

    data: npt.NDArray[Any]

    def __init__(self, data: npt.NDArray[Any]) -> None:
        copy = np.array(data, order="C", copy=True)
        copy.setflags(write=False)
        self.data = copy
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FrozenArray):
            return NotImplemented
        return self.data is other.data or (
            self.data.shape == other.data.shape
            and self.data.dtype == other.data.dtype
            and bool(np.array_equal(self.data, other.data))
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.data.shape, self.data.dtype.str, self.data.tobytes()))
        return self._hash

    def __repr__(self) -> str:
        return repr(self.data.tolist())

    def __reduce__(self) -> tuple[type[FrozenArray], tuple[npt.NDArray[Any]]]:
        return (FrozenArray, (self.data,))


def read_array(value: object, what: str) -> npt.NDArray[Any]:
    """Any array-like as numpy, without importing the framework that it comes from."""
    if isinstance(value, (str, bytes, dict)):
        raise ArgumentError(f"{what} is {_kind(value)}. Give a list or an array of numbers.")
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise ArgumentError(
            f"{what} has rows of different lengths or numbers too large for int64. "
            "Give a rectangular array."
        ) from error
    except Exception as error:  # a framework's own refusal: on an accelerator, or needs grad
        array = _by_dlpack(value, what, error)
    if array.dtype == object:
        raise ArgumentError(
            f"{what} holds values that are not plain numbers, or too large for int64. "
            "Give a rectangular array of numbers."
        )
    return array


def read_ints(value: object, what: str) -> IntArray:
    """A whole-number array as int64; bools and floats are refused, an empty list is fine."""
    array = read_array(value, what)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"{what} has dtype {array.dtype}. Give whole numbers.")
    if array.dtype.kind == "u" and array.size and int(array.max()) > _LARGEST:
        raise ArgumentError(f"{what} holds {int(array.max())}. Give numbers below 2**62.")
    return array.astype(np.int64, copy=False)


def read_bools(value: object, what: str, *, instead: str) -> BoolArray:
    """A bool array; 0 and 1 as whole numbers pass too, floats never do."""
    array = read_array(value, what)
    if array.dtype == np.bool_:
        return array
    if array.size == 0:
        return array.astype(np.bool_)
    if array.dtype.kind in "iu":
        odd = array[(array != 0) & (array != 1)]
        if odd.size:
            raise ArgumentError(f"{what} holds {odd.flat[0]}. {instead}")
        return array.astype(np.bool_)
    raise ArgumentError(f"{what} has dtype {array.dtype}. {instead}")


def read_whole(value: object, what: str, *, least: int) -> int:
    """One whole number, at least `least`."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{what} is {_kind(value)}. Give a whole number of {least} or more.")
    number = int(value.__index__())
    if number < least:
        # `what` ends in a name, so that the message reads name=value.
        raise ArgumentError(
            f"{what}={number} is less than {least}. Give a whole number of {least} or more."
        )
    if number > _LARGEST:
        raise ArgumentError(f"{what}={number} is beyond 2**62. Give a smaller number.")
    return number


def _by_dlpack(value: object, what: str, error: Exception) -> npt.NDArray[Any]:
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except Exception:
            pass
    raise ArgumentError(
        f"{what} is {_kind(value)} that numpy can't read ({error}). "
        "Move it to the CPU, detach it, or give a list."
    ) from error


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"
