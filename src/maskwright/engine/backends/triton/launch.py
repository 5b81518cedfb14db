"""Launches of the Triton kernels: arguments from tensors, the mask's work lists, and terms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton

from maskwright.engine.backends.triton.backward_kernels import delta_kernel, dkdv_kernel, dq_kernel
from maskwright.engine.backends.triton.bias_gradients import BackwardCall, bias_gradients
from maskwright.engine.backends.triton.config import (
    MAX_DECODE_QUERIES,
    MAX_SPLITS,
    Config,
    Configs,
    block_dim,
    compiler_options,
    is_interpreted,
    max_decode_rows,
    select_configs,
)
from maskwright.engine.backends.triton.decode_kernels import decode_kernel, merge_kernel
from maskwright.engine.backends.triton.forward_kernels import forward_kernel
from maskwright.engine.backends.triton.score_args import (
    LOG2E,
    NO_TERMS,
    ScoreTerms,
    is_base2,
    score_args,
)
from maskwright.engine.backends.triton.work_list import (
    WorkList,
    decode_work,
    key_work,
    num_programs,
    row_work,
)
from maskwright.engine.dropout import dropout_threshold
from maskwright.engine.layout import memory_order, restored

if TYPE_CHECKING:
    from maskwright.engine.params import AttentionParams, Saved

NO_DROPOUT = (0, 0, 0, 1.0)
# Of strides in elements and of addresses in bytes. Triton compiles another kernel for aligned ones.
ALIGNMENT = 16


def is_aligned(x: torch.Tensor) -> bool:
    """Whether rows are contiguous, and all of them begin at aligned addresses."""
    numbers = (x.data_ptr(), *x.stride()[:-1])
    return x.stride(-1) == 1 and not any(number % ALIGNMENT for number in numbers)


def empty_rows(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """An aligned tensor without values, in the dtype and on the device of another one."""
    *outer, dim = shape
    return like.new_empty((*outer, triton.cdiv(dim, ALIGNMENT) * ALIGNMENT))[..., :dim]


def aligned_rows(x: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or an aligned copy: with other strides the kernels would spill registers."""
    return x if is_aligned(x) else empty_rows(tuple(x.shape), x).copy_(x)


def empty_gradient(x: torch.Tensor) -> torch.Tensor:
    """An aligned tensor without values, with the strides of x where they can be."""
    found = torch.empty_like(x)
    return found if is_aligned(found) else empty_rows(tuple(x.shape), x)


def dropout_args(params: AttentionParams) -> tuple[int, int, int, float]:
    """Seed in two signed words, threshold as a signed word, and the factor of kept weights."""
    if not params.dropout_p:
        return NO_DROPOUT
    words = (params.seed, params.seed >> 32, dropout_threshold(params.dropout_p))
    low, high, threshold = ((word & 0xFFFFFFFF ^ 2**31) - 2**31 for word in words)
    return low, high, threshold, 1 / (1 - params.dropout_p)


def item_args(work: WorkList, batch: int, heads: int) -> tuple[int, ...]:
    """Items, blocks, copies of each plane, copies along heads, and heads of the mask."""
    planes, mask_heads = work.planes
    copies_h = heads // mask_heads
    copies = copies_h * (batch // planes)
    num_items = planes * mask_heads * work.num_blocks * copies
    return num_items, work.num_blocks, copies, copies_h, mask_heads


def run_forward(
    params: AttentionParams,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    terms: ScoreTerms = NO_TERMS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output in the dtype and layout of q, and the logsumexp in float32, without sinks."""
    q, k, v = (aligned_rows(x) for x in tensors)
    batch, heads, kv_heads, q_len, kv_len, _, v_head_dim = params.shape
    sizes, order = (batch, heads, q_len), memory_order(tensors[0])
    out = restored(empty_rows((*(sizes[n] for n in order), v_head_dim), q), order)
    lse = torch.empty((batch, heads, q_len), dtype=torch.float32, device=q.device)
    if 0 in params.shape:
        return out.zero_(), lse.fill_(-math.inf)
    max_rows = max_decode_rows(q.element_size())
    if q_len * heads // kv_heads <= max_rows and q_len <= MAX_DECODE_QUERIES:
        return _run_decode(params, (q, k, v, out, lse), terms)
    config = _configs(params, q, terms).forward
    work = row_work(params.mask, config.block_m, config.block_n, q.device)
    items = item_args(work, batch, heads)
    args = (
        *(q, k, v, out, lse),
        *(*q.stride(), *k.stride(), *v.stride(), *out.stride()[:3]),
        *work.tensors,
        *(*items, heads, heads // kv_heads, q_len, kv_len),
        *score_args(params, terms),
        terms.sinks,
        *dropout_args(params),
    )
    forward_kernel[(num_programs(items[0], q.device),)](
        *args, **_constants(params, config, work, terms, backend_of(q))
    )
    return out, lse


def _run_decode(
    params: AttentionParams, tensors: tuple[torch.Tensor, ...], terms: ScoreTerms
) -> tuple[torch.Tensor, torch.Tensor]:
    """The forward pass of few query rows: split over the keys, then merged."""
    q, k, v, out, lse = tensors
    batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim = params.shape
    group = heads // kv_heads
    configs = _configs(params, q, terms)
    config = configs.decode if block_dim(group * q_len) == 16 else configs.decode_rows
    free = num_programs(MAX_SPLITS * batch * kv_heads, q.device) // (batch * kv_heads)
    num_splits = max(1, min(free, MAX_SPLITS, triton.cdiv(kv_len, config.block_n)))
    work = decode_work(params.mask, kv_heads, group, config.block_n, num_splits, q.device)
    shape = (batch, heads, q_len, num_splits)
    split_out = torch.empty((*shape, v_head_dim), dtype=torch.float32, device=q.device)
    split_lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    planes, mask_heads = work.planes
    varies = params.mask.shape[1] > 1
    block_dv = block_dim(v_head_dim)
    decode_kernel[(batch * kv_heads * num_splits,)](
        *(q, k, v, split_out, split_lse, *q.stride(), *k.stride(), *v.stride()),
        *work.tensors,
        *(num_splits, planes, mask_heads, group * q_len if varies else q_len, kv_heads),
        *(heads, group, q_len, kv_len, *score_args(params, terms), *dropout_args(params)),
        HEAD_DIM=head_dim,
        V_DIM=v_head_dim,
        BLOCK_D=block_dim(head_dim),
        BLOCK_DV=block_dv,
        BLOCK_M=block_dim(group * q_len),
        BLOCK_N=config.block_n,
        DROPOUT=params.dropout_p > 0,
        SOFTCAP=terms.softcap is not None,
        INTERPRET=is_interpreted(),
        BASE2=is_base2(params),
        **compiler_options(config, backend_of(q)),
    )
    merge_kernel[(batch * heads * q_len,)](
        *(split_out, split_lse, out, lse, terms.sinks, *out.stride()[:3]),
        *(heads, q_len, num_splits),
        V_DIM=v_head_dim,
        BLOCK_DV=block_dv,
        INTERPRET=is_interpreted(),
        BASE2=is_base2(params),
        **compiler_options(configs.merge, backend_of(q)),
    )
    return out, lse


def _configs(params: AttentionParams, q: torch.Tensor, terms: ScoreTerms) -> Configs:
    """The configurations of the kernels for a call."""
    has_bias = terms.distance is not None or terms.grid is not None or bool(terms.biases)
    return select_configs(
        (params.shape.head_dim, params.shape.v_head_dim),
        q.element_size(),
        backend_of(q),
        is_plain=terms.softcap is None and not has_bias and not params.dropout_p,
    )


def _constants(
    params: AttentionParams, config: Config, work: WorkList, terms: ScoreTerms, backend: str
) -> dict[str, Any]:
    """The compile-time arguments and the compiler's options of a kernel over a work list."""
    head_dim, v_head_dim = params.shape.head_dim, params.shape.v_head_dim
    return {
        "HEAD_DIM": head_dim,
        "V_DIM": v_head_dim,
        "BLOCK_D": block_dim(head_dim),
        "BLOCK_DV": block_dim(v_head_dim),
        "PIECE": config.piece,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "ONE_INTERVAL": work.max_intervals <= 1,
        "DROPOUT": params.dropout_p > 0,
        "SOFTCAP": terms.softcap is not None,
        "INTERPRET": is_interpreted(),
        "BASE2": is_base2(params),
        **compiler_options(config, backend),
    }


class Gradients(NamedTuple):
    """The gradients of one call; that of `sinks` is None without sinks."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor | None
    values: list[torch.Tensor]  # of the bias terms; empty where none is required


def run_backward(
    params: AttentionParams,
    saved: Saved,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None = None,
    terms: ScoreTerms = NO_TERMS,
) -> Gradients:
    """Gradients of q, k, v, sinks and the values of biases, from those of output and logsumexp."""
    q, k, v, grad_out = (aligned_rows(x) for x in (saved.q, saved.k, saved.v, grad_out))
    batch, heads, kv_heads, *_ = params.shape
    dq, dk, dv = (empty_gradient(x) for x in (q, k, v))
    if 0 in params.shape:
        sinks = None if terms.sinks is None else torch.zeros_like(terms.sinks)
        wanted = zip(params.terms, saved.scores.values, strict=True)
        values = [x.new_zeros(x.shape if index.requires_grad else 0) for index, x in wanted]
        return Gradients(dq.zero_(), dk.zero_(), dv.zero_(), sinks, values)
    configs = _configs(params, q, terms)
    delta = _delta(params, aligned_rows(saved.out), grad_out, configs.delta)
    norm, delta, dsinks = _row_terms(params, saved, delta, grad_lse, terms)
    rows, keys = configs.dq, configs.dkdv
    row_list = row_work(params.mask, rows.block_m, rows.block_n, q.device)
    group = heads // kv_heads
    key_list = key_work(params.mask, keys.block_n, keys.block_m, group, q.device)
    tensors = (q, k, v, grad_out, norm, delta)
    strides = (*q.stride(), *k.stride(), *v.stride(), *grad_out.stride())
    shared = (heads, group, params.shape.q_len, params.shape.kv_len)
    scores, dropout = score_args(params, terms), dropout_args(params)
    scoring = (*scores, params.scale, *dropout)
    row_items = item_args(row_list, batch, heads)
    varies = key_list.planes[1] > 1
    key_items = item_args(
        key_list._replace(planes=(key_list.planes[0], kv_heads if varies else 1)), batch, kv_heads
    )
    dq_kernel[(num_programs(row_items[0], q.device),)](
        *(*tensors, dq, *strides, *dq.stride(), *row_list.tensors, *row_items, *shared),
        *scoring,
        **_constants(params, rows, row_list, terms, backend_of(q)),
    )
    dkdv_kernel[(num_programs(key_items[0], q.device),)](
        *(*tensors, dk, dv, *strides, *dk.stride(), *dv.stride(), *key_list.tensors),
        *(*key_items, group if varies else 1, *shared, *scoring),
        **_constants(params, keys, key_list, terms, backend_of(q)),
    )
    constants = _constants(params, configs.bias, row_list, terms, backend_of(q))
    del constants["ONE_INTERVAL"], constants["PIECE"]
    call = BackwardCall(params, tensors, row_list, configs.bias, (*scores, *dropout), constants)
    return Gradients(dq, dk, dv, dsinks, bias_gradients(call, saved.scores.values))


def _delta(
    params: AttentionParams, out: torch.Tensor, grad_out: torch.Tensor, config: Config
) -> torch.Tensor:
    """The sum of out * dO of each row, (batch, heads, q_len)."""
    batch, heads, _, q_len, _, _, v_head_dim = params.shape
    delta = torch.empty((batch, heads, q_len), dtype=torch.float32, device=out.device)
    num_blocks = triton.cdiv(q_len, config.block_m)
    delta_kernel[(num_blocks * batch * heads,)](
        *(out, grad_out, delta, *out.stride(), *grad_out.stride(), heads, q_len, num_blocks),
        V_DIM=v_head_dim,
        BLOCK_DV=block_dim(v_head_dim),
        BLOCK_M=config.block_m,
        **compiler_options(config, backend_of(out)),
    )
    return delta


def _row_terms(
    params: AttentionParams,
    saved: Saved,
    delta: torch.Tensor,
    grad_lse: torch.Tensor | None,
    terms: ScoreTerms,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The logsumexp with sinks in the base of the scores, delta with dLSE, and dsinks."""
    lse = saved.lse.to(torch.float32)
    empty = lse == -math.inf
    delta = delta.masked_fill_(empty, 0.0)
    total, dsinks = lse, None
    if terms.sinks is not None:
        sink = terms.sinks.to(torch.float32)[:, None]
        total = torch.logaddexp(lse, sink)
        share = (sink - total).exp().masked_fill(empty, 0.0)
        dsinks = -(share * delta).sum((0, 2)).to(terms.sinks.dtype)
    if grad_lse is not None:
        factor = (total - lse).exp() if terms.sinks is not None else 1.0
        delta = (delta - grad_lse.to(torch.float32) * factor).masked_fill(empty, 0.0)
    # A weight of a row without visible keys is exp2(score - inf) = 0.
    unit = LOG2E if is_base2(params) else 1.0
    norm = (total * unit).masked_fill(empty, math.inf).masked_fill(lse == math.inf, math.nan)
    return norm.contiguous(), delta.contiguous(), dsinks


def backend_of(x: torch.Tensor) -> str:
    """The name of the compiler's backend, "cuda" or "hip"; "cpu" for the interpreter."""
    if x.device.type == "cpu":
        return "cpu"
    return "hip" if torch.version.hip else "cuda"
