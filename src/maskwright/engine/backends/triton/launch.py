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
    from maskwright.engine.call import Call

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
    grad = torch.empty_like(x)
    return grad if is_aligned(grad) else empty_rows(tuple(x.shape), x)


def dropout_args(call: Call) -> tuple[int, int, int, float]:
    """Seed in two signed words, threshold as a signed word, and the factor of kept weights."""
    if not call.dropout_p:
        return NO_DROPOUT
    words = (call.seed, call.seed >> 32, dropout_threshold(call.dropout_p))
    low, high, threshold = ((word & 0xFFFFFFFF ^ 2**31) - 2**31 for word in words)
    return low, high, threshold, 1 / (1 - call.dropout_p)


def item_args(work: WorkList, batch: int, heads: int) -> tuple[int, ...]:
    """Items, blocks, copies of each plane, copies along heads, and heads of the mask."""
    planes, mask_heads = work.planes
    copies_h = heads // mask_heads
    copies = copies_h * (batch // planes)
    num_items = planes * mask_heads * work.num_blocks * copies
    return num_items, work.num_blocks, copies, copies_h, mask_heads


def run_forward(call: Call, terms: ScoreTerms = NO_TERMS) -> tuple[torch.Tensor, torch.Tensor]:
    """Output in the dtype and layout of q, and the logsumexp in float32, without sinks."""
    q, k, v = (aligned_rows(x) for x in (call.q, call.k, call.v))
    batch, heads, kv_heads, q_len, kv_len, _, v_head_dim = call.shape
    sizes, order = (batch, heads, q_len), memory_order(call.q)
    out = restored(empty_rows((*(sizes[n] for n in order), v_head_dim), q), order)
    lse = torch.empty((batch, heads, q_len), dtype=torch.float32, device=q.device)
    if 0 in call.shape:
        return out.zero_(), lse.fill_(-math.inf)
    max_rows = max_decode_rows(q.element_size())
    if q_len * heads // kv_heads <= max_rows and q_len <= MAX_DECODE_QUERIES:
        return _run_decode(call, (q, k, v, out, lse), terms)
    config = _configs(call, q, terms).forward
    work = row_work(call.mask, config.block_m, config.block_n, q.device)
    items = item_args(work, batch, heads)
    args = (
        *(q, k, v, out, lse),
        *(*q.stride(), *k.stride(), *v.stride(), *out.stride()[:3]),
        *work.tensors,
        *(*items, heads, heads // kv_heads, q_len, kv_len),
        *score_args(call, terms),
        terms.sinks,
        *dropout_args(call),
    )
    forward_kernel[(num_programs(items[0], q.device),)](
        *args, **_constants(call, config, work, terms, backend_of(q))
    )
    return out, lse


def _run_decode(
    call: Call, tensors: tuple[torch.Tensor, ...], terms: ScoreTerms
) -> tuple[torch.Tensor, torch.Tensor]:
    """The forward pass of few query rows: split over the keys, then merged."""
    q, k, v, out, lse = tensors
    batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim = call.shape
    group = heads // kv_heads
    configs = _configs(call, q, terms)
    config = configs.decode if block_dim(group * q_len) == 16 else configs.decode_rows
    free = num_programs(MAX_SPLITS * batch * kv_heads, q.device) // (batch * kv_heads)
    num_splits = max(1, min(free, MAX_SPLITS, triton.cdiv(kv_len, config.block_n)))
    work = decode_work(call.mask, kv_heads, group, config.block_n, num_splits, q.device)
    shape = (batch, heads, q_len, num_splits)
    split_out = torch.empty((*shape, v_head_dim), dtype=torch.float32, device=q.device)
    split_lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    planes, mask_heads = work.planes
    varies = call.mask.shape[1] > 1
    block_dv = block_dim(v_head_dim)
    decode_kernel[(batch * kv_heads * num_splits,)](
        *(q, k, v, split_out, split_lse, *q.stride(), *k.stride(), *v.stride()),
        *work.tensors,
        *(num_splits, planes, mask_heads, group * q_len if varies else q_len, kv_heads),
        *(heads, group, q_len, kv_len, *score_args(call, terms), *dropout_args(call)),
        HEAD_DIM=head_dim,
        V_DIM=v_head_dim,
        BLOCK_D=block_dim(head_dim),
        BLOCK_DV=block_dv,
        BLOCK_M=block_dim(group * q_len),
        BLOCK_N=config.block_n,
        DROPOUT=call.dropout_p > 0,
        SOFTCAP=terms.softcap is not None,
        INTERPRET=is_interpreted(),
        BASE2=is_base2(call),
        **compiler_options(config, backend_of(q)),
    )
    merge_kernel[(batch * heads * q_len,)](
        *(split_out, split_lse, out, lse, terms.sinks, *out.stride()[:3]),
        *(heads, q_len, num_splits),
        V_DIM=v_head_dim,
        BLOCK_DV=block_dv,
        INTERPRET=is_interpreted(),
        BASE2=is_base2(call),
        **compiler_options(configs.merge, backend_of(q)),
    )
    return out, lse


def _configs(call: Call, q: torch.Tensor, terms: ScoreTerms) -> Configs:
    """The configurations of the kernels for a call."""
    has_bias = terms.distance is not None or terms.grid is not None or bool(terms.biases)
    return select_configs(
        (call.shape.head_dim, call.shape.v_head_dim),
        q.element_size(),
        backend_of(q),
        is_plain=terms.softcap is None and not has_bias and not call.dropout_p,
    )


def _constants(
    call: Call, config: Config, work: WorkList, terms: ScoreTerms, backend: str
) -> dict[str, Any]:
    """The compile-time arguments and the compiler's options of a kernel over a work list."""
    head_dim, v_head_dim = call.shape.head_dim, call.shape.v_head_dim
    return {
        "HEAD_DIM": head_dim,
        "V_DIM": v_head_dim,
        "BLOCK_D": block_dim(head_dim),
        "BLOCK_DV": block_dim(v_head_dim),
        "BLOCK_K": config.block_k,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "ONE_INTERVAL": work.max_intervals <= 1,
        "DROPOUT": call.dropout_p > 0,
        "SOFTCAP": terms.softcap is not None,
        "INTERPRET": is_interpreted(),
        "BASE2": is_base2(call),
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
    call: Call,
    results: tuple[torch.Tensor, torch.Tensor],
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None = None,
    terms: ScoreTerms = NO_TERMS,
) -> Gradients:
    """Gradients of q, k, v, sinks and the values of biases, from those of output and logsumexp."""
    q, k, v, grad_out = (aligned_rows(x) for x in (call.q, call.k, call.v, grad_out))
    batch, heads, kv_heads, *_ = call.shape
    dq, dk, dv = (empty_gradient(x) for x in (q, k, v))
    if 0 in call.shape:
        sinks = None if terms.sinks is None else torch.zeros_like(terms.sinks)
        learnable = zip(call.scores.terms, call.scores.learnable, strict=True)
        values = [x.values.new_zeros(x.values.shape if learns else 0) for x, learns in learnable]
        return Gradients(dq.zero_(), dk.zero_(), dv.zero_(), sinks, values)
    configs = _configs(call, q, terms)
    delta = _delta(call, aligned_rows(results[0]), grad_out, configs.delta)
    norm, delta, dsinks = _row_terms(call, results[1], delta, grad_lse, terms)
    rows, keys = configs.dq, configs.dkdv
    row_list = row_work(call.mask, rows.block_m, rows.block_n, q.device)
    group = heads // kv_heads
    key_list = key_work(call.mask, keys.block_n, keys.block_m, group, q.device)
    tensors = (q, k, v, grad_out, norm, delta)
    strides = (*q.stride(), *k.stride(), *v.stride(), *grad_out.stride())
    shared = (heads, group, call.shape.q_len, call.shape.kv_len)
    scores, dropout = score_args(call, terms), dropout_args(call)
    scoring = (*scores, call.scale, *dropout)
    row_items = item_args(row_list, batch, heads)
    varies = key_list.planes[1] > 1
    key_items = item_args(
        key_list._replace(planes=(key_list.planes[0], kv_heads if varies else 1)), batch, kv_heads
    )
    dq_kernel[(num_programs(row_items[0], q.device),)](
        *(*tensors, dq, *strides, *dq.stride(), *row_list.tensors, *row_items, *shared),
        *scoring,
        **_constants(call, rows, row_list, terms, backend_of(q)),
    )
    dkdv_kernel[(num_programs(key_items[0], q.device),)](
        *(*tensors, dk, dv, *strides, *dk.stride(), *dv.stride(), *key_list.tensors),
        *(*key_items, group if varies else 1, *shared, *scoring),
        **_constants(call, keys, key_list, terms, backend_of(q)),
    )
    constants = _constants(call, configs.bias, row_list, terms, backend_of(q))
    del constants["ONE_INTERVAL"], constants["BLOCK_K"]
    backward = BackwardCall(call, tensors, row_list, configs.bias, (*scores, *dropout), constants)
    return Gradients(dq, dk, dv, dsinks, bias_gradients(backward))


def _delta(call: Call, out: torch.Tensor, grad_out: torch.Tensor, config: Config) -> torch.Tensor:
    """The sum of out * dO of each row, (batch, heads, q_len)."""
    batch, heads, _, q_len, _, _, v_head_dim = call.shape
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
    call: Call,
    lse: torch.Tensor,
    delta: torch.Tensor,
    grad_lse: torch.Tensor | None,
    terms: ScoreTerms,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The logsumexp with sinks in the base of the scores, delta with dLSE, and dsinks."""
    lse = lse.to(torch.float32)
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
    unit = LOG2E if is_base2(call) else 1.0
    norm = (total * unit).masked_fill(empty, math.inf).masked_fill(lse == math.inf, math.nan)
    return norm.contiguous(), delta.contiguous(), dsinks


def backend_of(x: torch.Tensor) -> str:
    """The name of the compiler's backend, "cuda" or "hip"; "cpu" for the interpreter."""
    if x.device.type == "cpu":
        return "cpu"
    return "hip" if torch.version.hip else "cuda"
