"""Answers about masks: a request in, plain data out, all of it computed by the library.

What is asked about numbers is in `answers_numbers`, what is asked for use elsewhere in
`answers_use`.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core.ascii import sizes_of
from maskwright.core.compare import only
from maskwright.draw.masks import describe, difference_grid, grid_of
from maskwright.explore.numbers import numbers_in
from maskwright.explore.splitting import split_text
from maskwright.explore.subjects import (
    Bound,
    bind,
    bind_together,
    check_plane,
    check_view,
    check_weight,
    shorter_text,
    text_of,
    weigh,
)

if TYPE_CHECKING:
    from maskwright.core.frame import Frame
    from maskwright.draw.masks import View
    from maskwright.draw.scene import Grid
    from maskwright.explore.requests import AskCompare, AskMask, AskTokens, AskWhy


def answer_tokens(ask: AskTokens) -> dict[str, Any]:
    """Sentences as tokens of equal number."""
    tokens, lengths = split_text(ask.text, ask.side)
    return {"tokens": tokens, "lengths": lengths}


def answer_mask(ask: AskMask) -> dict[str, Any]:
    """The mask's text, sizes, counts and picture; no counts where only the view is light enough."""
    bound = bind(ask.subject)
    on = bound.on
    check_plane(on, ask.batch, ask.head)
    view = check_view(on, ask.view)
    check_weight(_weight(bound, view))
    grid = _grid(bound, ask.batch, ask.head, view, ask.most)
    said, sizes, frame = text_of(bound.mask), sizes_of(on), on.frame
    counts = _counts(bound) if bound.light else dict.fromkeys(_COUNTS)
    seen = "" if counts["density"] is None else f", density {counts['density']:.2g}"
    return {
        "said": said,
        "simplified": shorter_text(bound.mask),
        "sizes": sizes,
        "frame": frame_data(frame),
        "planes": list(on.shape[:2]),
        "cells": frame.cells,
        **counts,
        "numbers": numbers_in(ask.subject.expression, frame),
        "grid": grid_data(grid),
        "description": describe(said[:200], sizes + seen, (grid,)),
    }


def answer_why(ask: AskWhy) -> dict[str, Any]:
    """Why a query sees a key, or not, in English and in Chinese."""
    why = bind(ask.subject).on.why(ask.query, ask.key, ask.batch, ask.head)
    return {
        "allowed": why.visible,
        "sentence": why.text(),
        "sentence_zh": why.text("zh"),
    }


def answer_compare(ask: AskCompare) -> dict[str, Any]:
    """The first mask, and every other one where it differs from it."""
    first, *others = bind_together(ask.subject, ask.others)
    check_plane(first.on, ask.batch, ask.head)
    view = check_view(first.on, ask.view)
    check_weight(2 * first.weight * len(others) + 2 * sum(other.weight for other in others))
    return {
        "first": grid_data(_grid(first, ask.batch, ask.head, view, ask.most)),
        "others": [_difference(first, other, ask, view) for other in others],
    }


def grid_data(grid: Grid) -> dict[str, Any]:
    """A grid as the page reads it."""
    shades = np.where(grid.kinds == 0, 0.0, 1.0) if grid.shades is None else grid.shades
    strength = np.rint(255 * np.clip(shades, 0, 1)).astype(np.uint8)
    return {
        "shape": list(grid.shape),
        "block": list(grid.block),
        "start": list(grid.start),
        "extent": list(grid.extent),
        "kinds": base64.b64encode(grid.kinds.tobytes()).decode(),
        "shades": base64.b64encode(strength.tobytes()).decode(),
        "rows": None if grid.rows is None else list(grid.rows),
        "columns": None if grid.columns is None else list(grid.columns),
        "title": grid.title,
    }


def frame_data(frame: Frame) -> dict[str, int]:
    """The sizes and positions that the page knows of."""
    return {name: getattr(frame, name) for name in ("q_len", "kv_len", "batch", "heads", "q_start")}


_COUNTS: Final = ("density", "count", "empty_rows", "unseen_keys")


def _counts(bound: Bound) -> dict[str, Any]:
    on, frame = bound.on, bound.on.frame
    planes = frame.batch * frame.heads // max(1, on.shape[0] * on.shape[1])
    on.spans  # noqa: B018 - read once, for all that is counted below
    count = on.count()
    return {
        "density": count / frame.cells if frame.cells else 0.0,
        "count": count,
        "empty_rows": planes * int(on.empty_rows().sum()),
        "unseen_keys": planes * int(on.unseen_keys().sum()),
    }


def _weight(bound: Bound, view: View | None) -> int:
    return bound.weight if view is None else weigh(bound.on, view.rows, view.keys)


def _grid(bound: Bound, batch: int, head: int, view: View | None, most: int) -> Grid:
    labels = bound.labels(batch)
    return grid_of(
        bound.on, batch=batch, head=head, view=view, most=most, rows=labels, columns=labels
    )


def _difference(first: Bound, other: Bound, ask: AskCompare, view: View | None) -> dict[str, Any]:
    compared = first.on.equals(other.on)
    labels = first.labels(ask.batch)
    grid = difference_grid(
        first.on,
        other.on,
        batch=ask.batch,
        head=ask.head,
        view=view,
        most=ask.most,
        rows=labels,
        columns=labels,
    )
    return {
        "said": text_of(other.mask),
        "grid": grid_data(grid),
        "equal": bool(compared),
        "sentence": repr(compared),
        "only_first": only(first.on, other.on).count(),
        "only_second": only(other.on, first.on).count(),
    }
