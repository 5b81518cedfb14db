"""Gradients of the values of bias terms: the owners of each kind, and the sums of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm
from maskwright.engine.backends.triton import bias_kernels
from maskwright.engine.backends.triton.work_list import WorkList, to_device

if TYPE_CHECKING:
    from maskwright.core.validate import IntArray
    from maskwright.engine.backends.triton.config import Config
    from maskwright.engine.call import Call


class BackwardCall(NamedTuple):
    """What the kernel of bias gradients reads besides its owners."""

    call: Call
    tensors: tuple[torch.Tensor, ...]  # q, k, v, grad_out, norm, delta
    work: WorkList  # of blocks of query rows, for the spans
    config: Config  # with block_m = block_n
    scoring: tuple[Any, ...]  # arguments of the scores, then of dropout
    constants: dict[str, Any]  # the compile-time arguments


class Owners(NamedTuple):
    """The owners of a gradient and the steps between their tiles; see `bias_gradient_kernel`."""

    table: IntArray  # (owners, 6)
    width: int
    row_step: int = 0
    col_step: int = 0


def bias_gradients(backward: BackwardCall) -> list[torch.Tensor]:
    """The gradient of the values of each term in their dtype; empty where none is required."""
    grads = []
    distances: torch.Tensor | None = None  # all terms of this kind read the same sums
    scores = backward.call.scores
    for term, learnable in zip(scores.terms, scores.learnable, strict=True):
        if not learnable:
            grads.append(term.values.new_zeros(0))
        elif isinstance(term, TensorTerm):
            grads.append(_tensor_gradient(backward, term.values))
        elif isinstance(term, GridTerm):
            grads.append(_grid_gradient(backward, term))
        else:
            if distances is None:
                distances = _distance_sums(backward)
            grads.append(_distance_gradient(backward, term, distances))
    return grads


def _tensor_gradient(backward: BackwardCall, value: torch.Tensor) -> torch.Tensor:
    shape = backward.call.shape
    sizes = (shape.q_len, shape.kv_len)
    mode = bias_kernels.CELLS
    if value.shape[3] == 1 < shape.kv_len:
        mode = bias_kernels.ROWS
    elif value.shape[2] == 1 < shape.q_len:
        mode = bias_kernels.KEYS
    if mode == bias_kernels.CELLS:  # one program adds batch rows and heads: no memory for parts
        out = torch.empty((*value.shape[:2], *sizes), dtype=value.dtype, device=value.device)
        return _run(backward, mode, (block_owners, *sizes, backward.config.block_m, mode), out)
    length = sizes[1] if mode == bias_kernels.KEYS else sizes[0]
    out = value.new_empty((shape.batch, shape.heads, length), dtype=torch.float32)
    _run(backward, mode, (block_owners, *sizes, backward.config.block_m, mode), out)
    out = out[:, :, None] if mode == bias_kernels.KEYS else out[..., None]
    return out.sum_to_size(value.shape).to(value.dtype)


def _distance_sums(backward: BackwardCall) -> torch.Tensor:
    """(batch, heads, distances): sums over key index - query index, from 1 - q_len on."""
    shape, block = backward.call.shape, backward.config.block_m
    owners = (diagonal_owners, shape.q_len, shape.kv_len, block)
    flat = _diagonals(backward, owners, 1, -(-shape.q_len // block) - (-shape.kv_len // block) - 1)[
        :, :, 0
    ]
    first = block * -(-shape.q_len // block) - (shape.q_len - 1)
    return flat[..., first : first + shape.q_len + shape.kv_len - 1]


def _distance_gradient(
    backward: BackwardCall, term: DistanceTerm, sums: torch.Tensor
) -> torch.Tensor:
    """The sums at the indices of the term, 0 for distances that no cell has."""
    value = term.values
    first = term.zero - backward.call.mask.frame.q_start - (backward.call.shape.q_len - 1)
    total = sums.sum(0)
    if value.shape[0] == 1:
        total = total.sum(0, keepdim=True)
    out = torch.zeros_like(value)
    out[:, first : first + total.shape[1]] = total.to(value.dtype)
    return out


def _grid_gradient(backward: BackwardCall, term: GridTerm) -> torch.Tensor:
    value, shape, block = term.values, backward.call.shape, backward.config.block_m
    start, width = backward.call.mask.frame.q_start, term.width
    lines = (
        start // width,
        (start + shape.q_len - 1) // width,
    )  # the first and last of the queries
    owners = (grid_owners, lines, (shape.kv_len - 1) // width, width, start, block)
    num_down = (shape.kv_len - 1) // width + lines[1] - lines[0] + 1
    flat = _diagonals(backward, owners, num_down, 2 * -(-width // block) - 1).sum(0)
    if value.shape[0] == 1:
        flat = flat.sum(0, keepdim=True)
    middle = block * -(-width // block)
    first = term.height - 1 - lines[1]
    out = torch.zeros_like(value)
    out[:, first : first + num_down] = flat[..., middle - width + 1 : middle + width].to(
        value.dtype
    )
    return out


def _diagonals(
    backward: BackwardCall, owners: tuple[Any, ...], num_lines: int, num_owners: int
) -> torch.Tensor:
    """(batch, heads, lines, diagonals): each diagonal is a part of two neighbouring owners."""
    shape, block = backward.call.shape, backward.config.block_m
    sizes = (shape.batch, shape.heads, num_lines, num_owners)
    device = backward.tensors[0].device
    out = torch.zeros((*sizes, 2 * block), dtype=torch.float32, device=device)
    _run(backward, bias_kernels.DIAGONALS, owners, out)
    total = torch.zeros((*sizes[:3], (sizes[3] + 1) * block), dtype=torch.float32, device=device)
    total[..., block:] += out[..., block - 1 : 2 * block - 1].flatten(3)
    before = torch.nn.functional.pad(out[..., : block - 1], (1, 0))
    total[..., :-block] += before.flatten(3)
    return total


def _run(
    backward: BackwardCall, mode: int, maker: tuple[Any, ...], out: torch.Tensor
) -> torch.Tensor:
    """Run the kernel over the owners that a function makes of arguments.

    `out` has the planes of the gradient in its first two dimensions.
    """
    shape, work = backward.call.shape, backward.work
    q, k, v, grad = backward.tensors[:4]
    make, *arguments = maker

    def make_table() -> tuple[Owners, torch.Tensor]:
        owners = make(*arguments)
        return owners, to_device((owners.table.ravel(),), q.device)[0]

    key = ("triton.owners", make.__name__, *arguments, str(q.device))
    owners, table = backward.call.mask.cached(key, make_table)
    num_owners, copies_h = len(owners.table), shape.heads // out.shape[1]
    copies = copies_h * (shape.batch // out.shape[0])
    bias_kernels.bias_gradient_kernel[(num_owners * out.shape[0] * out.shape[1],)](
        *(*backward.tensors, out, *q.stride(), *k.stride(), *v.stride(), *grad.stride()),
        *(out.stride(1), table, *work.tensors[1:4], num_owners, out.shape[1], copies, copies_h),
        *(owners.width, owners.row_step, owners.col_step),
        *(work.max_intervals.bit_length(), *work.planes, shape.heads),
        *(shape.heads // shape.kv_heads, shape.q_len, shape.kv_len, *backward.scoring),
        **backward.constants,
        MODE=mode,
    )
    return out


def block_owners(q_len: int, kv_len: int, block: int, mode: int) -> Owners:
    """Owners of tiles (CELLS), of blocks of keys (KEYS) or of blocks of rows (ROWS)."""
    rows, cols = (np.arange(0, length, block) for length in (q_len, kv_len))
    ones = np.ones(1, np.int64)
    if mode == bias_kernels.KEYS:
        grid, steps = (0 * ones, cols, ones * len(rows)), (block, 0)
    elif mode == bias_kernels.ROWS:
        grid, steps = (rows, 0 * ones, ones * len(cols)), (0, block)
    else:
        grid, steps = (rows, cols, ones), (0, 0)
    row, col, count = (x.ravel() for x in np.meshgrid(*grid, indexing="ij"))
    table = np.stack([row, row, col, col, np.ones_like(row), count], 1)
    return Owners(table, max(q_len, kv_len), *steps)


def diagonal_owners(q_len: int, kv_len: int, block: int) -> Owners:
    """Owners of the diagonals of tiles, from the last row and first key to the opposite corner."""
    num_rows, num_cols = -(-q_len // block), -(-kv_len // block)
    apart = np.arange(1 - num_rows, num_cols)
    row = np.maximum(-apart, 0)
    col = row + apart
    count = np.minimum(num_rows - row, num_cols - col)
    row, col = row * block, col * block
    table = np.stack([row, row, col, col, np.ones_like(row), count], 1)
    return Owners(table, max(q_len, kv_len), block, block)


def grid_owners(
    lines: tuple[int, int], last_key_line: int, width: int, q_start: int, block: int
) -> Owners:
    """Owners by the difference of lines, then by the diagonal of tiles between two lines."""
    num_tiles = -(-width // block)
    apart = np.arange(1 - num_tiles, num_tiles)
    row_x = np.maximum(-apart, 0)
    parts = []
    for down in range(-lines[1], last_key_line - lines[0] + 1):
        first = max(lines[0], -down)
        num_lines = min(lines[1], last_key_line - down) - first + 1
        row, col = first * width - q_start + row_x * block, (first + down) * width
        columns = (
            *(row, row_x * block, col + (row_x + apart) * block, (row_x + apart) * block),
            *(np.full_like(apart, max(num_lines, 0)), num_tiles - np.abs(apart)),
        )
        parts.append(np.stack(columns, 1))
    return Owners(np.concatenate(parts), width, block, block)
