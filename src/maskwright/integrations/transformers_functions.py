"""Converts the mask functions of transformers to mask expressions.

transformers describes a mask by a function of (batch, head, query, key) that its factories compose.
These functions are recognised by their code object, and their parameters are read from their closure.
Each rule is compared with the installed release before it is first used. A function without a valid
rule, such as one that a user wrote, is evaluated cell by cell.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache, partial, reduce
from hashlib import blake2b
from operator import and_, or_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from maskwright.core.atoms import causal, chunks, documents, everything, padding, window
from maskwright.core.atoms.array import Where
from maskwright.core.evaluate import MAX_CELLS
from maskwright.core.expr import find
from maskwright.core.simplify import simplify
from maskwright.integrations.transformers_indices import evaluated, match_leaf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType

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
    return _bind(simplify(_read(function, view, _rules())), view)


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


class Rule(NamedTuple):
    """A factory of transformers', by its name; functions it made; and how to read those."""

    factory: str
    samples: Callable[[Any], Sequence[Callable[..., Any]]]
    read: Callable[[Mapping[str, Any], View, Rules], Mask | None]


Rules = dict["CodeType", Rule]


def _read(function: Callable[..., Any], view: View, rules: Rules) -> Mask:
    """The expression of a function; what no rule reads is evaluated cell by cell."""
    code = getattr(function, "__code__", None)
    rule = None if code is None else rules.get(code)
    mask = None if rule is None else rule.read(_closure_variables(function), view, rules)
    return _evaluate(function, view) if mask is None else mask


def read_formula_mask(formula: Formula, tensors: Sequence[Any], view: View) -> BoundMask:
    """The bound mask of a formula of `transformers_indices`; as `read_function`."""
    return _bind(simplify(_read_formula(formula, tensors, view)), view)


def _read_formula(formula: Formula, tensors: Sequence[Any], view: View) -> Mask:
    mask: Mask | None = None
    leaf = match_leaf(formula, tensors)
    if leaf is not None:
        mask = READERS[leaf.factory](leaf.variables, view, {})
    else:
        match formula:
            case ("true",):
                mask = everything()
            case ("and", left, right):
                mask = _read_formula(left, tensors, view) & _read_formula(right, tensors, view)
            case ("or", ("false",), right):
                mask = _read_formula(right, tensors, view)
            case ("or", left, right):
                mask = _read_formula(left, tensors, view) | _read_formula(right, tensors, view)
    return evaluated(formula, tensors, view.batch, view.shift) if mask is None else mask


def _closure_variables(function: Any) -> dict[str, Any]:
    """What the function keeps of the call that made it, by name."""
    cells = function.__closure__ or ()
    return {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True)
    }


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


def _read_everything(held: Mapping[str, Any], view: View, rules: Rules) -> Mask | None:  # noqa: ARG001
    return everything() if view.q_start + view.shift >= 0 else None


def _read_causal(held: Mapping[str, Any], view: View, rules: Rules) -> Mask | None:  # noqa: ARG001
    return causal()


def _read_window(held: Mapping[str, Any], view: View, rules: Rules) -> Mask | None:  # noqa: ARG001
    size = held.get("sliding_window")
    return window(back=size - 1, ahead=None) if type(size) is int and size >= 1 else None


def _read_both_ways(held: Mapping[str, Any], view: View, rules: Rules) -> Mask | None:  # noqa: ARG001
    size = held.get("sliding_window")
    return window(back=size, ahead=size) if type(size) is int and size >= 0 else None


def _read_padding(held: Mapping[str, Any], view: View, rules: Rules) -> Mask | None:  # noqa: ARG001
    kept = _token_data(held.get("padding_mask"), view, view.kv_len)
    if kept is None or kept.dtype != np.bool_:
        return None
    return everything() if kept.all() else padding(keep=_collapse_equal_rows(kept))


def _read_packed(held: Mapping[str, Any], view: View, rules: Rules) -> Mask | None:  # noqa: ARG001
    ids = _token_data(held.get("packed_sequence_mask"), view, view.tokens)
    return None if ids is None else _documents(ids, np.ones(ids.shape, np.bool_))


def _read_blocks(held: Mapping[str, Any], view: View, rules: Rules) -> Mask | None:  # noqa: ARG001
    ids = _token_data(held.get("block_sequence_ids"), view, view.tokens)
    return None if ids is None else _documents(ids, ids >= 0)


def _read_chunks(held: Mapping[str, Any], view: View, rules: Rules) -> Mask | None:  # noqa: ARG001
    size, left = held.get("chunk_size"), _numbers(held.get("left_padding"), ndim=1)
    if type(size) is not int or size < 1 or left is None or len(left) < view.batch:
        return None
    if view.q_start < 0:
        return None
    begin = left[: view.batch].astype(np.int64) - view.shift
    if not (begin % size).any():
        return chunks(size)
    chunk = (np.arange(view.tokens) - begin[:, None]) // size
    return _documents(chunk, np.ones(chunk.shape, np.bool_))


def _read_combined(
    combine: Callable[[Mask, Mask], Mask], held: Mapping[str, Any], view: View, rules: Rules
) -> Mask | None:
    functions = held.get("mask_functions")
    if not isinstance(functions, tuple) or not functions:
        return None
    return reduce(combine, [_read(function, view, rules) for function in functions])


def _token_data(data: Any, view: View, tokens: int) -> Any:
    """(batch or 1, tokens) of a (batch, tokens) tensor, or None if it does not cover the view."""
    rows = _numbers(data, ndim=2)
    if rows is None or view.shift < 0 or view.q_start < 0 or len(rows) < view.batch:
        return None
    part = rows[: view.batch, view.shift : view.shift + tokens]
    return part if part.shape[1] == tokens else None


def _numbers(data: Any, ndim: int) -> Any:
    """An integer or bool tensor as a numpy array; None for anything else."""
    if not isinstance(data, torch.Tensor) or data.ndim != ndim:
        return None
    if data.dtype.is_floating_point or data.dtype.is_complex:
        return None
    return data.detach().cpu().numpy()


def _documents(ids: Any, real: Any) -> Mask:
    """Tokens with the same id attend to each other, except where `real` is False."""
    if not ids.size:
        return everything()  # there are no cells
    number = np.unique(ids, return_inverse=True)[1].reshape(ids.shape)
    return documents(ids=_collapse_equal_rows(np.where(real, number, -1)))


def _collapse_equal_rows(rows: Any) -> Any:
    """A single row if all rows are equal, so that the batch shares its spans."""
    return rows[:1] if len(rows) and (rows == rows[:1]).all() else rows


# ── rules, and their comparison with transformers ──────────────────────────────────────────────


def _sample_ids() -> Any:
    return torch.tensor([[0, 0, 1, 1, 1, -1, -1, 2, 2, 2], [3, 3, 3, 3, 0, 0, 3, 3, 3, -2]])


def _sample_parts(make: Any) -> list[Any]:
    from transformers import masking_utils

    first = masking_utils.sliding_window_overlay(3)
    return [make(masking_utils.causal_mask_function, first), make(first)]


def _sample_chunks(make: Any) -> list[Any]:
    return [make(3, torch.tensor(left)) for left in ([0, 0], [2, 5], [8, 2])]


RULES = (
    Rule("causal_mask_function", lambda made: [made], _read_causal),
    Rule("bidirectional_mask_function", lambda made: [made], _read_everything),
    Rule("sliding_window_overlay", lambda make: [make(1), make(3)], _read_window),
    Rule("sliding_window_bidirectional_overlay", lambda make: [make(0), make(2)], _read_both_ways),
    Rule("chunked_overlay", _sample_chunks, _read_chunks),
    Rule("padding_mask_function", lambda make: [make(_sample_ids() > 0)], _read_padding),
    Rule("packed_sequence_mask_function", lambda make: [make(_sample_ids())], _read_packed),
    Rule("blockwise_overlay", lambda make: [make(_sample_ids())], _read_blocks),
    Rule("and_masks", _sample_parts, partial(_read_combined, and_)),
    Rule("or_masks", _sample_parts, partial(_read_combined, or_)),
)
READERS = {rule.factory: rule.read for rule in RULES}
# With a KV cache, without one, and with sliding caches that have dropped their oldest keys.
SAMPLE_VIEWS = (View(2, 4, 8, 4, 0), View(2, 8, 8, 0, 0), View(2, 3, 7, 2, 2), View(2, 1, 5, 4, 5))


@cache
def _rules() -> Rules:
    """The rules that agree with the installed transformers, by the code object of their functions."""
    from transformers import masking_utils

    rules: Rules = {}
    for rule in RULES:
        samples = _samples(rule, getattr(masking_utils, rule.factory, None))
        if samples and all(_rule_agrees(rule, rules, sample) for sample in samples):
            rules[samples[0].__code__] = rule
    return rules


def _samples(rule: Rule, factory: Any) -> list[Any]:
    """Sample functions of a factory; empty if it has another signature in this release."""
    try:
        samples = list(rule.samples(factory))
    except (TypeError, ValueError):
        return []
    return samples if len({getattr(s, "__code__", None) for s in samples} - {None}) == 1 else []


def _rule_agrees(rule: Rule, rules: Rules, sample: Callable[..., Any]) -> bool:
    """Whether the mask of the rule equals the function on all sample views."""
    for view in SAMPLE_VIEWS:
        mask = rule.read(_closure_variables(sample), view, rules)
        frame = (view.q_len, view.kv_len, view.batch, 1, view.q_start)
        if mask is None or not mask.on(*frame).equals(_evaluate(sample, view)):
            return False
    return True
