"""Checks of the values of a mask array or a bias: numbers, dtype and device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from maskwright.bias.atoms import Alibi, TensorBias
from maskwright.bias.expr import Multiple, Sum, brief
from maskwright.bias.values import is_torch
from maskwright.core.nodes import Cell
from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError
from maskwright.linting.codes import Checks, Finding, make_finding
from maskwright.messages import Reason
from maskwright.recognition.encoding import MAX_MASK_VALUE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from maskwright.bias import Bias
    from maskwright.core.validate import BoolArray
    from maskwright.targets.base import Target

MAX_HIDING_BIAS: Final = -1e4  # of a bias that is meant to mask
CONVENTIONS: Final = ("keep", "drop", "additive")
DTYPE_MAX: Final = {
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float16": 65504.0,
    "bfloat16": (2 - 2**-7) * 2.0**127,
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}
DTYPE_ALIASES: Final = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
}


@dataclass(frozen=True)
class MaskValues:
    """The values of an array read as a mask.

    Args:
        visible: (batch, heads, query, key), True where the key is visible; None if the values
            cannot be read as a mask.
        findings: The problems of the values.
        fill: The value that is added to the score of a masked cell, the highest if there are
            several.
        overflow_addend: What overflows when it is added to the fill value: "score" (any score),
            "mask" (a second additive mask), or "" for nothing.
    """

    visible: BoolArray | None
    findings: tuple[Finding, ...]
    fill: float = -np.inf
    overflow_addend: str = ""


class OtherRange(NamedTuple):
    """The values of an additive mask that neither keep nor mask."""

    low: float
    high: float
    few: bool  # whether `low` and `high` are the only ones
    where: BoolArray


@dataclass(frozen=True)
class AdditiveValues:
    """An array (batch, heads, query, key) that is added to the scores.

    Args:
        values: The array.
        convention: How the caller says that the array is read, None if not stated.
        dtype: The dtype of the scores, or of the array if that is not stated.
    """

    values: npt.NDArray[Any]
    convention: str | None
    dtype: str

    @cached_property
    def filled(self) -> BoolArray:
        """Where the value is low enough to mask the key."""
        return np.asarray(self.values <= MAX_MASK_VALUE)

    @cached_property
    def is_filled(self) -> bool:
        """Whether there is a fill value."""
        return bool(self.filled.any())

    @cached_property
    def other(self) -> BoolArray | None:
        """Where the value is neither 0 nor a fill value, NaN included; None if nowhere."""
        other = np.asarray((self.values != 0) & ~self.filled)
        return other if bool(other.any()) else None

    @cached_property
    def other_range(self) -> OtherRange | None:
        """The range of the values that are neither 0, nor a fill value, nor NaN."""
        if self.other is None:
            return None
        where = self.other & ~np.isnan(self.values)
        if not bool(where.any()):
            return None
        high = float(np.max(self.values, where=where, initial=-np.inf))
        low = float(np.min(self.values, where=where, initial=np.inf))
        few = not bool((where & (self.values != low) & (self.values != high)).any())
        return OtherRange(low, high, few, where)

    @cached_property
    def highest_fill(self) -> float:
        """The fill value closest to 0, -inf if there is none."""
        return float(np.max(self.values, where=self.filled, initial=-np.inf))

    @cached_property
    def lowest_fill(self) -> float:
        """The lowest fill value, -inf if there is none."""
        if not self.is_filled:
            return -np.inf
        return float(np.min(self.values, where=self.filled, initial=0))

    @cached_property
    def lowest_finite_fill(self) -> float:
        """The lowest fill value other than -inf, 0 if there is none."""
        if not self.is_filled or self.lowest_fill > -np.inf:
            return self.lowest_fill if self.is_filled else 0.0
        return float(np.min(self.values, where=self.filled & (self.values > -np.inf), initial=0))

    @property
    def limit(self) -> float:
        """The largest number of the dtype of the scores."""
        return DTYPE_MAX.get(self.dtype, np.inf)

    @cached_property
    def weak_fill(self) -> float | None:
        """The single value that is meant as a fill value, but is too close to 0 to mask keys."""
        other = self.other_range
        if other is None or self.is_filled:
            return None
        return other.high if other.few and other.high <= 0 else None


ADDITIVE_CHECKS: Final = Checks[AdditiveValues]()


def check_values(
    values: npt.NDArray[Any], own_dtype: str, convention: str | None, dtype: str | None
) -> MaskValues:
    """Reads an array (batch, heads, query, key) as its consumer does, and checks its values.

    Args:
        values: The array.
        own_dtype: The name of its dtype.
        convention: "keep", "drop", "additive", or None: floats are added to the scores, and other
            dtypes keep where they are not 0, as in PyTorch and transformers.
        dtype: The dtype of the scores, None if not stated.
    """
    kind = values.dtype.kind
    if not values.size:
        return MaskValues(np.zeros(values.shape, np.bool_), ())
    if kind != "f" and not _contains_only(values, 0, 1):
        return _check_integers(values, own_dtype, convention, dtype)
    ones = values if kind == "b" else values == 1
    is_zero_one = _contains_only(values, 0, 1) and (convention == "keep" or bool(ones.any()))
    if kind == "f" and not is_zero_one:
        return _check_additive(values, own_dtype, convention, dtype)
    if convention == "additive" or (kind == "f" and convention != "keep"):
        return MaskValues(ones, (make_finding("zero-one-added", dtype=own_dtype),))
    return MaskValues(~ones if convention == "drop" else ones, ())


def check_bias(bias: Bias) -> Iterator[Finding]:
    """Reports each term with a value that is low enough to mask a key, at its lowest value."""
    for factor, atom in _atoms_of(bias):
        # ALiBi decreases without bound; a large distance is not a mask.
        values = () if isinstance(atom, Alibi) else atom.tensors
        for array in values:
            held = factor * np.asarray(
                array.detach().cpu() if is_torch(array) else array, np.float64
            )
            if not held.size or held.min() > MAX_HIDING_BIAS:
                continue
            cell = None
            if isinstance(atom, TensorBias):
                cell = _first(held.reshape((1,) * (4 - held.ndim) + held.shape) == held.min())
            yield make_finding("bias-hides", cell, term=brief(atom), value=float(held.min()))


def _atoms_of(bias: Bias, factor: float = 1.0) -> Iterator[tuple[float, Bias]]:
    """The biases of a sum, each with the number that multiplies it."""
    if isinstance(bias, Multiple):
        yield from _atoms_of(bias.term, factor * bias.factor)
    elif isinstance(bias, Sum):
        for term in bias.terms:
            yield from _atoms_of(term, factor)
    else:
        yield factor, bias


def parse_dtype(value: object) -> str | None:
    """Returns the name of a floating-point dtype of any framework, None for None.

    Raises:
        ArgumentError: If it is not a floating-point dtype.
    """
    if value is None:
        return None
    name = value if isinstance(value, str) else str(value)
    if name not in DTYPE_MAX and not isinstance(value, str) and not name.startswith("torch."):
        try:
            name = np.dtype(value).name  # type: ignore[call-overload]
        except TypeError:
            name = str(getattr(value, "name", name))
    name = name.split(".")[-1]
    name = DTYPE_ALIASES.get(name, name)
    if name not in DTYPE_MAX:
        raise ArgumentError(
            f"lint: dtype is {name!r:.60}. Pass the dtype of the scores: one of "
            f"{', '.join(DTYPE_MAX)}."
        )
    return name


def check_dtype(values: npt.NDArray[Any], own_dtype: str, target: Target) -> Iterator[Finding]:
    """Reports a dtype for which the framework raises."""
    kind = {"b": "bool", "f": "float"}.get(values.dtype.kind, "integer")
    if target.dtypes and kind not in target.dtypes:
        expected = Reason(f"lint.dtype_{'_'.join(target.dtypes)}")
        yield make_finding("wrong-dtype", target=target.name, expected=expected, dtype=own_dtype)


def check_device(array: object, device: object) -> Iterator[Finding]:
    """Checks that the array is on the device of queries and keys. Lists have no device.

    Raises:
        ArgumentError: If `device` is not a device.
    """
    if device is None:
        return
    # Arrays of numpy state a device from version 2 on only.
    own = "cpu" if isinstance(array, np.ndarray) else getattr(array, "device", None)
    expected, actual = _parse_device(device), _parse_device(own)
    if expected is None:
        raise ArgumentError(
            f"lint: device is {describe_type(device)}. Pass a name such as 'cuda:0'."
        )
    if actual is None:
        return
    same_index = actual[1] == expected[1] or "" in (actual[1], expected[1])
    if actual[0] != expected[0] or not same_index:
        names = [":".join(filter(None, name)) for name in (actual, expected)]
        yield make_finding("wrong-device", actual=names[0], expected=names[1])


# ── integers ──────────────────────────────────────────────────────────────────────────────────────


def _check_integers(
    values: npt.NDArray[Any], own_dtype: str, convention: str | None, dtype: str | None
) -> MaskValues:
    """Integers other than 0 and 1: inverted 0 and 1, ids, or an additive mask."""
    low, high = int(values.min()), int(values.max())
    top = -1 if values.dtype.kind == "i" else int(np.iinfo(values.dtype).max)
    operator = ""
    if _contains_only(values, top - 1, top):
        operator = "~"
    elif top > 0 and _contains_only(values, 0, top):
        operator = "-"
    if operator:
        cell = _first(values == high)
        wrapped = make_finding(
            "integer-wrapped", cell, low=low, high=high, operator=operator, dtype=own_dtype
        )
        return MaskValues(
            (values != high) if convention == "drop" else (values == high), (wrapped,)
        )
    if high > 0:
        cell = _first((values != 0) & (values != 1))
        return MaskValues(None, (make_finding("odd-values", cell, value=int(values[cell])),))
    read = _check_additive(values.astype(np.float64), own_dtype, convention, dtype)
    integer = make_finding("integer-bias", dtype=own_dtype)
    return MaskValues(read.visible, (integer, *read.findings), read.fill, read.overflow_addend)


# ── additive masks ────────────────────────────────────────────────────────────────────────────────


def _check_additive(
    values: npt.NDArray[Any], own_dtype: str, convention: str | None, dtype: str | None
) -> MaskValues:
    """Values that are added to the scores: 0 keeps, a low number masks."""
    added = AdditiveValues(values, convention, dtype or own_dtype)
    masked = added.filled
    if added.other is not None:
        # A value that cannot mask is still meant to, so that the cells are checked as intended.
        masked = masked | (
            added.other if added.weak_fill is not None else values >= -MAX_MASK_VALUE
        )
    addend = ""
    if -added.limit <= added.lowest_finite_fill < -added.limit / 2:
        addend = "score" if added.limit < 1e5 else "mask"
    return MaskValues(~masked, tuple(ADDITIVE_CHECKS.run(added)), added.highest_fill, addend)


@ADDITIVE_CHECKS.register("wrong-form")
def _check_form(added: AdditiveValues) -> Iterator[Finding]:
    if added.convention == "keep":
        yield make_finding("wrong-form")


@ADDITIVE_CHECKS.register("nan-value")
def _check_nan(added: AdditiveValues) -> Iterator[Finding]:
    if added.other is not None:
        nan = np.isnan(added.values)
        if bool(nan.any()):
            yield make_finding("nan-value", _first(nan))


@ADDITIVE_CHECKS.register("positive-value", "fill-too-weak")
def _check_other_values(added: AdditiveValues) -> Iterator[Finding]:
    """Values that neither keep nor mask. Many different ones are a bias, which keeps like 0."""
    other = added.other_range
    if other is None:
        return
    if other.high >= -MAX_MASK_VALUE or (other.few and other.high > 0):
        yield make_finding("positive-value", _first(added.values == other.high), value=other.high)
    elif added.weak_fill is not None:
        yield make_finding("fill-too-weak", _first(other.where), fill=added.weak_fill)


@ADDITIVE_CHECKS.register("summed-fills")
def _check_summed_fills(added: AdditiveValues) -> Iterator[Finding]:
    high, low = added.highest_fill, added.lowest_fill
    if low < 1.5 * high:
        yield make_finding("summed-fills", _first(added.values == low), high=high, low=low)


@ADDITIVE_CHECKS.register("fill-overflows")
def _check_overflow(added: AdditiveValues) -> Iterator[Finding]:
    lowest = added.lowest_finite_fill
    if lowest < -added.limit:
        cell = _first(added.values == lowest)
        yield make_finding(
            "fill-overflows", cell, fill=lowest, dtype=added.dtype, limit=-added.limit
        )


# ── helpers ───────────────────────────────────────────────────────────────────────────────────────


def _parse_device(value: object) -> tuple[str, str] | None:
    """The type of a device and its index, "" if it has none; None if it is not a device."""
    if hasattr(value, "platform"):
        name = f"{value.platform}:{getattr(value, 'id', '')}"
    elif isinstance(value, str) or hasattr(value, "type"):
        name = str(value)
    else:
        return None
    kind, _, index = name.lower().split("device:")[-1].partition(":")
    return ("cuda" if kind == "gpu" else kind), index


def _contains_only(values: npt.NDArray[Any], one: int, other: int) -> bool:
    if values.dtype == np.bool_:
        return True
    return bool(((values == one) | (values == other)).all())


def _first(where: BoolArray) -> Cell:
    """The first cell of (batch, heads, query, key) that is True."""
    return Cell(*(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape)))
