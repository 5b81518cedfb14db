"""What a whole model may show, when one layer of it may see what a mask says.

Through each layer a position hears of what it sees, and keeps what it has: so over several layers
the mask's closure is what an output may depend on, and a window of w reaches back L · w. How much
of a position must arrive is told by its share under even attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core.atoms import causal, everything
from maskwright.core.expr import Mask
from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.core.validate import BoolArray

NAMES: Final = ("causal", "bidirectional", "encoder-decoder", "auto")
LEAST_SHARE: Final = 1e-4  # of a position in an output, from which on it must be felt
ENDLESS: Final = 64  # layers, where nobody knows how many there are


@dataclass(frozen=True)
class Some:
    """What a layer may see and chooses from by itself, as by hashes: it need see none of it."""

    mask: Mask

    def __repr__(self) -> str:
        return f"some of {self.mask!r}"


@dataclass(frozen=True, eq=False)
class Expectation:
    """The masks of a model's layers, on one input: (batch, queries, keys), over all heads.

    `whole` says that the mask is about the whole model, and is not to be closed over layers. `rows`
    is of all positions, where one output is made of them: of the last, the first, or their mean.
    """

    masks: tuple[Mask, ...]
    cells: tuple[BoolArray, ...]
    whole: bool = False
    rows: Expectation | None = None
    chosen: tuple[bool, ...] = ()  # the layers that need see nothing of what they may

    @property
    def mask(self) -> Mask:
        """The mask of the first layer."""
        return self.masks[0]

    @cached_property
    def direct(self) -> BoolArray:
        """What some layer may see."""
        seen: BoolArray = np.logical_or.reduce(self.cells)
        return seen

    @cached_property
    def closure(self) -> BoolArray:
        """What the output may depend on."""
        if self.whole:
            return self.direct
        own = np.eye(self.direct.shape[1], dtype=np.float32)
        reach = np.broadcast_to(own, self.direct.shape)
        for seen in self.cells:
            grown = ((seen.astype(np.float32) + own) @ reach > 0).astype(np.float32)
            if len(self.cells) == ENDLESS and np.array_equal(grown, reach):
                break
            reach = grown
        found: BoolArray = reach > 0
        return found

    def must_reach(self, epsilon: float) -> BoolArray:
        """What the output must depend on: enough of it arrives, if attention is spread evenly.

        Of what is less than a few roundings, nothing need be felt.
        """
        seen = [cells.astype(np.float64) for cells in self.cells]
        even = [cells / np.maximum(cells.sum(-1, keepdims=True), 1) for cells in seen]
        least = max(min(LEAST_SHARE, 0.1 / max(self.direct.shape[-1], 1)), 4 * epsilon)
        if self.rows is not None:
            must = self.rows.must_reach(epsilon) | ~self.rows.judged[:, :, None]
            common: BoolArray = must.all(1, keepdims=True) & self.direct
            return common
        if self.whole:
            share = even[0]
        else:
            own = np.eye(self.direct.shape[1])
            share = np.broadcast_to(own, self.direct.shape)
            # Where the number of layers is not known, one is enough to ask for.
            for n, weights in enumerate(even[:1] if len(even) == ENDLESS else even):
                if not (self.chosen and self.chosen[min(n, len(self.chosen) - 1)]):
                    share = (weights + own) / 2 @ share
        found: BoolArray = share >= least
        return found

    @cached_property
    def padding(self) -> BoolArray:
        """(batch, positions): keys that nobody may see. Their own outputs are nobody's, too."""
        unseen: BoolArray = ~np.logical_or.reduce(self.direct, axis=1)
        if not self.whole and not self._has_padding:
            return np.zeros_like(unseen)
        return unseen

    @cached_property
    def _has_padding(self) -> bool:
        return any("padding(" in text or "documents(" in text for text in map(repr, self.masks))

    @cached_property
    def judged(self) -> BoolArray:
        """(batch, queries): outputs that are judged, those of no padding."""
        if self.whole:
            return np.ones(self.direct.shape[:2], np.bool_)
        return ~self.padding


def expect(
    mask: Mask | Some | tuple[Mask | Some, ...],
    q_len: int,
    kv_len: int,
    batch: int,
    *,
    layers: int | None = None,
    whole: bool = False,
) -> Expectation:
    """An expectation of a mask, the same in all layers; or of one mask for each layer."""
    told = mask if isinstance(mask, tuple) else (mask,)
    masks = tuple(one.mask if isinstance(one, Some) else one for one in told)
    start = 0 if whole and q_len != kv_len else None
    own: list[BoolArray] = []
    for one in masks:
        bound = one.on(q_len, kv_len, batch=batch, q_start=start)
        cells = bound.dense().any(axis=1)
        own.append(np.broadcast_to(cells, (batch, q_len, kv_len)))
    if len(own) == 1 and not whole:
        own *= ENDLESS if layers is None else max(layers, 1)
    chosen = tuple(isinstance(one, Some) for one in told)
    return Expectation(masks, tuple(own), whole, chosen=chosen if any(chosen) else ())


def read_expects(expects: Any) -> Any:
    """A mask, a dict of masks, or a name."""
    if isinstance(expects, dict):
        return {name: _of_one_input(name, mask) for name, mask in expects.items()}
    if isinstance(expects, Mask):
        return expects
    if isinstance(expects, str):
        if expects == "causal":
            return causal()
        if expects == "bidirectional":
            return everything()
        if expects in NAMES:
            return expects
        from maskwright.core.parser import parse

        return parse(expects)
    raise ArgumentError(
        f"audit: expects is {describe_type(expects)}. Give a mask, a dict of masks, or one of "
        f"{', '.join(NAMES)}."
    )


def _of_one_input(name: Any, expects: Any) -> Mask:
    found = read_expects(expects) if isinstance(expects, str) else expects
    if not isinstance(found, Mask):
        raise ArgumentError(f"audit: expects[{name!r}] is {describe_type(found)}. Give a mask.")
    return found
