"""`Expectation`: what the outputs of a whole model may depend on, from the masks of its layers.

In each layer a position receives what it attends to, and keeps what it has. Over several layers an
output may depend on the closure of the masks: a window of w reaches back L · w over L layers. How
much of a position must arrive follows from its share under uniform attention.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core.atoms import causal, dense, everything
from maskwright.core.atoms.tokens import Documents, Padding
from maskwright.core.expr import Mask, find
from maskwright.core.operators import And
from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError
from maskwright.recognition import recognize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maskwright.core.validate import BoolArray
    from maskwright.tracing import AttentionCall

NAMES: Final = ("causal", "bidirectional", "encoder-decoder", "auto")
MIN_SHARE: Final = 1e-4  # of a position in an output, above which the output must depend on it
UNKNOWN_LAYERS: Final = 64  # assumed if the number of layers is not known


@dataclass(frozen=True)
class SubsetOf:
    """A layer that attends to a data-dependent subset of a mask, such as one chosen by hashing."""

    mask: Mask

    def __repr__(self) -> str:
        return f"a subset of {self.mask!r}"


def some(mask: Mask | str) -> SubsetOf:
    """The expectation of a layer that chooses keys: at most this mask, reach is not required.

    Args:
        mask: The mask from which the layer chooses, or its text.

    Returns:
        A value for `audit(expects=...)`, alone or as one of its layers.

    Raises:
        ArgumentError: If it is not a mask.
        TextError: If it is text that is not a mask.

    >>> from maskwright.auditing import some
    >>> some("causal()")
    a subset of causal()
    """
    found = read_expects(mask)
    if not isinstance(found, Mask):
        raise ArgumentError(f"some: mask is {describe_type(mask)}. Pass a mask, or its text.")
    return SubsetOf(found)


@dataclass(frozen=True)
class ByLayer:
    """The masks of layers by the names of their modules, or of modules that contain them."""

    masks: Mapping[str, Mask | SubsetOf]

    def of_calls(self, calls: Sequence[AttentionCall]) -> tuple[Mask | SubsetOf, ...]:
        """The mask of each call.

        Raises:
            ArgumentError: If a call is in none of the modules, or there are no calls.
        """
        found = []
        for call in calls:
            inside = [k for k in self.masks if f"{call.layer}.".startswith(f"{k}." if k else "")]
            if not inside:
                raise ArgumentError(
                    f"audit: expects has no mask for the layer {call.layer!r}; it has "
                    f"{', '.join(map(repr, self.masks))}. Add it, or a module that contains it."
                )
            found.append(self.masks[max(inside, key=len)])
        if not found:
            raise ArgumentError(
                "audit: expects has masks by layer, and no attention call was recorded. Pass one mask "
                "for all layers."
            )
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Expectation:
    """The masks of a model's layers on one input, (batch, queries, keys), any head.

    Args:
        masks: The mask of each layer, or one mask for all.
        cells: The cells of each layer.
        whole_model: The mask is that of the whole model, and is not closed over layers.
        rows: The expectation of all positions, if one output is computed from them: the last, the
            first, or their mean.
        subset: Which layers attend to a subset of their mask only.
    """

    masks: tuple[Mask, ...]
    cells: tuple[BoolArray, ...]
    whole_model: bool = False
    rows: Expectation | None = None
    subset: tuple[bool, ...] = ()

    @property
    def mask(self) -> Mask:
        """The mask of the first layer."""
        return self.masks[0]

    @cached_property
    def direct(self) -> BoolArray:
        """The cells that are visible in some layer."""
        visible: BoolArray = np.logical_or.reduce(self.cells)
        return visible

    @property
    def masks_some(self) -> bool:
        """Whether some position is masked from a tested output."""
        return bool((~self.closure & self.judged[:, :, None]).any())

    @cached_property
    def closure(self) -> BoolArray:
        """What each output may depend on."""
        if self.whole_model:
            return self.direct
        own = np.eye(self.direct.shape[1], dtype=np.float32)
        reach = np.broadcast_to(own, self.direct.shape)
        for cells in self.cells:
            grown = ((cells.astype(np.float32) + own) @ reach > 0).astype(np.float32)
            if len(self.cells) == UNKNOWN_LAYERS and np.array_equal(grown, reach):
                break
            reach = grown
        found: BoolArray = reach > 0
        return found

    def must_reach(self, epsilon: float) -> BoolArray:
        """What each output must depend on: enough of it arrives if attention is uniform.

        A share below a few roundings need not be measurable.
        """
        cells = [one.astype(np.float64) for one in self.cells]
        uniform = [one / np.maximum(one.sum(-1, keepdims=True), 1) for one in cells]
        min_share = max(min(MIN_SHARE, 0.1 / max(self.direct.shape[-1], 1)), 4 * epsilon)
        if self.rows is not None:
            must = self.rows.must_reach(epsilon) | ~self.rows.judged[:, :, None]
            common: BoolArray = must.all(1, keepdims=True) & self.direct
            return common
        if self.whole_model:
            share = uniform[0]
        else:
            own = np.eye(self.direct.shape[1])
            share = np.broadcast_to(own, self.direct.shape)
            # If the number of layers is not known, what one layer must pass on is required.
            for n, weights in enumerate(uniform[:1] if len(uniform) == UNKNOWN_LAYERS else uniform):
                if not (self.subset and self.subset[min(n, len(self.subset) - 1)]):
                    share = (weights + own) / 2 @ share
        found: BoolArray = share >= min_share
        return found

    @cached_property
    def padding(self) -> BoolArray:
        """(batch, positions): keys that no query attends to; their own outputs are not tested."""
        unseen: BoolArray = ~np.logical_or.reduce(self.direct, axis=1)
        if not self.whole_model and not self._has_padding:
            return np.zeros_like(unseen)
        return unseen

    @cached_property
    def _has_padding(self) -> bool:
        return any(find(mask, (Padding, Documents)) for mask in self.masks)

    @cached_property
    def judged(self) -> BoolArray:
        """(batch, queries): the outputs that are tested, those of no padding."""
        if self.whole_model:
            return np.ones(self.direct.shape[:2], np.bool_)
        return ~self.padding


def expect(
    mask: Mask | SubsetOf | tuple[Mask | SubsetOf, ...],
    q_len: int,
    kv_len: int,
    batch: int,
    *,
    layers: int | None = None,
    whole_model: bool = False,
) -> Expectation:
    """The expectation of a mask that all layers have, or of one mask per layer."""
    given = mask if isinstance(mask, tuple) else (mask,)
    masks = tuple(one.mask if isinstance(one, SubsetOf) else one for one in given)
    q_start = 0 if whole_model and q_len != kv_len else None
    own: list[BoolArray] = []
    for one in masks:
        bound = one.on(q_len, kv_len, batch=batch, q_start=q_start)
        cells = bound.dense().any(axis=1)
        own.append(np.broadcast_to(cells, (batch, q_len, kv_len)))
    if len(own) == 1 and not whole_model:
        own *= UNKNOWN_LAYERS if layers is None else max(layers, 1)
    subset = tuple(isinstance(one, SubsetOf) for one in given)
    return Expectation(masks, tuple(own), whole_model, subset=subset if any(subset) else ())


def read_expects(expects: Any) -> Any:
    """Checks the argument `expects`: a mask or its text, a list or dict of masks, or a name.

    Raises:
        ArgumentError: If it is none of these.
        TextError: If a text is not a mask.
    """
    if isinstance(expects, dict):
        return {name: _read_mask(name, mask) for name, mask in expects.items()}
    if isinstance(expects, (list, tuple)) and expects:
        return tuple(_read_mask(n, mask) for n, mask in enumerate(expects))
    if isinstance(expects, (Mask, SubsetOf)):
        return expects
    if isinstance(expects, str):
        inner = re.fullmatch(r"\s*some\((.*)\)\s*", expects, re.DOTALL)
        if inner is not None:
            return some(inner[1])
        if expects == "causal":
            return causal()
        if expects == "bidirectional":
            return everything()
        if expects in NAMES:
            return expects
        from maskwright.core.parser import parse

        return parse(expects)
    raise ArgumentError(
        f"audit: expects is {describe_type(expects)}. Pass a mask, a dict of masks, a list of masks, "
        "one for each layer, or one of "
        f"{', '.join(NAMES)}."
    )


def _read_mask(name: Any, expects: Any) -> Mask | SubsetOf:
    found = read_expects(expects) if isinstance(expects, str) else expects
    if not isinstance(found, (Mask, SubsetOf)):
        raise ArgumentError(f"audit: expects[{name!r}] is {describe_type(found)}. Pass a mask.")
    return found


def propose(
    calls: Sequence[AttentionCall], moved: BoolArray, length: int
) -> tuple[Any, tuple[tuple[str, Mask | None], ...]]:
    """The masks that a model behaves like: an expectation, and the masks of layers and outputs.

    Args:
        calls: The attention calls of one pass.
        moved: (batch, outputs, inputs), which output depends on which input.
        length: Number of positions.

    Returns:
        What to pass as `expects`: the masks of the layers if all were recognized, else that of the
        outputs; and the name and mask of each layer and of "outputs", None if not recognized.
    """
    own = [call for call in own_calls(calls) if call.visible.shape[-2:] == (length, length)]
    layers = tuple((call.layer, call.mask) for call in own)
    try:
        outputs = recognize(moved[:, None], polarity="keep", axes="bhqk").mask
    except Exception:  # cells that no expression describes
        outputs = None
    masks = tuple(mask for _, mask in layers if mask is not None)
    found: Any = dense(moved[:, None]) if outputs is None else outputs
    if masks and len(masks) == len(layers):
        found = masks if len(set(masks)) > 1 else masks[0]
    return found, (*layers, ("outputs", outputs))


def terms_of(mask: Mask) -> tuple[Mask, ...]:
    """The terms of a conjunction; for any other mask, the mask itself."""
    return mask.terms if isinstance(mask, And) else (mask,)


def own_calls(calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """The calls in which positions of the main input attend to each other.

    In an encoder-decoder model these are the calls of the decoder: the smallest part of the model
    that contains all cross-attention calls and some others.
    """
    own = [call for call in calls if not call.cross]
    crossing = [str(call.layer).split(".") for call in calls if call.cross]
    if not crossing:
        return own
    stem = crossing[0]
    while stem:
        inside = [call for call in own if str(call.layer).split(".")[: len(stem)] == stem]
        if inside and all(path[: len(stem)] == stem for path in crossing):
            return inside
        stem = stem[:-1]
    return own
