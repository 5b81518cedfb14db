"""Encodings of masks in arrays: which value keeps a cell and which masks it.

An array of bools does not say whether True keeps or masks a cell. `interpretations` returns both
possibilities, and `choose_polarity` the one that is more plausible as an attention mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from maskwright.core.validate import read_array
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.validate import BoolArray, IntArray

Form = Literal["bool", "integer", "float", "additive"]

MAX_MASK_VALUE: Final = -1000.0  # a higher value, added to a score, does not mask it
MAX_EMPTY_SHARE: Final = 0.5  # of the rows of a plausible mask


@dataclass(frozen=True)
class Convention:
    """How an array encodes a mask.

    Attributes:
        form: "bool", "integer" and "float" arrays hold two values, one of which keeps a cell; an
            "additive" array is added to the scores.
        keeps: The value of visible cells.
        hides: The value of masked cells; the highest one if there are several.
        shape: Shape of the array.
        dtype: Name of the array's dtype.

    >>> import maskwright as mw
    >>> mw.recognize([[0.0, -1e9], [0.0, 0.0]]).convention
    additive, 0 keeps, -1e+09 masks, (2, 2), float64
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
        return f"{name}, {self.keeps:g} keeps, {hides} masks, {self.shape}, {self.dtype}"

    __repr__ = __str__


@dataclass(frozen=True)
class Interpretation:
    """One interpretation of an array: its visible cells, in the shape of the array."""

    visible: BoolArray
    convention: Convention


def read_values(value: object, what: str) -> tuple[npt.NDArray[Any], str]:
    """Converts an array of any framework to numpy. No framework is imported.

    Returns:
        The values, and the name of the original dtype.

    Raises:
        ArgumentError: If the values cannot be read, or are neither bools nor numbers.
    """
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    array: Any = value
    if type(value).__module__ == "torch.nn.attention.bias":
        raise ArgumentError(
            f"{what} is a {type(value).__name__}, which holds no values. Pass the mask as a tensor."
        )
    if name == "bfloat16":  # numpy has no such type; float32 represents all its values
        array = array.float() if hasattr(array, "float") else array.astype("float32")
    if hasattr(array, "detach"):
        try:
            array = array.detach().cpu()
        except (NotImplementedError, RuntimeError) as error:
            raise ArgumentError(
                f"{what} is on device {array.device}, where it has no values. Pass a CPU tensor."
            ) from error
    values = read_array(array, what)
    if values.dtype.kind not in "biuf":
        raise ArgumentError(f"{what} has dtype {values.dtype}. Pass bools or numbers.")
    return values, name if name == "bfloat16" else str(values.dtype)


def collapse_repeats(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array with size 1 along axes that repeat the same memory; the last axis is kept.

    `numpy.broadcast_to` and `torch.Tensor.expand` make such arrays, which may be huge.
    """
    if not values.ndim:
        return values
    repeated = [stride == 0 for stride in values.strides[:-1]]
    return values[tuple(slice(0, 1) if is_repeated else slice(None) for is_repeated in repeated)]


def interpretations(value: object, what: str) -> tuple[Interpretation, ...]:
    """All interpretations of an array as a mask.

    An array with two values that choose has two, of which the one where True or 1 keeps is the
    first. An additive array has one.

    Raises:
        ArgumentError: If the array holds a value that neither keeps nor masks a cell.
    """
    values, dtype = read_values(value, what)
    shape = tuple(int(size) for size in values.shape)
    values = collapse_repeats(values)
    if values.dtype == np.bool_:
        return _both_polarities(values, "bool", shape, dtype)
    highest, lowest = (float(values.max()), float(values.min())) if values.size else (0.0, 0.0)
    if values.dtype.kind in "iu" and lowest >= 0 and highest <= 1:
        return _both_polarities(values != 0, "integer", shape, dtype)
    zeros = values == 0
    masked = values <= MAX_MASK_VALUE
    if highest > 0 and not bool(masked.any()):
        ones = values == 1
        if not bool((zeros | ones).all()):
            raise _invalid_value(what, values, ~(zeros | ones))
        return _both_polarities(ones, "float", shape, dtype)
    if not bool((zeros | masked).all()):
        raise _invalid_value(what, values, ~(zeros | masked))
    mask_value = float(values[masked].max()) if bool(masked.any()) else -np.inf
    zeros = np.broadcast_to(zeros, shape)
    return (Interpretation(zeros, Convention("additive", 0.0, mask_value, shape, dtype)),)


def _both_polarities(
    ones: BoolArray, form: Form, shape: tuple[int, ...], dtype: str
) -> tuple[Interpretation, ...]:
    ones, zeros = np.broadcast_to(ones, shape), np.broadcast_to(~ones, shape)
    return (
        Interpretation(ones, Convention(form, 1.0, 0.0, shape, dtype)),
        Interpretation(zeros, Convention(form, 0.0, 1.0, shape, dtype)),
    )


def _invalid_value(what: str, values: npt.NDArray[Any], invalid: BoolArray) -> ArgumentError:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(invalid)), values.shape))
    return ArgumentError(
        f"{what} holds {values[index]:g} at {index}, which neither keeps nor masks. Pass bools, "
        f"0 and 1, or values to add to scores: 0 and one value of {MAX_MASK_VALUE:g} or less."
    )


# ── polarity ──────────────────────────────────────────────────────────────────────────────────


class PolarityEvidence(NamedTuple):
    """Properties of a mask that make it more or less plausible."""

    points: int  # 1 for the diagonal (all queries that attend to a key attend to themselves)
    is_causal: bool  # no query attends to a later position: another point
    empty_share: float  # fraction of fully masked rows; 1 if a sequence is fully masked
    is_regular: bool  # causal with the diagonal, except in padding


class PolarityChoice(NamedTuple):
    """The index of the more plausible interpretation, and whether the other one is ruled out."""

    best: int
    clear: bool


def choose_polarity(first: BoolArray, second: BoolArray, q_starts: set[int]) -> PolarityChoice:
    """Chooses between a mask and its complement, each (batch, heads, queries, keys).

    A causal mask with the diagonal is meant as such: its complement attends to the future only. A
    mask in which one whole sequence is fully masked is not meant. A mask without the diagonal, or in
    which most rows are fully masked, is less plausible but possible, as a graph without self-loops
    is. Without evidence, it is the first interpretation.

    Args:
        first: Visible cells of the first interpretation.
        second: Visible cells of the second interpretation.
        q_starts: Possible positions of the first query; empty if the array has no query axis.
    """
    if not first.size:
        return PolarityChoice(0, clear=True)
    if bool(first.all()) or bool(second.all()):
        return PolarityChoice(int(second.all()), clear=False)
    if any(_is_diagonal(cells, q_start) for cells in (first, second) for q_start in q_starts):
        return PolarityChoice(0, clear=False)  # no other key to compare with
    evidence = [_evidence(cells, q_starts) for cells in (first, second)]
    ranks = [(e.points, e.is_causal, e.empty_share <= MAX_EMPTY_SHARE) for e in evidence]
    best = int(ranks[1] > ranks[0])
    likely, unlikely = evidence[best], evidence[1 - best]
    only_causal = likely.is_regular and unlikely.points == 0
    sequence_is_empty = unlikely.empty_share == 1 > likely.empty_share
    return PolarityChoice(best, only_causal or sequence_is_empty)


def _evidence(cells: BoolArray, q_starts: set[int]) -> PolarityEvidence:
    """The evidence for these cells, at the most favourable position of the queries."""
    nonempty: BoolArray = np.logical_or.reduce(cells, axis=3)
    if bool((cells[:, :, 1:] == cells[:, :, :-1]).all()):  # nothing depends on the query
        return PolarityEvidence(0, False, _empty_share(nonempty), False)
    choices = (_positional_evidence(cells, nonempty, q_start) for q_start in q_starts)
    return max(choices, key=lambda e: (e.points, -e.empty_share))


def _positional_evidence(cells: BoolArray, nonempty: BoolArray, q_start: int) -> PolarityEvidence:
    """The evidence for one position of the first query."""
    rows, keys = cells.shape[2:]
    positions = _own_positions(cells, q_start)
    inside = nonempty[:, :, positions - q_start]
    empty_share = _empty_share(inside if positions.size else nonempty)
    if positions.size < 2:
        return PolarityEvidence(0, False, empty_share, False)
    diagonal = cells[:, :, positions - q_start, positions]
    last = keys - 1 - cells[:, :, :, ::-1].argmax(axis=3)
    causal = bool(((last <= np.arange(q_start, q_start + rows)) | ~nonempty).all())
    has_diagonal = bool(diagonal.any()) and bool((diagonal | ~inside).all())
    tokens: BoolArray = np.logical_or.reduce(cells, axis=2)
    missing = ~diagonal & inside & tokens[:, :, positions]
    is_regular = (
        causal
        and not bool(missing.any())
        and _is_padding(~tokens)
        and (_empty_share(nonempty) <= MAX_EMPTY_SHARE or _is_padding(~nonempty))
    )
    return PolarityEvidence(causal + has_diagonal, causal, empty_share, is_regular)


def _empty_share(nonempty: BoolArray) -> float:
    """The fraction of fully masked rows of (batch, heads, queries); 1 if they are a sequence."""
    if not bool(np.logical_or.reduce(nonempty, axis=2).all()):
        return 1.0
    return 1 - float(nonempty.mean())


def _is_padding(masked: BoolArray) -> bool:
    """Whether the masked of (batch, heads, tokens) are the first or last ones, but not all of them."""
    changes = np.count_nonzero(masked[:, :, 1:] != masked[:, :, :-1], axis=2)
    return bool((changes <= 1).all()) and not bool(masked.all(axis=2).any())


def _own_positions(cells: BoolArray, q_start: int) -> IntArray:
    """The positions of the queries that are among the keys."""
    rows, keys = cells.shape[2:]
    return np.arange(max(q_start, 0), min(q_start + rows, keys))


def _is_diagonal(cells: BoolArray, q_start: int) -> bool:
    """Whether queries attend to nothing but their own position."""
    positions = _own_positions(cells, q_start)
    return bool(
        np.count_nonzero(cells) == np.count_nonzero(cells[:, :, positions - q_start, positions])
    )
