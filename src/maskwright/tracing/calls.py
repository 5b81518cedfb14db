"""What a trace holds: attention calls, and the table of them. Plain data, nothing is run here."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core.expr import brief
from maskwright.recognition.recognize import Recognized, recognize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray

Shape = tuple[int, ...]

LONGEST: Final = 60  # letters of an expression in the table
MOST_NAMES: Final = 3  # layers that a line names one by one
HEADINGS: Final = ("layer", "kernel", "shapes along the way", "mask", "convention", "hidden")


@dataclass(frozen=True, eq=False, repr=False)
class AttentionCall:
    """One attention call of a forward pass, and the mask that it really had.

    `layer` is the innermost module around it, "" for the model itself or a plain function. `kernel`
    is "sdpa", "mha", "mha fast path", "encoder fast path", "flex", "maskwright", or "softmax" where
    it was written by hand. Shapes are (batch, heads, length, head_dim), and () where unknown; `flow`
    is the shapes along the way, from the module's input to its output. `seen` is true where a weight
    is really there: (batch or 1, heads or 1, queries, keys). `masks` are the mask arguments as they
    were passed, by name, and `given` is the one of them that matters most. `after_softmax` says that
    weights were taken away after the softmax, so that the rest no longer sums to one. `cross` says
    that keys come from another sequence than queries. `step` counts the steps of attention from 0:
    modules that are given the very same tensor, such as heads side by side, are one step.

    >>> import torch, maskwright as mw
    >>> x = torch.ones(1, 2, 4, 8)
    >>> [call] = mw.trace(torch.nn.functional.scaled_dot_product_attention, x, x, x, is_causal=True)
    >>> call.kernel, call.mask, call.convention, call.hidden_share
    ('sdpa', causal(), 'is_causal', 0.375)
    >>> call.seen.shape
    (1, 1, 4, 4)
    >>> call.given, call.mask_text, call.recognized.frame.q_start, call.as_dict()["hidden_share"]
    (None, 'causal()', 0, 0.375)
    """

    index: int
    layer: str
    kernel: str
    q_shape: Shape
    k_shape: Shape
    v_shape: Shape
    out_shape: Shape
    flow: tuple[Shape, ...]
    seen: BoolArray
    masks: Mapping[str, Any]
    convention: str
    after_softmax: bool
    cross: bool
    step: int

    @property
    def given(self) -> Any:
        """The mask argument as it was passed, None where there was none."""
        return next(iter(self.masks.values()), None)

    @property
    def hidden_share(self) -> float:
        """The share of cells that are hidden."""
        return 1.0 - float(self.seen.mean()) if self.seen.size else 0.0

    @cached_property
    def recognized(self) -> Recognized | None:
        """What the cells say, with the frame that it holds on; None where that can't be told."""
        try:
            return recognize(self.seen, polarity="keep", axes="bhqk")
        except Exception:  # a trace goes on, whatever the cells are
            return None

    @property
    def mask(self) -> Mask | None:
        """The shortest expression for what was seen, None where there is none."""
        return None if self.recognized is None else self.recognized.mask

    @property
    def mask_text(self) -> str:
        """The expression in short, and where the first query sits if that is not as usual."""
        found = self.recognized
        if found is None:
            return "?"
        whole = repr(found.mask)
        text = whole if len(whole) <= LONGEST else brief(found.mask)
        usual = found.frame.kv_len - found.frame.q_len
        return (
            text if found.frame.q_start == usual else f"{text} from q_start={found.frame.q_start}"
        )

    def as_dict(self) -> dict[str, Any]:
        """The call as plain data, fit for JSON. The cells themselves are left out."""
        return {
            "index": self.index,
            "layer": self.layer,
            "kernel": self.kernel,
            "q_shape": list(self.q_shape),
            "k_shape": list(self.k_shape),
            "v_shape": list(self.v_shape),
            "out_shape": list(self.out_shape),
            "flow": [list(shape) for shape in self.flow],
            "mask": self.mask_text,
            "convention": self.convention,
            "after_softmax": self.after_softmax,
            "cross": self.cross,
            "step": self.step,
            "hidden_share": self.hidden_share,
        }

    def __str__(self) -> str:
        return f"{self.layer or '(model)'}: {self.kernel}, {self.mask_text}, {self.convention}"

    __repr__ = __str__


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Every attention call of one forward pass, in order. It prints as a table.

    >>> import torch, maskwright as mw
    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x, later = torch.ones(1, 4, 8), torch.ones(4, 4).triu(1).bool()
    >>> found = mw.trace(layer, x, x, x, attn_mask=later, need_weights=False)
    >>> len(found), found[0].mask
    (1, causal())
    >>> print(found)
    layer    kernel         shapes along the way    mask      convention        hidden
    (model)  mha fast path  (1, 4, 8) → (1, 2, 4, 4) → (1, 2, 4, 4) → (1, 2, 4, 4) → (1, 4, 8)
                                                    causal()  bool, True drops  38 %
    >>> found.differences, found.as_dict()["calls"][0]["mask"]
    ((), 'causal()')
    """

    calls: tuple[AttentionCall, ...]

    def as_dict(self) -> dict[str, Any]:
        """The trace as plain data, fit for JSON."""
        return {"calls": [call.as_dict() for call in self.calls]}

    @property
    def differences(self) -> tuple[str, ...]:
        """A sentence for each mask that some of several like layers have, and the first one has not.

        Like are layers whose names differ in a number only; of several calls in a layer the first
        is compared with the first of another, and so on.
        """
        kin: dict[tuple[object, ...], list[AttentionCall]] = {}
        met: Counter[str] = Counter()
        for call in self.calls:
            stem = re.sub(r"\d+", "#", call.layer)
            which = (stem, met[call.layer], call.cross, call.seen.shape[2:])
            kin.setdefault(which, []).append(call)
            met[call.layer] += 1
        return tuple(line for calls in kin.values() for line in _differences(calls))

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[AttentionCall]:
        return iter(self.calls)

    def __getitem__(self, index: int) -> AttentionCall:
        return self.calls[index]

    def __str__(self) -> str:
        if not self.calls:
            return "no attention calls"
        rows = [HEADINGS, *(_row(call) for call in self.calls)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *self.differences])

    __repr__ = __str__


def shrink(cells: BoolArray) -> BoolArray:
    """Cells (batch, heads, queries, keys) with one batch row or head, where all are the same."""
    for axis in (0, 1):
        first = cells.take([0], axis=axis) if cells.shape[axis] else cells
        if cells.shape[axis] > 1 and bool((cells == first).all()):
            cells = first
    whole = np.ascontiguousarray(cells)
    whole.setflags(write=False)
    return whole


def _row(call: AttentionCall) -> tuple[str, ...]:
    return (
        call.layer or "(model)",
        call.kernel,
        " → ".join(map(str, call.flow)),
        call.mask_text,
        call.convention,
        f"{call.hidden_share:.0%}".replace("%", " %"),
    )


def _differences(calls: list[AttentionCall]) -> Iterator[str]:
    groups: dict[object, list[AttentionCall]] = {}
    for call in calls:
        groups.setdefault((call.seen.shape, call.seen.tobytes()), []).append(call)
    (first, *_), *others = groups.values()
    for other in others:
        names = list(dict.fromkeys(call.layer for call in other))
        verb = "has" if len(names) == 1 else "have"
        yield (
            f"{_listed(names)} {verb} another mask than {first.layer or '(model)'}: "
            f"{other[0].mask_text}"
        )


def _listed(names: list[str]) -> str:
    shown = [name or "(model)" for name in names]
    if len(shown) <= MOST_NAMES:
        return ", ".join(shown)
    return f"{shown[0]} … {shown[-1]} ({len(shown)} layers)"
