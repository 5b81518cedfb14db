"""Answers for use elsewhere: the mask as code, its cost, a picture file, and the way back."""

from __future__ import annotations

import contextlib
import io
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.draw import png, svg
from maskwright.draw.masks import describe, grid_of, scene_of
from maskwright.draw.scene import Scene, legend_of
from maskwright.engine.api import explain_backend
from maskwright.engine.native.bindings import loaded
from maskwright.errors import MaskError
from maskwright.explore.answers import frame_data, grid_data
from maskwright.explore.faults import ADVICE, too_large, wrong
from maskwright.explore.fields import WORDS
from maskwright.explore.files import read_file
from maskwright.explore.subjects import (
    bind,
    check_plane,
    check_view,
    check_weight,
    text_of,
    weigh,
)
from maskwright.linting.lint import lint
from maskwright.messages import render
from maskwright.recognition.recognize import recognize
from maskwright.targets.lowering import capabilities, explain_lowering

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.bound import BoundMask
    from maskwright.explore.requests import AskCode, AskCost, AskPicture, AskRecognise
    from maskwright.targets.target import Target

MOST_CODE_CELLS: Final = 2**24  # of the arrays that frameworks are handed
MOST_COST: Final = 2**22  # intervals
MAX_ESTIMATE_INTERVALS: Final = 2**20
HEAD_DIM: Final = 64  # of the estimate
LONGEST_CODE: Final = 20_000
BLOCK: Final = 128
PICTURE_SIGNS: Final = 128
LONGEST_TEXT: Final = 20_000


def answer_code(ask: AskCode) -> dict[str, Any]:
    """What a person would paste to use this mask in each framework, or why it can't be said there."""
    on = bind(ask.subject).on
    cells = math.prod(on.shape)
    if cells > MOST_CODE_CELLS:
        raise too_large(
            f"The mask has {cells:,} cells, more than the {MOST_CODE_CELLS:,} that are written as "
            "code here. Take fewer tokens."
        )
    return {"targets": [_target(on, target) for target in capabilities().values()]}


def answer_cost(ask: AskCost) -> dict[str, Any]:
    """The memory of the mask in each form, and the backend and work of attention under it."""
    bound = bind(ask.subject)
    on, frame = bound.on, bound.on.frame
    check_weight(bound.weight, MOST_COST)
    cells, intervals = frame.cells, on.spans.intervals()
    allowed = on.count()
    return {
        "cells": cells,
        "allowed": allowed,
        "density": allowed / cells if cells else 0.0,
        "tiles": {"block": BLOCK, **on.tiles(BLOCK).counts()},
        "dense_bytes": math.prod(on.shape),
        "bias_bytes": 4 * math.prod(on.shape),
        "span_bytes": 16 * intervals + 8 * math.prod(on.shape[:3]),
        "intervals": intervals,
        "head_dim": HEAD_DIM,
        **_attention(on),
    }


def answer_recognise(ask: AskRecognise) -> dict[str, Any]:
    """The shortest mask that is exactly this array, what is wrong with the array, and its picture."""
    array = read_file(ask.npy) if ask.npy is not None else _array(ask.array)
    if array.ndim == 0 or not array.size:
        raise wrong("The array has no cell. Send one with queries and keys.")
    findings = [
        {**finding.as_dict(), "message_zh": render(finding.reason, "zh")}
        for finding in lint(array, causal=bool(ask.causal))
    ]
    answer = {"shape": list(array.shape), "dtype": str(array.dtype), "lint": findings}
    try:
        found = recognize(array)
    except MaskError as error:
        return {**answer, "expression": None, "convention": None, "says": str(error), "grid": None}
    frame, said = found.frame, text_of(found.mask)
    on = found.mask.on(frame.q_len, frame.kv_len, frame.batch, frame.heads, frame.q_start)
    return {
        **answer,
        "expression": said if len(said) <= LONGEST_TEXT and "(...)" not in said else None,
        "convention": str(found.convention),
        "says": str(found),
        "frame": frame_data(frame),
        "grid": grid_data(grid_of(on, most=PICTURE_SIGNS)),
    }


def answer_picture(ask: AskPicture) -> tuple[str, bytes]:
    """One batch row and head as a file."""
    bound = bind(ask.subject)
    on = bound.on
    check_plane(on, ask.batch, ask.head)
    view = check_view(on, ask.view)
    check_weight(bound.weight if view is None else weigh(on, view.rows, view.keys))
    labels = bound.labels(ask.batch)
    if bound.light:
        scene = scene_of(
            on, tokens=labels, batch=ask.batch, head=ask.head, view=view, most=PICTURE_SIGNS
        )
    else:  # its density is not known
        grid = grid_of(on, batch=ask.batch, head=ask.head, view=view, most=PICTURE_SIGNS)
        title = text_of(bound.mask)[:100]
        scene = Scene(title, (grid,), "", legend_of((grid,)), describe(title, "a part", (grid,)))
    theme: Any = ask.theme
    if ask.format == "svg":
        return "image/svg+xml", svg.render(scene, theme=theme).encode()
    return "image/png", png.render(scene, theme=theme)


def _target(on: BoundMask, target: Target) -> dict[str, Any]:
    code: str | None = None
    refusal: str | None = None
    if target.masks != 1:
        refusal = f"{target.name} takes {target.masks} masks at once. See recipes.translation."
    else:
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # some speak when they are imported
                code = explain_lowering(on, target.name)
        except (MaskError, ImportError, MemoryError) as error:
            refusal = str(error) or f"There is too little memory for it. {ADVICE}"
    if code is not None and len(code) > LONGEST_CODE:
        refusal = f"The code has {len(code):,} letters. Take fewer tokens."
        code = None
    return {
        "name": target.name,
        "gives": target.gives,
        "polarity": target.polarity,
        "ok": code is not None,
        "code": code,
        "refusal": refusal,
    }


def _attention(on: BoundMask) -> dict[str, Any]:
    """The backend that computes attention under the mask, and an estimate of its work.

    The estimate is None for masks with so many intervals that it would take seconds.
    """
    if on._reader.max_intervals() > MAX_ESTIMATE_INTERVALS:
        return dict.fromkeys(("backend", "reason", "instruction_set", "work"))
    frame = on.frame
    q, k = ((frame.batch, frame.heads, n, HEAD_DIM) for n in (frame.q_len, frame.kv_len))
    choice = explain_backend(q, k, mask=on)
    return {
        "backend": choice.backend,
        "reason": choice.reason,
        "instruction_set": loaded().isa if choice.backend == "native" else None,
        "work": choice.work.as_dict(),
    }


def _array(nested: list[Any] | None) -> npt.NDArray[Any]:
    """Nested lists, in which words stand for the numbers that JSON lacks."""
    try:
        return np.array(_without_words(nested))
    except ValueError:
        raise wrong("array has rows of different length. Send a rectangular array.") from None


def _without_words(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_words(item) for item in value]
    return WORDS[value] if isinstance(value, str) else value
