"""The mask card: tokens, the grid with its counts, explanations, comparisons and picture files."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core.ascii import sizes_of
from maskwright.core.compare import only
from maskwright.draw import png, svg
from maskwright.draw.masks import GridOptions, describe, difference_grid, grid_of, scene_of
from maskwright.draw.scene import Scene, legend_of
from maskwright.draw.text import split_tokens
from maskwright.explore import schema
from maskwright.explore.error_responses import too_large
from maskwright.explore.expressions import (
    bind,
    bind_together,
    check_intervals,
    check_plane,
    check_view,
    max_intervals,
    simplified_text,
    sliders,
    text_of,
)

if TYPE_CHECKING:
    from maskwright.core.frame import Frame
    from maskwright.draw.masks import View
    from maskwright.draw.scene import Grid
    from maskwright.explore.expressions import BoundSubject

PICTURE_CELLS: Final = 128  # along one side of a picture file
COUNTS: Final = ("density", "count", "empty_rows", "unseen_keys")


def handle_tokens(request: schema.TokensRequest) -> dict[str, Any]:
    """The tokens of each line, padded to equal length, and the lengths without padding."""
    rows = [tokens for line in request.text.splitlines() if (tokens := split_tokens(line))]
    longest = max((len(row) for row in rows), default=0)
    letters = max((len(token) for row in rows for token in row), default=0)
    for what, size, limit in (
        ("The text has {} sentences", len(rows), schema.MAX_SEQUENCES),
        ("A sentence has {} tokens", longest, schema.MAX_TOKENS),
        ("A token has {} characters", letters, schema.MAX_TOKEN_LENGTH),
    ):
        if size > limit:
            raise too_large(f"{what.format(size)}, expected at most {limit}. Shorten the text.")
    padding = [[schema.PAD] * (longest - len(row)) for row in rows]
    left = request.side == "left"
    return {
        "tokens": [p + r if left else r + p for r, p in zip(rows, padding, strict=True)],
        "lengths": [sum(token != schema.PAD for token in row) for row in rows],
    }


def handle_mask(request: schema.MaskRequest) -> dict[str, Any]:
    """The mask's text, sizes, grid and sliders; and its counts, unless only the view is read."""
    subject = bind(request.subject)
    bound, frame = subject.bound, subject.bound.frame
    view = _checked_view(subject, request)
    grid = _grid(subject, request, view)
    text, sizes = text_of(subject.mask), sizes_of(bound)
    counts = _counts(subject) if subject.countable else dict.fromkeys(COUNTS)
    density = "" if counts["density"] is None else f", density {counts['density']:.2g}"
    return {
        "expression": text,
        "simplified": simplified_text(subject.mask),
        "sizes": sizes,
        "frame": frame_data(frame),
        "planes": list(bound.shape[:2]),
        "cells": frame.cells,
        **counts,
        "numbers": sliders(request.subject.expression, frame),
        "grid": grid_data(grid),
        "description": describe(text[:200], sizes + density, (grid,)),
    }


def handle_why(request: schema.WhyRequest) -> dict[str, Any]:
    """Why a query attends to a key or not, in English and Chinese."""
    bound = bind(request.subject).bound
    why = bound.why(request.query, request.key, request.batch, request.head)
    return {"allowed": why.visible, "sentence": why.text(), "sentence_zh": why.text("zh")}


def handle_compare(request: schema.CompareRequest) -> dict[str, Any]:
    """The first mask, and the difference of each other mask from it."""
    first, *rest = bind_together(request.subject, request.others)
    check_plane(first.bound, request.batch, request.head)
    view = check_view(first.bound, request.view)
    check_intervals(
        2 * first.max_intervals * len(rest) + 2 * sum(compared.max_intervals for compared in rest)
    )
    return {
        "first": grid_data(_grid(first, request, view)),
        "others": [_difference(first, compared, request, view) for compared in rest],
    }


def handle_picture(request: schema.PictureRequest) -> tuple[str, bytes]:
    """One batch row and head as an SVG or PNG image."""
    subject = bind(request.subject)
    view = _checked_view(subject, request)
    plane: dict[str, Any] = {"batch": request.batch, "head": request.head}
    if subject.countable:
        labels = subject.labels(request.batch)
        scene = scene_of(subject.bound, tokens=labels, view=view, max_cells=PICTURE_CELLS, **plane)
    else:  # the density is not known
        options = GridOptions(view=view, max_cells=PICTURE_CELLS, **plane)
        grid = grid_of(subject.bound, options)
        title = text_of(subject.mask)[:100]
        scene = Scene(title, (grid,), "", legend_of((grid,)), describe(title, "a part", (grid,)))
    if request.format == "svg":
        return "image/svg+xml", svg.render(scene, theme=request.theme).encode()
    return "image/png", png.render(scene, theme=request.theme)


def grid_data(grid: Grid) -> dict[str, Any]:
    """A grid as the page reads it; kinds and shades are bytes in base64."""
    shades = np.where(grid.kinds == 0, 0.0, 1.0) if grid.shades is None else grid.shades
    levels = np.rint(255 * np.clip(shades, 0, 1)).astype(np.uint8)
    return {
        "shape": grid.shape,
        "block": grid.block,
        "start": grid.start,
        "extent": grid.extent,
        "kinds": base64.b64encode(grid.kinds.tobytes()).decode(),
        "shades": base64.b64encode(levels.tobytes()).decode(),
        "rows": grid.rows,
        "columns": grid.columns,
        "title": grid.title,
    }


def frame_data(frame: Frame) -> dict[str, int]:
    """The sizes and positions that the page shows."""
    return {name: getattr(frame, name) for name in ("q_len", "kv_len", "batch", "heads", "q_start")}


def _checked_view(
    subject: BoundSubject, request: schema.MaskRequest | schema.PictureRequest
) -> View | None:
    """The view of the request, after a check of the plane and of the intervals to be read."""
    check_plane(subject.bound, request.batch, request.head)
    view = check_view(subject.bound, request.view)
    check_intervals(
        subject.max_intervals
        if view is None
        else max_intervals(subject.bound, view.rows, view.keys)
    )
    return view


def _counts(subject: BoundSubject) -> dict[str, Any]:
    bound, frame = subject.bound, subject.bound.frame
    repeats = frame.batch * frame.heads // max(1, bound.shape[0] * bound.shape[1])
    bound.spans  # noqa: B018 - computed once, for all counts below
    count = bound.count()
    return {
        "density": count / frame.cells if frame.cells else 0.0,
        "count": count,
        "empty_rows": repeats * int(bound.empty_rows().sum()),
        "unseen_keys": _count_unseen_keys(subject, repeats),
    }


def _count_unseen_keys(subject: BoundSubject, repeats: int) -> int:
    """Keys that no query attends to. Padding is not counted: it should be masked."""
    unseen, frame = subject.bound.unseen_keys(), subject.bound.frame
    if subject.tokens is None:
        return repeats * int(unseen.sum())
    padding = np.array([[token == schema.PAD for token in row] for row in subject.tokens], bool)
    whole = np.broadcast_to(unseen, (frame.batch, frame.heads, frame.kv_len))
    return int((whole & ~padding[:, None]).sum())


def _grid(subject: BoundSubject, request: schema.MaskRequest, view: View | None) -> Grid:
    return grid_of(subject.bound, _grid_options(subject, request, view))


def _grid_options(
    subject: BoundSubject, request: schema.MaskRequest, view: View | None
) -> GridOptions:
    labels = subject.labels(request.batch)
    plane = (request.batch, request.head)
    return GridOptions(*plane, view, request.max_cells, rows=labels, columns=labels)


def _difference(
    first: BoundSubject, other: BoundSubject, request: schema.CompareRequest, view: View | None
) -> dict[str, Any]:
    compared = first.bound.equals(other.bound)
    grid = difference_grid(first.bound, other.bound, _grid_options(first, request, view))
    return {
        "expression": text_of(other.mask),
        "grid": grid_data(grid),
        "equal": bool(compared),
        "sentence": repr(compared),
        "only_first": only(first.bound, other.bound).count(),
        "only_second": only(other.bound, first.bound).count(),
    }
