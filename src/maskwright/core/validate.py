"""Validation of arguments: integers, booleans, and arrays of any framework.

No framework is imported: arrays are read by `__array__` or DLPack, so that torch, jax and numpy
arrays and plain lists all work. `FrozenArray` is a read-only array that compares by content.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from maskwright.errors import ArgumentError, MaskError

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

MAX_INT: Final = 2**62  # sums of two such positions still fit int64
MAX_VALUES: Final = 2**24  # of one range
MAX_CHARACTERS: Final = 2**24  # of an array of strings


class FrozenArray:
    """A read-only array that is compared and hashed by shape and content."""

    __slots__ = ("_bytes", "data")

    data: npt.NDArray[Any]

    def __init__(self, data: npt.NDArray[Any]) -> None:
        # A view of bytes cannot be made writable again, unlike a copy with a cleared flag.
        self._bytes = data.tobytes()
        whole = np.frombuffer(self._bytes, data.dtype) if data.size else np.empty(0, data.dtype)
        self.data = whole.reshape(data.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FrozenArray):
            return NotImplemented
        return (
            self.data.shape == other.data.shape
            and self.data.dtype == other.data.dtype
            and self._bytes == other._bytes
        )

    def __hash__(self) -> int:
        return hash((self.data.shape, self.data.dtype.str, self._bytes))

    def __repr__(self) -> str:
        return repr(self.data.tolist())

    def __reduce__(self) -> tuple[type[FrozenArray], tuple[npt.NDArray[Any]]]:
        return (FrozenArray, (self.data,))


def literal(value: object) -> str:
    """Source code of a value: a number, a boolean, None, a name, a range or an array."""
    if isinstance(value, range):
        return f"range({value.stop})" if value.start == 0 and value.step == 1 else repr(value)
    if isinstance(value, tuple) and value and isinstance(value[0], range):
        return f"[{', '.join(map(literal, value))}]"
    return repr(plain(value)) if isinstance(value, (FrozenArray, tuple)) else repr(value)


def plain(value: object) -> object:
    """The value as JSON can hold it: arrays and tuples as lists, booleans in arrays as 0 and 1.

    The values of biases have a `tolist` of their own.
    """
    if isinstance(value, FrozenArray):
        data = value.data
        return (data.astype(np.int64) if data.dtype == np.bool_ else data).tolist()
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def read_array(value: object, what: str) -> npt.NDArray[Any]:
    """Any array-like as a numpy array, without importing the framework that it comes from."""
    if isinstance(value, range):
        if not all(abs(end) <= MAX_INT for end in (value.start, value.stop)):
            raise ArgumentError(f"{what} goes beyond 2**62. Pass smaller numbers.")
        count = max(0, -((value.start - value.stop) // value.step))  # len() may overflow
        if count > MAX_VALUES:
            raise ArgumentError(f"{what} has {count} numbers. Pass at most {MAX_VALUES}.")
        return np.arange(value.start, value.stop, value.step)
    if isinstance(value, (set, frozenset)) and all(isinstance(item, int) for item in value):
        value = sorted(value)
    listed = isinstance(value, (list, tuple, int, float, np.generic))
    if not listed and not hasattr(value, "__array__") and not hasattr(value, "__dlpack__"):
        raise ArgumentError(
            f"{what} is {describe_type(value)}. Pass a list or an array of numbers."
        )
    if isinstance(value, (list, tuple)):
        _check_strings(value, what)
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{what} is a masked array. Fill it first, with .filled(...).")
    try:
        array = np.asarray(value)
    except MaskError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise ArgumentError(
            f"{what} is ragged, too deep, or holds numbers beyond 2**62. Pass a rectangular array."
        ) from error
    except Exception as error:  # of a framework: the tensor is on an accelerator, or requires grad
        array = _by_dlpack(value, what, error)
    if array.dtype == object:
        raise ArgumentError(
            f"{what} contains something other than numbers, or numbers beyond 2**62. "
            "Pass a rectangular array of numbers."
        )
    return array


def read_ints(value: object, what: str) -> IntArray:
    """An integer array as int64. Booleans and floats are refused; an empty list is accepted."""
    array = read_array(value, what)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"{what} has dtype {array.dtype}. Pass integers.")
    if array.size and max(int(array.max()), -int(array.min())) > MAX_INT:
        raise ArgumentError(f"{what} contains a number beyond 2**62. Pass smaller numbers.")
    if isinstance(value, (list, tuple)) and bool in map(type, value):
        raise ArgumentError(f"{what} mixes booleans and numbers. Pass only one kind.")
    return array.astype(np.int64, copy=False)


def read_bools(value: object, what: str, *, instead: str) -> BoolArray:
    """A boolean array. Integers 0 and 1 are accepted, floats are not."""
    array = read_array(value, what)
    if array.dtype == np.bool_:
        return array
    if array.size == 0:
        return array.astype(np.bool_)
    if array.dtype.kind in "iu":
        if int(array.min()) < 0 or int(array.max()) > 1:
            odd = array[(array != 0) & (array != 1)]
            raise ArgumentError(f"{what} contains {odd.flat[0]}. {instead}")
        return array.astype(np.bool_)
    raise ArgumentError(f"{what} has dtype {array.dtype}. {instead}")


def token_rows(array: Any, what: str, *, min_rows: int = 0) -> Any:
    """One sequence or a batch of sequences as (batch, tokens)."""
    if array.ndim == 1:
        return array[None]
    if array.ndim != 2 or len(array) < min_rows:
        raise ArgumentError(
            f"{what} has shape {array.shape}. Expected (tokens,) or (batch, tokens)."
        )
    return array


def parse_int(value: object, what: str, *, minimum: int | None = None) -> int:
    """Returns an integer of any integer type, checked against a minimum; booleans are refused.

    `what` ends in the argument's name, so that messages read `name=value`.
    """
    if type(value) is int and (-MAX_INT if minimum is None else minimum) <= value <= MAX_INT:
        return value
    boolean = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
    try:
        number = operator.index(value) if not boolean else None  # type: ignore[arg-type]
    except Exception:  # any type's own error; the one below is clearer
        number = None
    if number is None:
        raise ArgumentError(f"{what} is {describe_type(value)}. Pass an integer.")
    if abs(number) > MAX_INT:
        raise ArgumentError(f"{what} is beyond 2**62. Pass a smaller number.")
    if minimum is not None and number < minimum:
        raise ArgumentError(f"{what}={number} is less than {minimum}. Pass {minimum} or more.")
    return number


def parse_bool(value: object, what: str) -> bool:
    """A boolean."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise ArgumentError(f"{what} is {describe_type(value)}. Pass True or False.")


def read_choice(
    value: object, what: str, allowed: tuple[str, ...], error: type[MaskError] = ArgumentError
) -> str:
    """One of the allowed strings; anything else raises `error`."""
    if isinstance(value, str) and value in allowed:
        return value
    text = f"{value!r:.40}" if isinstance(value, str) else describe_type(value)
    raise error(f"{what} is {text}. Pass {' or '.join(map(repr, allowed))}.")


def describe_type(value: object) -> str:
    """The type of a value, for a message."""
    return "None" if value is None else f"of type {type(value).__name__}"


def _check_strings(values: list[Any] | tuple[Any, ...], what: str) -> None:
    """Raises ArgumentError for strings of which one is very long: an array is as wide as that."""
    rows = values if values and isinstance(values[0], (list, tuple)) else [values]
    count = longest = 0
    for row in rows:
        if isinstance(row, (list, tuple)):
            lengths = [len(item) for item in row if type(item) is str]
            count, longest = count + len(row), max(longest, max(lengths, default=0))
    if count * longest > MAX_CHARACTERS:
        raise ArgumentError(
            f"{what} has {count} strings of up to {longest} characters. Pass shorter ones, or integers."
        )


def _by_dlpack(value: object, what: str, error: Exception) -> npt.NDArray[Any]:
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except Exception:
            pass
    raise ArgumentError(
        f"{what} is {describe_type(value)}, which numpy cannot read ({str(error)[:100]}). "
        "Pass a plain array on the CPU, detached, or a list."
    ) from error
