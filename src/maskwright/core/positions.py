"""Positions of tokens in their own sequences, as far as the expression of a mask determines them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskwright.core.atoms.position import Window

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.core.spans import Spans
    from maskwright.core.validate import IntArray


def token_positions(bound: BoundMask) -> IntArray | None:
    """The position of each query's token in its own sequence: the number of its tokens before.

    These terms determine sequences, alone or as terms of `&` or of one row of `by_batch`:

    - `documents(...)`: positions restart in each document;
    - `padding(...)`, and `~prefix(n)` or `~keys(...)` of the first keys: padding is not counted;
    - `tree(...)` with parents before their children: the position is the depth;
    - one of `documents` and `tree` with prefixes under `|`: the position in prefix and branch;
    - `blocks(...)` of block diffusion, with two or more blocks: both halves count from 0;
    - `by_head(...)` if all heads have equal ones.

    Several of them together leave the tokens that all of them leave. Other terms determine
    nothing, whatever their cells are: `chunks(3)` may be three documents, or one in chunks. A row
    of `by_batch` that determines nothing counts all tokens.

    Returns:
        (batch or 1, queries); 0 for padding before a sequence. None if nothing is determined, if
        all positions are those without padding and documents, or if a query has no token.

    >>> import maskwright as mw
    >>> token_positions((mw.causal() & mw.documents(lengths=[[3, 2]])).on(5)).tolist()
    [[0, 1, 2, 0, 1]]
    >>> token_positions(mw.recipes.shared_prefix(2, [2, 2]).on(6)).tolist()
    [[0, 1, 2, 3, 2, 3]]
    >>> token_positions(mw.recipes.image_text([-1, 0, 0, -1]).on(4)) is None
    True
    """
    return bound.cached("token_positions", lambda: _token_positions(bound))


def _token_positions(bound: BoundMask) -> IntArray | None:
    home, start, stop = bound._home, bound.frame.q_start, bound.frame.q_stop
    if not 0 <= start <= stop <= home.k_stop:
        return None
    sequence = bound.mask._sequence(home)
    if sequence is None:
        return None

    def spans_of(mask: Mask) -> Spans:
        return mask.on(stop - start, home.k_stop, home.batch, q_start=start).spans

    spans = spans_of(sequence) & spans_of(Window(None, 0))
    visible = np.concatenate(([0], np.cumsum(spans.stops - spans.starts)))
    counts: IntArray = np.diff(visible[spans.offsets]).reshape(spans.shape)[:, 0]
    positions: IntArray = np.maximum(counts - 1, 0)
    padding = (spans & spans_of(Window(0, 0))).empty_rows()[:, 0]
    if bool((padding | (positions == np.arange(start, stop))).all()):
        return None
    return positions
