"""What transformers says about a mask, read into an expression.

transformers hands over a function of (batch, head, query, key) that its own factories put together.
Those are known by their code, and what they closed over says the rest. Every rule is compared with
transformers itself before it is first used, so that a release that means something else by the same
name is asked cell by cell, as functions of the user's own are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache, reduce
from hashlib import blake2b
from operator import and_, or_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.core.atoms import causal, chunks, documents, everything, padding, where, window
from maskwright.core.atoms.array import Where
from maskwright.core.evaluate import MAX_CELLS
from maskwright.core.expr import find
from maskwright.core.simplify import simplify
from maskwright.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType

    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.core.frame import Frame
    from maskwright.core.validate import BoolArray, IntArray

KEPT_MASKS = 32  # bound masks, and with them their plans, remembered between forwards


class View(NamedTuple):
    """The cells that transformers asks about. Its positions are ours plus `shift`."""

    batch: int
    q_len: int
    kv_len: int
    q_start: int
    shift: int
    use_vmap: bool = False
    device: object = "cpu"

    @property
    def tokens(self) -> int:
        """How many positions there are up to the last query or key."""
        return max(self.q_start + self.q_len, self.kv_len)


def mask_for_layers(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **hints: Any,
) -> Any:
    """The mask of a forward, once for all layers of a kind: transformers' mask interface.

    Never None: what the layers would make of that depends on the model, and a mask says what it
    hides. The hints (`allow_is_causal_skip`, `local_size`, …) are about when to give None.

    >>> from maskwright.integrations.transformers_masks import mask_for_layers
    >>> from transformers.masking_utils import sliding_window_causal_mask_function
    >>> window = sliding_window_causal_mask_function(3)
    >>> mask_for_layers(1, 2, 6, q_offset=4, mask_function=window)
    MaskTensor((window(back=2)).on(2, kv_len=6, batch=1, heads=1, q_start=4), batch=1)
    """
    import torch
    from transformers import masking_utils

    from maskwright.integrations.transformers_tensor import MaskTensor, asks_the_interface

    function = masking_utils.causal_mask_function if mask_function is None else mask_function
    if _wants_tensor(q_length, q_offset, device):
        if not asks_the_interface(type(hints.get("config")).__module__):
            raise Unsupported(
                "This model keeps its attention to itself, so maskwright can't compute it. "
                'Load it with attn_implementation="eager".'
            )
        return masking_utils.sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=function,
            attention_mask=attention_mask,
            use_vmap=use_vmap,
            device=device,
            **{**hints, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
        )
    kept = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if kept is not None:
        function = masking_utils.and_masks(function, masking_utils.padding_mask_function(kept))
    shift = int(kv_offset)
    view = View(
        batch_size,
        q_length,
        kv_length,
        int(q_offset) - shift,
        shift,
        use_vmap,
        torch.device(device),
    )
    return MaskTensor(read_function(function, view), batch_size, device)


def _wants_tensor(q_length: int, q_offset: Any, device: Any) -> bool:
    """Will a compiler see this mask, which knows tensors only?"""
    import torch

    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    # Off the CPU, generate() compiles the single steps of a static cache, whose place is a tensor.
    steps = isinstance(q_offset, torch.Tensor) and q_length == 1
    return steps and torch.device(device).type != "cpu"


def read_function(function: Callable[..., Any], view: View) -> BoundMask:
    """The mask that the function says, on the view: remembered from earlier, where it is the same."""
    mask = simplify(_read(function, view, _rules()))
    bound = mask.on(view.q_len, view.kv_len, view.batch, 1, view.q_start)
    if find(mask, Where):
        return _same_spans(Asked(bound.frame, _digest(bound), _recorded(bound)))
    return _same_mask(bound)


@lru_cache(maxsize=KEPT_MASKS)
def _same_mask(bound: BoundMask) -> BoundMask:
    return bound


@dataclass(frozen=True)
class Asked:
    """A mask that was asked for cell by cell, known again by what the answers were."""

    frame: Frame
    digest: bytes
    bound: BoundMask = field(compare=False)


@lru_cache(maxsize=KEPT_MASKS)
def _same_spans(asked: Asked) -> BoundMask:
    return asked.bound


def _recorded(bound: BoundMask) -> BoundMask:
    """The same cells, as they are now: what a function closed over may change later."""
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
    same = where(recorded).on(frame.q_len, frame.kv_len, frame.batch, 1, frame.q_start)
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
    """The expression of a function; what no rule reads is asked for its cells."""
    code = getattr(function, "__code__", None)
    rule = None if code is None else rules.get(code)
    mask = None if rule is None else rule.read(_closed_over(function), view, rules)
    return _ask(function, view) if mask is None else mask


def _closed_over(function: Any) -> dict[str, Any]:
    """What the function keeps of the call that made it, by name."""
    cells = function.__closure__ or ()
    return {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True)
    }


def _ask(function: Callable[..., Any], view: View) -> Mask:
    """What the function says, read as transformers would, some rows and keys at a time."""
    from transformers.masking_utils import sdpa_mask

    def asked(b: object, h: object, q: IntArray, k: IntArray) -> Any:  # noqa: ARG001 - all of them
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

    asked.__name__ = getattr(function, "__qualname__", type(function).__name__)
    return where(asked)


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
    return everything() if kept.all() else padding(keep=_one_if_alike(kept))


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


def _read_all_of(held: Mapping[str, Any], view: View, rules: Rules) -> Mask | None:
    parts = _parts(held, view, rules)
    return None if parts is None else reduce(and_, parts)


def _read_any_of(held: Mapping[str, Any], view: View, rules: Rules) -> Mask | None:
    parts = _parts(held, view, rules)
    return None if parts is None else reduce(or_, parts)


def _parts(held: Mapping[str, Any], view: View, rules: Rules) -> list[Mask] | None:
    functions = held.get("mask_functions")
    if not isinstance(functions, tuple) or not functions:
        return None
    return [_read(function, view, rules) for function in functions]


def _token_data(data: Any, view: View, tokens: int) -> Any:
    """(batch or 1, tokens) of a (batch, tokens) tensor, or None if it does not cover the view."""
    rows = _numbers(data, ndim=2)
    if rows is None or view.shift < 0 or view.q_start < 0 or len(rows) < view.batch:
        return None
    part = rows[: view.batch, view.shift : view.shift + tokens]
    return part if part.shape[1] == tokens else None


def _numbers(data: Any, ndim: int) -> Any:
    """A tensor of whole numbers or truth values as numpy; None for anything else."""
    import torch

    if not isinstance(data, torch.Tensor) or data.ndim != ndim:
        return None
    if data.dtype.is_floating_point or data.dtype.is_complex:
        return None
    return data.detach().cpu().numpy()


def _documents(ids: Any, real: Any) -> Mask:
    """Tokens of one number see each other, but for those that are not real."""
    if not ids.size:
        return everything()  # there is no cell to be right or wrong about
    number = np.unique(ids, return_inverse=True)[1].reshape(ids.shape)
    return documents(ids=_one_if_alike(np.where(real, number, -1)))


def _one_if_alike(rows: Any) -> Any:
    """One row in place of many that are the same, so that they share a plan."""
    return rows[:1] if len(rows) and (rows == rows[:1]).all() else rows


# ── the rules, and whether transformers agrees with them ──────────────────────────────────────


def _sample_ids() -> Any:
    import torch

    return torch.tensor([[0, 0, 1, 1, 1, -1, -1, 2, 2, 2], [3, 3, 3, 3, 0, 0, 3, 3, 3, -2]])


def _sample_parts(make: Any) -> list[Any]:
    from transformers import masking_utils

    first = masking_utils.sliding_window_overlay(3)
    return [make(masking_utils.causal_mask_function, first), make(first)]


def _sample_chunks(make: Any) -> list[Any]:
    import torch

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
    Rule("and_masks", _sample_parts, _read_all_of),
    Rule("or_masks", _sample_parts, _read_any_of),
)
# Queries after some keys, among all of them, and behind a cache that has dropped its oldest.
SAMPLE_VIEWS = (View(2, 4, 8, 4, 0), View(2, 8, 8, 0, 0), View(2, 3, 7, 2, 2), View(2, 1, 5, 4, 5))


@cache
def _rules() -> Rules:
    """The rules that transformers agrees with, by the code of the functions that they read."""
    from transformers import masking_utils

    rules: Rules = {}
    for rule in RULES:
        samples = _samples(rule, getattr(masking_utils, rule.factory, None))
        if samples and all(_agrees(rule, rules, sample) for sample in samples):
            rules[samples[0].__code__] = rule
    return rules


def _samples(rule: Rule, factory: Any) -> list[Any]:
    """Functions that the factory made; none if this release makes them in another way."""
    try:
        samples = list(rule.samples(factory))
    except (TypeError, ValueError):
        return []
    return samples if len({getattr(s, "__code__", None) for s in samples} - {None}) == 1 else []


def _agrees(rule: Rule, rules: Rules, sample: Callable[..., Any]) -> bool:
    """Does the rule read from this function what the function says?"""
    for view in SAMPLE_VIEWS:
        mask = rule.read(_closed_over(sample), view, rules)
        frame = (view.q_len, view.kv_len, view.batch, 1, view.q_start)
        if mask is None or not mask.on(*frame).equals(_ask(sample, view)):
            return False
    return True
