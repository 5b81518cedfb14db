"""Lint: checks of a mask array or expression or of a bias, and the codes of all findings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.bias import Bias, BoundBias
from maskwright.core import atoms
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.validate import describe_type, parse_bool, parse_int, read_array, read_choice
from maskwright.errors import ArgumentError, FrameError
from maskwright.linting.cells import (
    Expected,
    Interpretation,
    Limits,
    PlacedMask,
    check_cells,
    check_empty_rows,
    check_likely_mistakes,
    has_properties,
)
from maskwright.linting.codes import CODES, Finding, LintReport, make_finding
from maskwright.linting.shapes import AXES, Sizes, other_axes, place_cells, place_shape
from maskwright.linting.values import (
    CONVENTIONS,
    MaskValues,
    check_bias,
    check_device,
    check_dtype,
    check_values,
    parse_dtype,
)
from maskwright.messages import Reason
from maskwright.recognition.encoding import collapse_repeats, read_values
from maskwright.targets.lower import TARGETS, capabilities

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.targets.base import Target


@dataclass(frozen=True)
class Consumer:
    """How the mask is read.

    Args:
        convention: "keep", "drop", "additive", or None if not stated.
        axes: The axes of an array, None if not stated.
        dtype: The dtype of the scores, None if not stated.
        zero_for_empty_rows: Whether the output of a fully masked row is 0.
        target: The target that reads it, None if not stated.
    """

    convention: str | None
    axes: str | None
    dtype: str | None
    zero_for_empty_rows: bool
    target: Target | None = None


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
    """Checks a mask, a bound mask, an array of any framework, or a bias.

    Every stated property (`causal`, `padding`, ...) enables further checks. A root cause that
    explains all differences, such as inverted values, is reported alone. A key to which no query
    attends is reported only if `padding` or `documents` says that it is not padding.

    A bias changes scores and hides no position: values of -1e4 or less are reported, except those
    of ALiBi, which decrease with the distance. An array with such values is read as a mask.

    Args:
        mask: The mask, as it is passed to attention; or a bias.
        q_len: Number of queries, as in `.on()`; likewise the next four.
        kv_len: Number of keys.
        batch: Batch size.
        heads: Number of heads.
        q_start: Position of the first query. Default: the last query is at the last key.
        to: How an array is read: "keep" (True or 1 keeps: SDPA, transformers, jax, Keras), "drop"
            (True masks: nn.MultiheadAttention), "additive" (added to the scores), or the name of a
            target, such as "torch.mha". Default: floats are added, other dtypes keep.
        axes: The axes of an array: "k", "qk", "bk", "bqk", "hqk" or "bhqk". Default: it broadcasts
            from the right, as in SDPA.
        dtype: The dtype of the scores, to check the range of the fill value.
        device: The device of queries and keys.
        causal: Whether the mask should be causal.
        padding: The padding mask: `padding(...)`, lengths, or a bool array of tokens to keep.
        documents: The packed documents: `documents(...)`, lengths, or a document id per token.
        window: The sliding window: the number of keys, the query included, as in transformers; or
            (back, ahead) without the query, as in flash-attn, -1 or None for no limit.
        expects: The exact mask.

    Returns:
        The findings. Problems of the mask do not raise.

    Raises:
        ArgumentError: If another argument is invalid, or the mask has no known size, or properties of
            a mask are stated for a bias.

    >>> import maskwright as mw
    >>> mw.lint([[1, 0, 0], [1, 1, 0], [1, 1, 1]], causal=True)
    no findings
    >>> mw.lint([[1, 0, 0], [1, 1, 0], [1, 1, 1]], causal=True, to="drop").codes
    ('inverted',)
    >>> mw.lint(mw.window(back=4), q_len=16, window=4)
    window-off-by-one: Expected window(back=3), a window of 4 keys including the query, got 5 keys. \
Count the query itself: a window of W keys is window(back=W - 1).
    """
    given = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len}
    sizes = Sizes(
        **{
            name: None if size is None else parse_int(size, f"lint: {name}", minimum=0)
            for name, size in given.items()
        },
        q_start=None if q_start is None else parse_int(q_start, "lint: q_start"),
    )
    if isinstance(mask, (Bias, BoundBias)):
        stated = (to, axes, padding, documents, window, expects)
        if causal or any(one is not None for one in stated):
            raise ArgumentError(
                "lint: a bias has no visible cells. Pass sizes only, and lint the mask separately."
            )
        return LintReport(tuple(_lint_bias(mask, sizes)))
    consumer = _parse_consumer(to, axes, dtype, mask)
    expected = _parse_expected(causal, padding, documents, window, expects, _num_keys(mask, sizes))
    sizes = sizes._replace(
        kv_len=_data_sizes(expected.masks())[1] if kv_len is None else sizes.kv_len,
        batch=expected.batch if batch is None and expected.batch > 1 else sizes.batch,
    )
    if not isinstance(mask, (Mask, BoundMask)):
        found = tuple(check_device(mask, device))
        return LintReport((*found, *_lint_array(mask, sizes, expected, consumer, bool(found))))
    if axes is not None:
        raise ArgumentError("lint: axes names those of an array. Leave it out for a mask.")
    return LintReport(tuple(_lint_mask(mask, sizes, expected, consumer)))


def _lint_bias(bias: Bias | BoundBias, sizes: Sizes) -> Iterator[Finding]:
    """Checks the values of a bias, and its sizes where they are stated."""
    if isinstance(bias, BoundBias):
        bias = bias.bias
    if sizes.q_len is not None:
        try:
            bias.on(sizes.q_len, sizes.kv_len, sizes.batch, sizes.heads, sizes.q_start)
        except FrameError as error:
            yield _size_finding(error)
    yield from check_bias(bias)


def _lint_mask(
    mask: Mask | BoundMask, sizes: Sizes, expected: Expected, consumer: Consumer
) -> Iterator[Finding]:
    try:
        bound = mask if isinstance(mask, BoundMask) else _bind(mask, sizes, expected)
    except FrameError as error:
        yield _size_finding(error)
        return
    shape = place_shape(bound.shape, "bhqk", sizes, None)
    yield from shape.findings
    if shape.shape is not None:
        frame = bound.frame
        frame = replace(
            frame,
            q_start=frame.q_start if sizes.q_start is None else sizes.q_start,
            batch=max(frame.batch, sizes.batch or 1),
        )
        yield from _lint_cells(PlacedMask(bound.spans, frame), expected, consumer, None, [])


def _lint_array(
    array: Any, sizes: Sizes, expected: Expected, consumer: Consumer, on_other_device: bool
) -> Iterator[Finding]:
    axes, convention = consumer.axes, consumer.convention
    try:
        values, own_dtype = read_values(array, "lint: the mask")
    except Exception as error:
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise
        yield from place_shape(tuple(map(int, array.shape)), axes, sizes, convention).findings
        if not on_other_device:
            text = str(error).removeprefix("lint: ").partition(".")[0].rstrip("!")
            yield make_finding("no-values", error=text[:120])
        return
    shape = values.shape
    placed_shape = place_shape(shape, axes, sizes, convention)
    if placed_shape.shape is None:
        line = collapse_repeats(values).reshape(1, 1, 1, -1)
        read = check_values(line, own_dtype, convention, consumer.dtype)
        yield from (*placed_shape.findings, *(replace(found, cell=None) for found in read.findings))
        return
    values = values.reshape(placed_shape.shape)
    batch, heads = placed_shape.shape[:2]
    if values.strides[0] == 0:  # the same memory for each: one is read, and broadcast
        values, sizes = values[:1], sizes._replace(batch=sizes.batch or batch)
    if values.strides[1] == 0:
        values, sizes = values[:, :1], sizes._replace(heads=sizes.heads or heads)
    read = check_values(values, own_dtype, convention, consumer.dtype)
    yield from read.findings
    if not read.findings and consumer.target is not None and hasattr(array, "dtype"):  # not a list
        yield from check_dtype(values, own_dtype, consumer.target)
    if read.visible is not None:
        placed = place_cells(read.visible, sizes)
        others = [*other_axes(read.visible, shape, placed, sizes, expected)] if axes is None else []
        yield from _lint_cells(placed, expected, consumer, read, others)


def _lint_cells(
    placed: PlacedMask,
    expected: Expected,
    consumer: Consumer,
    values: MaskValues | None,
    others: list[Interpretation],
) -> Iterator[Finding]:
    """Checks the cells of a mask expression, or of an array if there are values."""
    if not placed.frame.cells:
        return
    try:
        found = check_cells(placed, expected, others)
    except FrameError as error:
        yield _size_finding(error)
        return
    if not found:
        found = [
            other.finding
            for other in others
            if other.likely and has_properties(other.place(), expected)
        ]
    if not found and values is not None and not expected.masks():
        found = list(check_likely_mistakes(placed))
    yield from found
    if any(CODES[finding.code].root_cause for finding in found):
        return  # empty rows are a consequence of it
    fill = -np.inf if values is None else values.fill
    zero = consumer.zero_for_empty_rows and np.isinf(fill)
    empty = [] if zero else list(check_empty_rows(placed, fill, expected))
    yield from empty
    if values is None or not values.overflow_addend:
        return
    # Scores are added in all rows, padding included; a second mask only if the caller adds one.
    any_score = values.overflow_addend == "score"
    for finding in check_empty_rows(placed, fill, Expected()) if any_score else empty:
        addend = Reason(f"lint.addend_{values.overflow_addend}", {})
        yield make_finding("fill-at-limit", finding.cell, fill=fill, addend=addend)


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────


def _parse_consumer(to: Any, axes: Any, dtype: Any, mask: Any) -> Consumer:
    target = capabilities().get(TARGETS.aliases.get(to, to)) if isinstance(to, str) else None
    if axes is not None:
        read_choice(axes, "lint: axes", AXES)
    scores = parse_dtype(dtype)
    if target is None:
        convention = None if to is None else read_choice(to, "lint: to", CONVENTIONS)
        return Consumer(convention, axes, scores, zero_for_empty_rows=False)
    if not target.encoding:
        raise ArgumentError(
            f"lint: {to} takes no array of cells. Pass 'keep', 'drop' or 'additive'."
        )
    floats = "float" in str(getattr(mask, "dtype", ""))
    convention = "additive" if target.accepts_additive and floats else target.encoding
    if axes is None and target.axes and getattr(mask, "ndim", 0) == len(target.axes):
        axes = target.axes
    return Consumer(convention, axes, scores, target.empty_rows == "zero", target)


def _parse_expected(
    causal: object, padding: Any, documents: Any, window: Any, expects: object, num_keys: int | None
) -> Expected:
    if expects is not None and not isinstance(expects, Mask):
        raise ArgumentError(
            f"lint: expects is {describe_type(expects)}. Pass a mask that is not bound."
        )
    limits = _parse_window(window)
    # A window of one number is that of a decoder, as in transformers.
    is_number = window is not None and not isinstance(window, (tuple, list))
    return Expected(
        parse_bool(causal, "lint: causal") or is_number,
        _parse_padding(padding),
        _parse_documents(documents, num_keys),
        limits,
        expects,
    )


def _parse_padding(value: Any) -> Mask | None:
    if value is None or isinstance(value, Mask):
        return value
    array = read_array(value, "lint: padding")
    if array.ndim < 2 and array.dtype.kind in "iu":
        return atoms.padding(lengths=array)
    return atoms.padding(keep=array)


def _parse_documents(value: Any, num_keys: int | None) -> Mask | None:
    """A mask; ids, one per token; or lengths, which are fewer."""
    if value is None or isinstance(value, Mask):
        return value
    try:
        array = read_array(value, "lint: documents")
    except ArgumentError:
        return atoms.documents(lengths=value)  # ragged, or invalid
    if array.ndim and array.shape[-1] == num_keys:
        return atoms.documents(ids=array)
    return atoms.documents(lengths=value)


def _parse_window(value: Any) -> Limits | None:
    if value is None:
        return None
    if not isinstance(value, (tuple, list)):
        return parse_int(value, "lint: window", minimum=1) - 1, 0
    if len(value) != 2:
        raise ArgumentError(
            f"lint: window has {len(value)} numbers. Pass a number of keys, or (back, ahead)."
        )
    back, ahead = (
        None if side is None or parse_int(side, f"lint: window[{i}]") == -1
        else parse_int(side, f"lint: window[{i}]", minimum=0)
        for i, side in enumerate(value)
    )  # fmt: skip
    return back, ahead


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────


def _bind(mask: Mask, sizes: Sizes, expected: Expected) -> BoundMask:
    queries, keys = _data_sizes([mask, *expected.masks()])
    keys = keys if sizes.kv_len is None else sizes.kv_len
    queries = sizes.q_len if sizes.q_len is not None else keys if queries is None else queries
    if queries is None:
        raise ArgumentError("lint: the mask has no size, and no data implies one. Pass q_len.")
    return mask.on(queries, keys, sizes.batch, sizes.heads, sizes.q_start)


def _data_sizes(masks: list[Mask]) -> tuple[int | None, int | None]:
    """The numbers of queries and keys that the data of masks describes, None if it does not."""
    implied = [(None, None), *(mask.implied_sizes(exact=True) for mask in masks)]
    queries, keys = (
        max((n for n in side if n is not None), default=None) for side in zip(*implied, strict=True)
    )
    return queries, keys


def _num_keys(mask: Any, sizes: Sizes) -> int | None:
    """The number of keys, None if neither the mask nor the sizes determine it."""
    if sizes.kv_len is not None:
        return sizes.kv_len
    if isinstance(mask, BoundMask):
        return mask.frame.kv_len
    if isinstance(mask, Mask):
        return _data_sizes([mask])[1] or sizes.q_len
    try:
        shape = np.shape(mask) if isinstance(mask, (list, tuple)) else mask.shape
        return int(shape[-1])
    except (AttributeError, IndexError, ValueError):
        return None


def _size_finding(error: FrameError) -> Finding:
    problem, _, advice = str(error).rstrip(".").partition(". ")
    text = f"{problem}; {advice[0].lower()}{advice[1:]}" if advice else problem
    return make_finding("does-not-fit", error=text.replace(". ", "; "))
