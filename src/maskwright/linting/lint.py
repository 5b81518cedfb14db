"""`lint`: a mask as people really have it, and what they know about it, against each other.

What may enter here: reading what was given and stated, and fitting shapes. Values are judged in
`values`, cells in `cells`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.frame import Frame
from maskwright.core.spans import Spans
from maskwright.core.validate import parse_int, read_choice
from maskwright.errors import ArgumentError, FrameError
from maskwright.linting import causes
from maskwright.linting import values as numbers
from maskwright.linting.causes import Reading
from maskwright.linting.cells import View, empty_rows
from maskwright.linting.facts import Facts, read_facts, sizes_in
from maskwright.linting.findings import Finding, LintReport
from maskwright.linting.shapes import AXES, Sizes, place
from maskwright.recognition.encoding import read_values
from maskwright.targets.lower import capabilities

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.validate import BoolArray
    from maskwright.targets.base import Target

MOST_CELLS: Final = 2**24  # made into spans at a time


def lint(
    mask: Any,
    *,
    q_len: int | None = None,
    kv_len: int | None = None,
    batch: int | None = None,
    heads: int | None = None,
    q_start: int | None = None,
    to: str | None = None,
    axes: str | None = None,
    dtype: Any = None,
    device: Any = None,
    causal: bool = False,
    padding: Any = None,
    documents: Any = None,
    window: int | tuple[int | None, int | None] | None = None,
    expects: Mask | None = None,
) -> LintReport:
    """Say what is wrong with a mask: a `Mask`, a bound one, or an array of any framework.

    The more is stated, the more is found. Nothing that is wrong with the mask raises. One mistake
    that explains all the rest, such as inverted values, is reported alone. Of keys that nobody sees
    only those are reported that `padding` or `documents` say are real; without these they may well
    be padding.

    Args:
        mask: The mask as it will be handed over.
        q_len: How many queries attention has; also kv_len, batch, heads and q_start, as in `.on()`.
        kv_len: How many keys.
        batch: How many sequences.
        heads: How many heads.
        q_start: The position of the first query; by default the last one sits at the last key.
        to: What the consumer makes of an array: "keep" (True or 1 keeps: SDPA, transformers, jax,
            Keras), "drop" (True hides: nn.MultiheadAttention) or "additive" (added to scores); or
            the name of a target, such as "torch.mha". If not given, floats are added and all else
            keeps.
        axes: What an array's axes are to the consumer: "qk", "bk", "bqk", "hqk" or "bhqk". If not
            given, it broadcasts from the right, as SDPA's does.
        dtype: The scores' dtype, to see whether the fill fits it.
        device: The device of queries and keys.
        causal: Whether the mask is meant to be causal.
        padding: What hides padding: `padding(...)`, or lengths, or truth values of tokens to keep.
        documents: What was packed: `documents(...)`, or lengths, or a document for each token.
        window: How many keys a query sees at most, itself included, as transformers counts; or
            (back, ahead) without itself, as flash-attn counts, with -1 or None for no limit.
        expects: The very mask that it should be.

    >>> import maskwright as mw
    >>> mw.lint([[1, 0, 0], [1, 1, 0], [1, 1, 1]], causal=True)
    no findings
    >>> mw.lint([[1, 0, 0], [1, 1, 0], [1, 1, 1]], causal=True, to="drop").codes
    ('inverted',)
    >>> mw.lint(mw.window(back=4), q_len=16, window=4)
    window-off-by-one: A query sees up to 5 keys back, itself included, where 4 were stated. \
Make it window(back=3), which counts without the query itself.
    """
    given = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len}
    sizes = Sizes(
        **{
            name: None if size is None else parse_int(size, f"lint: {name}", minimum=0)
            for name, size in given.items()
        },
        q_start=None if q_start is None else parse_int(q_start, "lint: q_start"),
    )
    target = capabilities().get(to) if isinstance(to, str) else None
    to = _consumer(to, target, mask)
    if axes is not None:
        read_choice(axes, "lint: axes", AXES)
    elif target is not None and target.axes and getattr(mask, "ndim", 0) == len(target.axes):
        axes = target.axes
    gives_zero = target is not None and target.empty_rows == "zero"
    scores = numbers.read_dtype(dtype)
    facts = read_facts(causal, padding, documents, window, expects, _keys(mask, sizes))
    # Data about tokens says how many there are, and of how many sequences.
    sizes = sizes._replace(
        kv_len=sizes_in(facts.masks())[1] if kv_len is None else sizes.kv_len,
        batch=facts.batch if batch is None and facts.batch > 1 else sizes.batch,
    )
    if not isinstance(mask, (Mask, BoundMask)):
        found = list(numbers.judge_device(mask, device))
        judged = _lint_array(mask, sizes, facts, to, axes, scores, found, gives_zero=gives_zero)
        return LintReport((*found, *judged))
    if axes is not None:
        raise ArgumentError("lint: axes names those of an array. Leave it out for a mask.")
    return LintReport(tuple(_lint_mask(mask, sizes, facts, gives_zero)))


def _consumer(to: Any, target: Target | None, mask: Any) -> str | None:
    """What the consumer does: as it was said, or as the target that was named does."""
    if target is None:
        return None if to is None else read_choice(to, "lint: to", numbers.CONSUMERS)
    if not target.encoding:
        raise ArgumentError(
            f"lint: {to} takes no array of cells. Give 'keep', 'drop' or 'additive'."
        )
    floats = "float" in str(getattr(mask, "dtype", ""))
    return "additive" if target.accepts_additive and floats else target.encoding


def _lint_mask(
    mask: Mask | BoundMask, sizes: Sizes, facts: Facts, gives_zero: bool
) -> Iterator[Finding]:
    try:
        bound = mask if isinstance(mask, BoundMask) else _bind(mask, sizes, facts)
    except FrameError as error:
        yield _does_not_fit(error)
        return
    placed = place(bound.shape, "bhqk", sizes, None)
    yield from placed.findings
    if placed.shape is not None:
        frame = (
            bound.frame if sizes.q_start is None else replace(bound.frame, q_start=sizes.q_start)
        )
        frame = replace(frame, batch=max(frame.batch, sizes.batch or 1))
        view = View(bound.spans, frame)
        yield from _judge_cells(view, facts, [], -np.inf, gives_zero=gives_zero)


def _bind(mask: Mask, sizes: Sizes, facts: Facts) -> BoundMask:
    queries, keys = sizes_in([mask, *facts.masks()])
    keys = keys if sizes.kv_len is None else sizes.kv_len
    queries = sizes.q_len if sizes.q_len is not None else keys if queries is None else queries
    if queries is None:
        raise ArgumentError("lint: the mask has no size, and no data tells one. Pass q_len.")
    return mask.on(queries, keys, sizes.batch, sizes.heads, sizes.q_start)


def _lint_array(
    array: Any,
    sizes: Sizes,
    facts: Facts,
    to: str | None,
    axes: str | None,
    scores: str | None,
    known: list[Finding],
    *,
    gives_zero: bool,
) -> Iterator[Finding]:
    try:
        values, own = read_values(array, "lint: the mask")
    except Exception as error:
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise
        yield from place(tuple(map(int, array.shape)), axes, sizes, to).findings
        if not known:
            reason = str(error).removeprefix("lint: ").partition(".")[0].rstrip("!")
            message = f"The values of the mask can't be read: {reason:.120}."
            yield Finding("no-values", message, "Give an array of truth values or numbers.")
        return
    shape = values.shape
    placed = place(shape, axes, sizes, to)
    if placed.shape is None:
        flat = numbers.judge(values.reshape(1, 1, 1, -1), own, to, scores)
        yield from (*placed.findings, *(replace(f, cell=None) for f in flat.findings))
        return
    held = numbers.judge(values.reshape(placed.shape), own, to, scores)
    yield from held.findings
    if held.cells is None:
        return
    frame = _frame(placed.shape, sizes)
    view = View(_spans(held.cells, frame), frame)
    others = [] if axes is not None else list(_landings(held.cells, shape, view, sizes, facts))
    yield from _judge_cells(
        view,
        facts,
        others,
        held.fill,
        overflows_by=held.overflows_by,
        array=True,
        gives_zero=gives_zero,
    )


def _judge_cells(
    view: View,
    facts: Facts,
    others: list[Reading],
    fill: float,
    *,
    overflows_by: str = "",
    array: bool = False,
    gives_zero: bool = False,
) -> Iterator[Finding]:
    if not view.frame.cells:
        return
    try:
        found = causes.judge(view, facts, others)
    except FrameError as error:
        yield _does_not_fit(error)
        return
    if not found:
        found = [
            Finding(other.code, other.message, other.fix)
            for other in others
            if other.likely and causes.fits(other.view(), facts)
        ]
    if not found and array and not facts.masks():
        found = list(causes.habits(view))
    yield from found
    if any(finding.code in causes.CAUSES for finding in found):
        return
    harmless = gives_zero and np.isinf(fill)  # the target itself gives zero there
    empty = [] if harmless else list(empty_rows(view, fill, facts))
    yield from empty
    # Scores are added everywhere, also in rows of padding; another mask is only if somebody does it.
    at_risk = empty_rows(view, fill, Facts()) if overflows_by == "a score" else iter(empty)
    for finding in at_risk if overflows_by else ():
        yield Finding(
            "fill-at-limit",
            f"The fill {fill:.5g} is next to the dtype's lowest number: with {overflows_by} added it "
            "becomes -inf, and a row that sees nothing becomes NaN.",
            "Fill once with half of that, or give such rows a key to see.",
            finding.cell,
        )


def _landings(
    cells: BoolArray, shape: tuple[int, ...], view: View, sizes: Sizes, facts: Facts
) -> Iterator[Reading]:
    """Batch rows that land on heads or on queries, because there happen to be as many."""
    batch, frame = sizes.batch or 1, view.frame
    lands = f"Shape {shape} lines up from the right, so its {batch} batch rows land on the"
    if batch > 1 and cells.shape[:2] == (1, batch):
        heads = 1 if sizes.heads is None else frame.heads
        insert = "Insert the missing axis, mask[:, None], or say axes='hqk' if they are heads."
        yield Reading(
            "batch-on-heads",
            lambda: _reshaped(cells, (batch, 1, *cells.shape[2:]), replace(frame, heads=heads)),
            f"{lands} heads.",
            insert if len(shape) == 3 else "Put the batch axis first: mask.swapaxes(0, 1).",
            likely=len(shape) == 3 and bool((cells != cells[:, :1]).any()),
        )
    if batch > 1 and shape[:-1] == (batch,) == (frame.q_len,):
        yield Reading(
            "batch-on-queries",
            lambda: _reshaped(cells, (batch, 1, 1, shape[1]), frame),
            f"{lands} queries.",
            "Insert the missing axes, mask[:, None, None, :], or say axes='qk' if they are queries.",
            likely=not facts.masks() and _like_padding(view),
        )


def _like_padding(view: View) -> bool:
    """Does each row see one stretch from the same end on, but longer and shorter by turns?

    A query's row of keys grows with its position, if it changes at all; a sequence's need not.
    """
    spans, frame = view
    if not bool((np.diff(spans.offsets) == 1).all()):
        return False
    if bool((spans.starts == 0).all()):
        return bool((np.diff(spans.stops) < 0).any())
    return bool((spans.stops == frame.kv_len).all() and (np.diff(spans.starts) < 0).any())


def _reshaped(cells: BoolArray, shape: tuple[int, ...], frame: Frame) -> View:
    return View(_spans(cells.reshape(shape), frame), frame)


def _frame(shape: tuple[int, int, int, int], sizes: Sizes) -> Frame:
    """The frame of an array, of which an axis of 1 is as long as was stated."""
    b, h, t, s = shape
    q_len = t if sizes.q_len is None else sizes.q_len
    kv_len = (t if s == 1 < t else s) if sizes.kv_len is None else sizes.kv_len
    return Frame(
        q_len,
        kv_len,
        b if sizes.batch is None else sizes.batch,
        h if sizes.heads is None else sizes.heads,
        kv_len - q_len if sizes.q_start is None else sizes.q_start,
    )


def _spans(cells: BoolArray, frame: Frame) -> Spans:
    """The spans of (batch, heads, queries, keys), read some rows at a time; 1 stands for all."""
    b, h, rows, _ = cells.shape
    wide = np.broadcast_to(cells, (b, h, rows, frame.kv_len))
    step = max(1, MOST_CELLS // max(1, b * h * frame.kv_len))
    parts = [
        Spans.from_cells(wide[:, :, row : row + step], frame.kv_len)
        for row in range(0, max(rows, 1), step)
    ]
    spans = Spans.stack(parts, axis=2)
    if rows == frame.q_len:
        return spans
    index = np.arange(b * h).reshape(b, h, 1)
    return spans.take(np.broadcast_to(index, (b, h, frame.q_len)))


def _keys(mask: Any, sizes: Sizes) -> int | None:
    """How many keys there are, as far as the mask itself and the stated sizes tell."""
    if sizes.kv_len is not None:
        return sizes.kv_len
    if isinstance(mask, BoundMask):
        return mask.frame.kv_len
    if isinstance(mask, Mask):
        return sizes_in([mask])[1] or sizes.q_len
    try:
        shape = np.shape(mask) if isinstance(mask, (list, tuple)) else mask.shape
        return int(shape[-1])
    except (AttributeError, IndexError, ValueError):
        return None


def _does_not_fit(error: FrameError) -> Finding:
    message, _, fix = str(error).partition(". ")
    return Finding("does-not-fit", f"{message}.", fix or "Give both for the same sizes.")
