"""Converts the mask functions of transformers to mask expressions.

transformers describes a mask by a function of (batch, head, query, key) that its factories compose. Its
formula is read by `transformers_indices`, and each part of it that an atom represents becomes that
atom. Other parts, and a function that has no formula, are evaluated cell by cell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.core.atoms import causal, chunks, documents, everything, padding, window
from maskwright.core.atoms.array import Where
from maskwright.core.evaluate import MAX_CELLS
from maskwright.core.expr import find
from maskwright.core.simplify import simplify
from maskwright.integrations.transformers_indices import (
    formula_function,
    parse_formula,
    read_formula,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.core.frame import Frame
    from maskwright.core.validate import BoolArray, IntArray
    from maskwright.integrations.transformers_indices import Formula

MAX_CACHED_MASKS = 32  # bound masks with their spans, kept between forward passes


class View(NamedTuple):
    """The sizes and positions of a mask; positions of transformers are ours plus `shift`."""

    batch: int
    q_len: int
    kv_len: int
    q_start: int
    shift: int
    use_vmap: bool = False
    device: object = "cpu"

    @property
    def tokens(self) -> int:
        """Number of positions up to the last query or key."""
        return max(self.q_start + self.q_len, self.kv_len)


def read_function(function: Callable[..., Any], view: View) -> BoundMask:
    """The bound mask of a mask function; the same object as before if the mask is equal."""
    try:
        text, tensors = read_formula(function)
        formula = parse_formula(text)
    except Exception:  # a function may do anything with its indices, and symbols are not tensors
        return _bind(_evaluate(function, view), view)
    return read_formula_mask(formula, tensors, view)


def read_formula_mask(formula: Formula, tensors: Sequence[Any], view: View) -> BoundMask:
    """The bound mask of a formula of `transformers_indices`; as `read_function`."""
    return _bind(simplify(_read(formula, tensors, view)), view)


def _bind(mask: Mask, view: View) -> BoundMask:
    bound = mask.on(view.q_len, view.kv_len, view.batch, 1, view.q_start)
    if find(mask, Where):
        return _cached_evaluation(EvaluatedMask(bound.frame, _digest(bound), _snapshot(bound)))
    return _cached_mask(bound)


@lru_cache(maxsize=MAX_CACHED_MASKS)
def _cached_mask(bound: BoundMask) -> BoundMask:
    return bound


@dataclass(frozen=True)
class EvaluatedMask:
    """A mask that was evaluated cell by cell, identified by the digest of its spans."""

    frame: Frame
    digest: bytes
    bound: BoundMask = field(compare=False)


@lru_cache(maxsize=MAX_CACHED_MASKS)
def _cached_evaluation(evaluate: EvaluatedMask) -> BoundMask:
    return evaluate.bound


def _snapshot(bound: BoundMask) -> BoundMask:
    """The cells as they are now: the variables in the closure of the function may change later."""
    spans, top = bound.spans, bound.frame.q_start

    def recorded(b: object, h: object, q: IntArray, k: IntArray) -> BoolArray:  # noqa: ARG001
        first, row = int(k.flat[0]), int(q.flat[0]) - top
        cells = np.empty((*spans.shape[:2], q.size, k.size), np.bool_)
        step = max(1, MAX_CELLS // max(1, spans.shape[0] * spans.kv_len))
        for at in range(0, q.size, step):
            part = spans.rows(row + at, row + min(at + step, q.size))
            whole = np.empty((*part.shape, part.kv_len), np.bool_)
            part.write_dense(whole)
            cells[:, :, at : at + step] = whole[..., first : first + k.size]
        return cells

    frame = bound.frame
    same = Where(recorded, arrays=True).on(frame.q_len, frame.kv_len, frame.batch, 1, frame.q_start)
    same.cached("spans", lambda: spans)
    return same


def _digest(bound: BoundMask) -> bytes:
    spans = bound.spans
    digest = blake2b(repr((spans.shape, spans.kv_len)).encode(), digest_size=32)
    for part in spans.flat:
        digest.update(np.ascontiguousarray(part, np.int64).tobytes())
    return digest.digest()


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def _read(formula: Formula, tensors: Sequence[Any], view: View) -> Mask:
    """The expression of a formula; what no case reads is evaluated cell by cell."""
    mask: Mask | None = None
    match formula:
        case ("true",):
            mask = everything()
        case ("ge", "q", 0) if view.q_start + view.shift >= 0:
            mask = everything()
        case ("le", "k", "q"):
            mask = causal()
        case ("gt", "k", ("sub", "q", int(size))) if size >= 1:
            mask = window(back=size - 1, ahead=None)
        case ("le", ("abs", ("sub", "q", "k")), int(size)) if size >= 0:
            mask = window(back=size, ahead=size)
        case ("get", int(n), "b", "k"):
            mask = _read_padding(tensors[n], view)
        case ("eq", ("get", int(n), "b", "q"), ("get", int(m), "b", "k")) if n == m:
            mask = _read_packed(tensors[n], view)
        case (
            "and",
            ("eq", ("get", int(n), "b", "q"), ("get", int(m), "b", "k")),
            ("ge", ("get", int(l), "b", "q"), 0),
        ) if n == m == l:
            mask = _read_blocks(tensors[n], view)
        case (
            "eq",
            ("floordiv", ("sub", "k", ("get", int(n), "b")), int(size)),
            ("floordiv", ("sub", "q", ("get", int(m), "b")), int(other)),
        ) if (n, size) == (m, other):
            mask = _read_chunks(size, tensors[n], view)
        case ("and", left, right):
            mask = _read(left, tensors, view) & _read(right, tensors, view)
        case ("or", ("false",), right):
            mask = _read(right, tensors, view)
        case ("or", left, right):
            mask = _read(left, tensors, view) | _read(right, tensors, view)
    return _evaluate(formula_function(formula, tensors), view) if mask is None else mask


def _evaluate(function: Callable[..., Any], view: View) -> Mask:
    """The mask of a function, evaluated by `sdpa_mask` of transformers in blocks of rows and keys."""
    from transformers.masking_utils import sdpa_mask

    def evaluate(b: object, h: object, q: IntArray, k: IntArray) -> Any:  # noqa: ARG001 - `where` passes all four
        cells = sdpa_mask(
            batch_size=view.batch,
            q_length=q.size,
            kv_length=k.size,
            q_offset=int(q.flat[0]) + view.shift,
            kv_offset=int(k.flat[0]) + view.shift,
            mask_function=function,
            allow_is_causal_skip=False,
            use_vmap=view.use_vmap,
            device=view.device,
        )
        return cells.cpu().numpy()

    evaluate.__name__ = getattr(function, "__qualname__", type(function).__name__)
    return Where(evaluate, arrays=True)


def _read_padding(data: torch.Tensor, view: View) -> Mask | None:
    kept = _token_data(data, view, view.kv_len)
    if kept is None or kept.dtype != np.bool_:
        return None
    return everything() if kept.all() else padding(keep=_collapse_equal_rows(kept))


def _read_packed(data: torch.Tensor, view: View) -> Mask | None:
    ids = _token_data(data, view, view.tokens)
    return None if ids is None else _documents(ids, np.ones(ids.shape, np.bool_))


def _read_blocks(data: torch.Tensor, view: View) -> Mask | None:
    ids = _token_data(data, view, view.tokens)
    return None if ids is None else _documents(ids, ids >= 0)


def _read_chunks(size: int, left_padding: torch.Tensor, view: View) -> Mask | None:
    left = _numbers(left_padding, ndim=1)
    if size < 1 or left is None or len(left) < view.batch or view.q_start < 0:
        return None
    begin = left[: view.batch].astype(np.int64) - view.shift
    if not (begin % size).any():
        return chunks(size)
    chunk = (np.arange(view.tokens) - begin[:, None]) // size
    return _documents(chunk, np.ones(chunk.shape, np.bool_))


def _token_data(data: torch.Tensor, view: View, tokens: int) -> Any:
    """(batch or 1, tokens) of a (batch, tokens) tensor, or None if it does not cover the view."""
    rows = _numbers(data, ndim=2)
    if rows is None or view.shift < 0 or view.q_start < 0 or len(rows) < view.batch:
        return None
    part = rows[: view.batch, view.shift : view.shift + tokens]
    return part if part.shape[1] == tokens else None


def _numbers(data: torch.Tensor, ndim: int) -> Any:
    """An integer or bool tensor as a numpy array; None for others."""
    if data.ndim != ndim or data.dtype.is_floating_point or data.dtype.is_complex:
        return None
    return data.detach().cpu().numpy()


def _documents(ids: Any, keep: Any) -> Mask:
    """Tokens with the same id attend to each other, except where `keep` is False."""
    if not ids.size:
        return everything()  # there are no cells
    number = np.unique(ids, return_inverse=True)[1].reshape(ids.shape)
    return documents(ids=_collapse_equal_rows(np.where(keep, number, -1)))


def _collapse_equal_rows(rows: Any) -> Any:
    """A single row if all rows are equal, so that the batch shares its spans."""
    return rows[:1] if len(rows) and (rows == rows[:1]).all() else rows
