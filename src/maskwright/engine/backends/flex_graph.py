"""FlexAttention in compiled graphs: called in the graph itself, with a BlockMask of tables.

A graph cannot hold a mask. The operator `maskwright::block_mask_tables` looks the mask up by its handle
when the graph runs, and returns the tables of its BlockMask. Their shapes depend on the sizes of q and
k only, so a new mask compiles nothing, and a new length neither where shapes are dynamic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from maskwright.core import mask_registry
from maskwright.engine.backends.flex import block_mask, problem_of, problem_of_tensors, results_of
from maskwright.engine.gpu_choice import stored_choice
from maskwright.engine.validate import bind, default_scale
from maskwright.errors import Unsupported
from maskwright.targets._torch import int32_tensor
from maskwright.targets.torch_flex import interval_tables, request_lse, span_mod

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.engine.params import AttentionOptions, ScoreTensors, TermIndex

BLOCK: Final = 128
NUM_SLOTS: Final = 4  # intervals per row that the mask_mod of a graph tests
LISTS: Final = tuple(
    f"{full}{axis}_{part}"
    for axis in ("kv", "q")
    for full in ("", "full_")
    for part in ("num_blocks", "indices")
)


@torch.compiler.assume_constant_result
def _uses_triton() -> bool:
    """Whether the Triton kernels are stored as the choice for this GPU; read when a graph is traced."""
    return stored_choice() == "triton"


def is_default(tensors: Any, max_intervals: int, options: AttentionOptions) -> bool:
    """Whether FlexAttention is called in a graph without an explicit `impl`; else it is an operator.

    Args:
        tensors: q, k and v, on a device of `FLEX_GRAPH_DEVICES`.
        max_intervals: Upper bound on the intervals per row of the mask. It is compared when the graph
            is traced, so a mask with more of them makes another graph.
        options: The options of the call.

    Returns:
        Whether FlexAttention supports the call, the mask has few enough intervals for the tables, and
        `maskwright doctor --verify` did not choose the Triton kernels.
    """
    if options.dropout_p or max_intervals > NUM_SLOTS or _uses_triton():
        return False
    return _problem(tensors, options, ()) is None


def _problem(tensors: Any, options: AttentionOptions, others: Any) -> str | None:
    """What FlexAttention does not support of a call, or None."""
    q, _, v = tensors
    device, dtype = q.device.type, "float64" if q.dtype == torch.float64 else "float32"
    grad = torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, *others))
    return problem_of_tensors(device, dtype, (q.shape[-1], v.shape[-1])) or problem_of(
        device,
        options.dropout_p,
        requires_grad=grad,
        return_lse=options.return_lse,
        has_sinks=options.sinks is not None,
    )


def attend_in_graph(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    handle: int,
    options: AttentionOptions,
    terms: tuple[tuple[TermIndex, ...], int],
    scores: ScoreTensors,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output, and the logsumexp if requested, as nodes of the graph that is traced.

    Args:
        tensors: q, k and v.
        handle: The mask's handle.
        options: The options of the call.
        terms: How the values of each bias term are indexed, and the position of the first query.
        scores: The values of the bias terms, and the sinks.
    """
    q, k, v = tensors
    others = (*scores.values, *(() if scores.sinks is None else (scores.sinks,)))
    problem = _problem(tensors, options, others)
    if problem is not None:
        raise Unsupported(
            f'attention: impl="flex" {problem}. Leave impl out, or pass impl="blocks".',
            target="flex",
        )
    *lists, low, high = block_mask_tables(q, k, handle, q_start=options.q_start)
    needs_lse = options.return_lse or scores.sinks is not None
    found = flex_attention(
        *(q, k, v),
        score_mod=_score_mod(options, *terms, scores),
        block_mask=BlockMask(
            (q.shape[2], k.shape[2]),
            **dict(zip(LISTS, lists, strict=True)),
            BLOCK_SIZE=(BLOCK, BLOCK),
            mask_mod=span_mod(low, high),
        ),
        scale=default_scale(q.shape[-1]) if options.scale is None else float(options.scale),
        enable_gqa=q.shape[1] != k.shape[1],
        **(request_lse() if needs_lse else {}),
    )
    return results_of(found, scores.sinks) if needs_lse else (found, None)


def _score_mod(
    options: AttentionOptions, terms: tuple[TermIndex, ...], q_start: int, scores: ScoreTensors
) -> Any:
    """Soft cap and bias of one score, or None if there is neither."""
    softcap = options.softcap
    if softcap is None and not terms:
        return None
    held = list(zip(terms, scores.values, strict=True))

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        for index, values in held:
            score = score + _term_value(index, values, (b, h, q_idx, kv_idx), q_start)
        return score

    return score_mod


def _term_value(index: TermIndex, values: torch.Tensor, cell: Any, q_start: int) -> torch.Tensor:
    """The value of one bias term in a cell; the query is a row index."""
    b, h, q, k = cell
    if index.kind == "tensor":
        own = (n * int(size != 1) for n, size in zip((b, h, q, k), values.shape, strict=True))
        return values[tuple(own)]
    head = h * int(values.shape[0] != 1)
    if index.kind == "distance":
        return values[head, k - q + (index.zero - q_start)]
    at, width = q + q_start, index.width
    down, across = k // width - at // width, k % width - at % width
    return values[head, down + (index.height - 1), across + (width - 1)]


@torch.library.custom_op(
    "maskwright::block_mask_tables",
    mutates_args=(),
    schema="(Tensor q, Tensor k, SymInt mask, *, SymInt? q_start) -> Tensor[]",
)
def block_mask_tables(
    q: torch.Tensor, k: torch.Tensor, mask: int, *, q_start: int | None
) -> list[torch.Tensor]:
    """The lists of blocks in the order of `LISTS`, and the starts and stops of each row's intervals.

    They have all batch rows and heads of q, also where the mask does not vary over them. They are
    made once for a mask and copied on each call, since a graph may overwrite them.
    """
    batch, heads, q_len, _ = q.shape
    bound = bind(mask_registry.lookup(mask), (batch, heads, q_len, k.shape[2]), q_start)
    key = ("flex tables", batch, heads, str(q.device))
    tables = bound.cached(key, lambda: _make_tables(bound, (batch, heads), q.device))
    return [table.clone() for table in tables]


def _make_tables(
    bound: BoundMask, planes: tuple[int, int], device: torch.device
) -> list[torch.Tensor]:
    largest = int(np.diff(bound.spans.offsets).max(initial=0))
    if largest > NUM_SLOTS:
        raise Unsupported(
            f'attention: in a compiled graph impl="flex" supports masks of up to {NUM_SLOTS} intervals '
            f'per row, and this one has {largest}. Leave impl out, or pass impl="blocks".',
            target="flex",
            term=repr(bound.mask),
        )
    made = block_mask(bound, device)
    lists = [getattr(made, name) for name in LISTS]
    slots = [int32_tensor(x, device) for x in interval_tables(bound.spans, NUM_SLOTS, BLOCK)]
    return [
        *(x.expand(*planes, *x.shape[2:]).contiguous() for x in lists),
        *(x.expand(NUM_SLOTS, *planes, x.shape[3]).contiguous() for x in slots),
    ]


@block_mask_tables.register_fake
def _(q: Any, k: Any, mask: Any, *, q_start: Any) -> list[Any]:  # noqa: ARG001
    batch, heads, q_len, _ = q.shape
    rows, keys = (q_len + BLOCK - 1) // BLOCK, (k.shape[2] + BLOCK - 1) // BLOCK
    counts = [(batch, heads, rows), (batch, heads, rows, keys)] * 2
    counts += [(batch, heads, keys), (batch, heads, keys, rows)] * 2
    shapes = [*counts, *[(NUM_SLOTS, batch, heads, rows * BLOCK)] * 2]
    return [q.new_empty(shape, dtype=torch.int32) for shape in shapes]
