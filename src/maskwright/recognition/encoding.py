"""Conventions of arrays: which value keeps a cell and which hides it, told from the values.

What may enter here: an array of any framework, as it stands. What it says as a mask is for
`recognize`; whether it is wise is for `lint`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from maskwright.core.validate import read_array
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.validate import BoolArray

Form = Literal["bool", "integer", "float", "additive"]

LEAST_FILL: Final = -1000.0  # what is added to a score and is larger than this hides nothing


@dataclass(frozen=True)
class Convention:
    """How an array says its mask: its form, the value that keeps, and the one that hides.

    "bool", "integer" and "float" arrays hold two values that choose; an "additive" one is added to
    the scores. `hides` is the value nearest to the scores where there are several.

    >>> import maskwright as mw
    >>> mw.recognize([[0.0, -1e9], [0.0, 0.0]]).convention
    additive, 0 keeps, -1e+09 hides, (2, 2), float64
    """

    form: Form
    keeps: float
    hides: float
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        if self.form == "bool":
            return f"bool, {bool(self.keeps)} keeps, {self.shape}"
        name = "0/1 floats" if self.form == "float" else self.form
        hides = f"{self.hides:.2g}"
        return f"{name}, {self.keeps:g} keeps, {hides} hides, {self.shape}, {self.dtype}"

    __repr__ = __str__


@dataclass(frozen=True)
class Reading:
    """One way to read an array: True where a query may see a key, in the array's own shape."""

    allowed: BoolArray
    convention: Convention


def read_values(value: object, what: str) -> tuple[npt.NDArray[Any], str]:
    """Any framework's array as numpy, and the name of its own dtype. No framework is imported."""
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    given: Any = value
    if type(value).__module__ == "torch.nn.attention.bias":
        raise ArgumentError(
            f"{what} is a {type(value).__name__}, which holds no values. Give the mask as a tensor."
        )
    if name == "bfloat16":  # numpy has no such type; float32 holds all its values
        given = given.float() if hasattr(given, "float") else given.astype("float32")
    if hasattr(given, "detach"):
        try:
            given = given.detach().cpu()
        except (NotImplementedError, RuntimeError) as error:
            raise ArgumentError(
                f"{what} is on device {given.device}, where it has no values. Give it on the CPU."
            ) from error
    values = read_array(given, what)
    if values.dtype.kind not in "biuf":
        raise ArgumentError(f"{what} has dtype {values.dtype}. Give truth values or numbers.")
    return values, name if name == "bfloat16" else str(values.dtype)


def readings(value: object, what: str) -> tuple[Reading, ...]:
    """Every way to read an array as a mask: where two values choose, True keeps comes first.

    An additive array can be read in one way only. One that holds a number which neither keeps nor
    hides is refused.
    """
    values, dtype = read_values(value, what)
    shape = tuple(int(size) for size in values.shape)
    if values.dtype == np.bool_:
        return _both(values, "bool", shape, dtype)
    highest, lowest = (float(values.max()), float(values.min())) if values.size else (0.0, 0.0)
    if values.dtype.kind in "iu" and lowest >= 0 and highest <= 1:
        return _both(values != 0, "integer", shape, dtype)
    kept = values == 0
    if highest > 0:
        ones = values == 1
        if not bool((kept | ones).all()):
            raise _refusal(what, values, ~(kept | ones))
        return _both(ones, "float", shape, dtype)
    hidden = values <= LEAST_FILL
    if not bool((kept | hidden).all()):
        raise _refusal(what, values, ~(kept | hidden))
    fill = float(values[hidden].max()) if bool(hidden.any()) else -np.inf
    return (Reading(kept, Convention("additive", 0.0, fill, shape, dtype)),)


def _both(lit: BoolArray, form: Form, shape: tuple[int, ...], dtype: str) -> tuple[Reading, ...]:
    return (
        Reading(lit, Convention(form, 1.0, 0.0, shape, dtype)),
        Reading(~lit, Convention(form, 0.0, 1.0, shape, dtype)),
    )


def _refusal(what: str, values: npt.NDArray[Any], odd: BoolArray) -> ArgumentError:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(odd)), values.shape))
    return ArgumentError(
        f"{what} holds {values[index]:g} at {index}, which neither keeps nor hides. Give truth "
        f"values, 0 and 1, or what is added to scores: 0 and one fill of {LEAST_FILL:g} or less."
    )
