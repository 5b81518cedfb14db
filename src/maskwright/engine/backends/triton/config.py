"""Tile sizes, warps and pipeline stages of the kernels, by head_dim, dtype and device."""

from __future__ import annotations

from typing import NamedTuple


class Config(NamedTuple):
    """The tile of one kernel and the resources of one program."""

    block_m: int  # query rows
    block_n: int  # keys
    num_warps: int
    num_stages: int


class Configs(NamedTuple):
    """The configurations of all kernels for one head_dim and dtype."""

    forward: Config
    decode: Config
    dkdv: Config
    dq: Config
    bias: Config  # of the gradients of biases; a square tile


MAX_HEAD_DIM = 256
MAX_DECODE_QUERIES = 8  # of a call that the decode kernel computes,
MAX_DECODE_ROWS = 64  # and those times the GQA group
MAX_SPLITS = 64  # programs that share the keys of one KV head
INTERPRETED = Configs(
    *(Config(32, 32, 1, 1), Config(16, 32, 1, 1), Config(32, 32, 1, 1), Config(32, 32, 1, 1)),
    Config(16, 16, 1, 1),
)
BIAS = Config(32, 32, 8, 1)


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on CPU tensors (TRITON_INTERPRET=1)."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def select_configs(head_dim: int, v_head_dim: int, itemsize: int, backend: str) -> Configs:
    """The configurations for a head_dim and an item size in bytes.

    Args:
        head_dim: Head dimension of q and k.
        v_head_dim: Head dimension of v.
        itemsize: Bytes per element: 2 or 4.
        backend: "cuda", "hip", or "cpu" for the interpreter.

    Returns:
        One configuration per kernel. Those of half precision were chosen so that the compiler spills
        no registers at head_dim 64 and 128, also with soft cap, biases and sinks; see docs/gpu.md.
    """
    if backend == "cpu":
        return INTERPRETED
    dim = max(head_dim, v_head_dim)
    if itemsize == 4:
        side = 32 if dim <= 64 else 16
        return Configs(
            Config(32, side, 4, 1),
            Config(16, side, 4, 1),
            Config(32, side, 4, 1),
            Config(32, side, 4, 1),
            BIAS,
        )
    if dim > 128:
        forward = Config(32, 32, 4, 1) if backend == "hip" else Config(32, 32, 8, 1)
        return Configs(
            forward, Config(16, 32, 4, 1), Config(16, 32, 8, 1), Config(32, 32, 8, 1), BIAS
        )
    if backend == "hip":  # 4 warps of 64 threads, each with up to 512 registers
        square = Config(32, 32, 4, 1)
        return Configs(Config(64, 32, 4, 1), Config(16, 64, 4, 2), square, square, BIAS)
    square = Config(32, 32, 4 if dim <= 64 else 8, 1)
    rows = 128 if dim <= 64 else 64
    return Configs(Config(rows, 32, 8, 2), Config(16, 64, 4, 2), square, square, BIAS)
