"""The values of an array: what a consumer makes of them, and which of them can't be meant.

What may enter here: numbers, dtypes and devices. What the cells say as a mask is for `cells`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core.expr import Cell
from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError
from maskwright.linting.findings import Finding
from maskwright.recognition.encoding import LEAST_FILL

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from maskwright.core.validate import BoolArray

CONSUMERS: Final = ("keep", "drop", "additive")
LARGEST: Final = {
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float16": 65504.0,
    "bfloat16": (2 - 2**-7) * 2.0**127,
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}
ALIASES: Final = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
}
SELECT: Final = "Write 0 where a key may be seen and -inf where not."


@dataclass(frozen=True)
class Held:
    """What an array's values say: the cells that they mean to show, and how they hide the others."""

    cells: (
        BoolArray | None
    )  # (batch, heads, queries, keys), or None where nothing can be made of it
    findings: tuple[Finding, ...]
    fill: float = -np.inf  # what is added to the score of a hidden cell
    overflows_by: str = ""  # what may not be added to the fill: "another mask", or even "a score"


def judge(values: npt.NDArray[Any], own: str, to: str | None, dtype: str | None) -> Held:
    """Read values (batch, heads, queries, keys) as the consumer will, and say what is odd.

    `own` is the name of the array's dtype, `dtype` that of the scores. If no consumer is named,
    floats are added and all else keeps where it is not 0, as PyTorch and transformers do.
    """
    kind = values.dtype.kind
    if not values.size:
        return Held(np.zeros(values.shape, np.bool_), ())
    if kind != "f" and not _only(values, 0, 1):
        return _judge_integers(values, own, to, dtype)
    ones = values if kind == "b" else values == 1
    if kind == "f" and not (_only(values, 0, 1) and (to == "keep" or bool(ones.any()))):
        return _judge_added(values, own, to, dtype)
    if to == "additive" or (kind == "f" and to != "keep"):
        what = "truth values" if kind == "b" else f"0 and 1 as {own}"
        fix = "Add where(mask, 0.0, -inf) instead, if True or 1 is meant to keep."
        added = Finding(
            "zero-one-added",
            f"The array holds {what}, which hide nothing when they are added to scores.",
            fix,
        )
        return Held(ones, (added,))
    return Held(~ones if to == "drop" else ones, ())


def _judge_integers(values: npt.NDArray[Any], own: str, to: str | None, dtype: str | None) -> Held:
    low, high = int(values.min()), int(values.max())
    top = -1 if values.dtype.kind == "i" else int(np.iinfo(values.dtype).max)
    sign = "~" if _only(values, top - 1, top) else "-" if _only(values, 0, top) and top > 0 else ""
    if sign:
        wrapped = Finding(
            "integer-wrapped",
            f"The array holds {low} and {high}: {sign} of 0 and 1 as {own} wraps around.",
            "Make it bool before you negate it: mask == 0.",
            _first(values == high),
        )
        return Held((values != high) if to == "drop" else (values == high), (wrapped,))
    if high > 0:
        odd = (values != 0) & (values != 1)
        cell = _first(odd)
        found = Finding(
            "odd-values",
            f"The array holds {values[cell]}, which as a truth value is neither 0 nor 1.",
            "Give truth values; numbers of documents or tokens are no mask: use documents(ids=...) "
            "or padding(ids=..., pad_id=...).",
            cell,
        )
        return Held(None, (found,))
    held = _judge_added(values.astype(np.float64), own, to, dtype)
    whole = Finding(
        "integer-bias",
        f"The array holds whole numbers ({own}) to be added to scores, which are floats.",
        "Give them in the scores' dtype: " + SELECT[0].lower() + SELECT[1:],
    )
    return Held(held.cells, (whole, *held.findings), held.fill, held.overflows_by)


def _judge_added(values: npt.NDArray[Any], own: str, to: str | None, dtype: str | None) -> Held:
    """Values that are added to scores: 0 keeps, a very low number hides."""
    findings = list(_wrong_form(to))
    strong = values <= LEAST_FILL
    hidden, low_fill, high_fill = strong, -np.inf, -np.inf
    odd = (values != 0) & ~strong  # NaN is among them
    if bool(odd.any()):
        findings += _judge_odd(values, odd, bool(strong.any()))
        weak = any(finding.code == "fill-too-weak" for finding in findings)
        hidden = strong | (odd if weak else values >= -LEAST_FILL)
    if bool(strong.any()):
        high_fill = float(np.max(values, where=strong, initial=-np.inf))
        low_fill = float(np.min(values, where=strong, initial=0))
    if low_fill < 1.5 * high_fill:
        findings.append(
            Finding(
                "summed-fills",
                f"The array hides by {high_fill:.3g} and by {low_fill:.3g}: two masks were added.",
                "Combine the masks as truth values with &, and fill once.",
                _first(values == low_fill),
            )
        )
    limit = LARGEST.get(dtype or own, np.inf)
    lowest = float(np.min(values, where=strong & (values > -np.inf), initial=0))
    if lowest < -limit:
        findings.append(
            Finding(
                "fill-overflows",
                f"The fill {lowest:.5g} does not fit {dtype}, whose lowest number is {-limit:.5g}: "
                "it becomes -inf, and 0 times it NaN.",
                "Fill with -inf, by a select and not by a product.",
                _first(values == lowest),
            )
        )
    by = "" if not -limit <= lowest < -limit / 2 else "a score" if limit < 1e5 else "another mask"
    return Held(~hidden, tuple(findings), high_fill, by)


def _wrong_form(to: str | None) -> Iterator[Finding]:
    if to == "keep":
        yield Finding(
            "wrong-form",
            "The array holds numbers to be added to scores, but truth values are read there: "
            "0 would hide, and every other number keep.",
            "Give mask == 0, or hand it to what adds it and say to='additive'.",
        )


def _judge_odd(values: npt.NDArray[Any], odd: BoolArray, filled: bool) -> Iterator[Finding]:
    """Values that neither keep nor hide. Many different ones are a bias, which is as good as 0."""
    nan = np.isnan(values)
    if bool(nan.any()):
        yield Finding(
            "nan-value",
            "The array holds NaN, which 0 * -inf gives, and every score it is added to becomes NaN.",
            "Fill by a select, where(mask, 0.0, -inf), and not by a product.",
            _first(nan),
        )
        odd = odd & ~nan
        if not bool(odd.any()):
            return
    high = float(np.max(values, where=odd, initial=-np.inf))
    low = float(np.min(values, where=odd, initial=np.inf))
    few = not bool((odd & (values != low) & (values != high)).any())
    if high >= -LEAST_FILL or (few and high > 0):
        yield Finding(
            "positive-value",
            f"The array holds {high:.3g}, which lifts a score instead of hiding its key.",
            "Turn the sign: " + SELECT[0].lower() + SELECT[1:],
            _first(values == high),
        )
    elif few and not filled:
        yield Finding(
            "fill-too-weak",
            f"The fill {high:.3g} is too near to 0: a score that is larger by that much undoes it.",
            SELECT,
            _first(odd),
        )


def read_dtype(value: object) -> str | None:
    """The name of the scores' dtype, however a framework or a user spells it."""
    if value is None:
        return None
    name = value if isinstance(value, str) else str(value)
    if name not in LARGEST and not isinstance(value, str) and not name.startswith("torch."):
        try:
            name = np.dtype(value).name  # type: ignore[call-overload]
        except TypeError:
            name = str(getattr(value, "name", name))
    name = name.split(".")[-1]
    name = ALIASES.get(name, name)
    if name not in LARGEST:
        raise ArgumentError(
            f"lint: dtype is {name!r:.60}. Give the scores' dtype: one of {', '.join(LARGEST)}."
        )
    return name


def judge_device(array: object, device: object) -> Iterator[Finding]:
    """Does the array lie where queries and keys do? Lists lie nowhere."""
    if device is None:
        return
    theirs, mine = _device(device), _device(getattr(array, "device", None))
    if theirs is None:
        raise ArgumentError(
            f"lint: device is {describe_type(device)}. Give a name such as 'cuda:0'."
        )
    if mine is None:
        return
    alike = mine[0] == theirs[0] and (mine[1] == theirs[1] or "" in (mine[1], theirs[1]))
    if not alike:
        here, there = (":".join(filter(None, name)) for name in (mine, theirs))
        yield Finding(
            "wrong-device",
            f"The mask is on {here}, but queries and keys are on {there}.",
            f"Move it there, mask.to({there!r}), or make it there: device=query.device.",
        )


def _device(value: object) -> tuple[str, str] | None:
    """The kind of a device and its number, "" where it has none; None if it is no device."""
    if hasattr(value, "platform"):
        name = f"{value.platform}:{getattr(value, 'id', '')}"
    elif isinstance(value, str) or hasattr(value, "type"):
        name = str(value)
    else:
        return None
    kind, _, number = name.lower().split("device:")[-1].partition(":")
    return ("cuda" if kind == "gpu" else kind), number


def _only(values: npt.NDArray[Any], one: int, other: int) -> bool:
    if values.dtype == np.bool_:
        return True
    return bool(((values == one) | (values == other)).all())


def _first(where: BoolArray) -> Cell:
    """The first cell of (batch, heads, queries, keys) where this holds."""
    return Cell(*(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape)))
