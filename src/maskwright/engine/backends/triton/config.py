"""Tile sizes, warps and pipeline stages of the kernels, by head_dim, dtype and device."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# How ptxas allocates registers: it may use all 255, and does not spill at fewer for the sake of
# occupancy. With REGISTERS_255_LEVEL2 it optimizes at level 2, which needs fewer registers in most
# kernels.
REGISTERS_255_LEVEL2: Final = 1
REGISTERS_255: Final = 2


class Config(NamedTuple):
    """The tile of one kernel and the resources of one program."""

    block_m: int  # query rows
    block_n: int  # keys
    num_warps: int
    num_stages: int
    block_k: int = 0  # columns of the head_dim per product, see `row_products`; 0: all at once
    registers: int = 0  # on NVIDIA: REGISTERS_255, REGISTERS_255_LEVEL2, or 0 (ptxas default)


class Configs(NamedTuple):
    """The configurations of all kernels for one head_dim and dtype."""

    forward: Config
    decode: Config  # of up to 16 query rows of a KV head
    dkdv: Config
    dq: Config
    bias: Config  # of the gradients of biases; a square tile
    decode_rows: Config  # of up to `max_decode_rows` query rows; as `decode` in float32
    merge: Config = Config(1, 1, 1, 1)  # of the splits of a decode step; one row
    delta: Config = Config(16, 1, 8, 1)


MAX_HEAD_DIM: Final = 256
MAX_DECODE_QUERIES: Final = 8  # of a call that the decode kernel computes
MAX_SPLITS: Final = 64  # programs that share the keys of one KV head
TILED: Final = ("forward", "dq", "dkdv")  # the kernels over work lists
TILE_32x32_4W: Final = Config(32, 32, 4, 1)
TILE_32x32_8W: Final = Config(32, 32, 8, 1)  # with more warps, so that a thread has fewer registers
INTERPRETED = Configs(
    *(TILE_32x32_4W, Config(16, 32, 1, 1), TILE_32x32_4W, TILE_32x32_4W),
    *(Config(16, 16, 1, 1), Config(16, 32, 1, 1)),
)

# By the largest head_dim, so that registers are not spilled: docs/gpu.md lists what the compiler made
# of them. A call without soft cap, bias and dropout has larger tiles on NVIDIA.
CUDA_HALF: Final = {
    64: Configs(
        *(Config(64, 16, 8, 2), Config(16, 64, 4, 2), Config(32, 16, 4, 1), TILE_32x32_8W),
        *(TILE_32x32_8W, Config(64, 32, 8, 1)),
    ),
    128: Configs(
        *(Config(32, 32, 8, 2), Config(16, 64, 8, 2), Config(16, 16, 8, 1), Config(16, 32, 8, 1)),
        *(TILE_32x32_8W, Config(64, 32, 8, 1)),
    ),
    256: Configs(
        *(Config(16, 32, 8, 1), Config(16, 32, 4, 1), Config(16, 16, 8, 2, 128)),
        *(Config(16, 32, 8, 1), Config(16, 16, 4, 1), Config(64, 16, 8, 1)),
    ),
}
CUDA_HALF_PLAIN: Final = {
    64: CUDA_HALF[64]._replace(forward=Config(128, 32, 8, 2), dkdv=TILE_32x32_4W, dq=TILE_32x32_4W),
    128: CUDA_HALF[128]._replace(
        forward=Config(64, 32, 8, 2), dkdv=TILE_32x32_8W, dq=TILE_32x32_8W
    ),
    256: CUDA_HALF[256]._replace(
        forward=TILE_32x32_8W, dkdv=Config(16, 16, 8, 1), dq=TILE_32x32_8W
    ),
}
CUDA_FLOAT: Final = {
    32: Configs(
        *(Config(32, 16, 4, 1, 16), Config(16, 32, 4, 1), Config(16, 16, 8, 1, 16)),
        *(Config(16, 16, 8, 1, 16), TILE_32x32_4W, Config(16, 32, 4, 1)),
    ),
    64: Configs(
        *(Config(32, 16, 4, 1, 16), Config(16, 32, 4, 1), Config(32, 32, 8, 1, 16)),
        *(Config(32, 32, 8, 1, 16), TILE_32x32_8W, Config(16, 32, 4, 1)),
    ),
    128: Configs(
        *(Config(32, 16, 8, 1, 16), Config(16, 16, 4, 1), Config(32, 16, 8, 1, 16)),
        *(Config(32, 16, 8, 1, 16), TILE_32x32_8W, Config(16, 16, 4, 1)),
    ),
    256: Configs(
        *(Config(32, 16, 8, 1, 16), Config(16, 16, 4, 1), Config(16, 16, 8, 1, 16)),
        *(Config(32, 16, 8, 1, 16), TILE_32x32_8W, Config(16, 16, 4, 1)),
    ),
}
TILE_ODD_DIM: Final = Config(16, 16, 8, 1, 64)  # of a head_dim in float32 that is no power of two
# AMD: 4 warps of 64 threads, each with up to 512 registers.
HIP_HALF: Final = {
    64: Configs(
        *(Config(64, 32, 4, 1), Config(16, 64, 4, 2), TILE_32x32_4W, TILE_32x32_4W),
        *(TILE_32x32_8W, Config(64, 32, 4, 1)),
    ),
    128: Configs(
        *(Config(64, 32, 4, 1), Config(16, 64, 4, 2), TILE_32x32_4W, TILE_32x32_4W),
        *(TILE_32x32_8W, Config(64, 32, 4, 1)),
    ),
    256: Configs(
        *(TILE_32x32_4W, Config(16, 32, 4, 1), Config(16, 32, 4, 1), Config(32, 16, 4, 1)),
        *(TILE_32x32_8W, Config(64, 32, 4, 1)),
    ),
}
HIP_FLOAT: Final = {
    64: Configs(
        *(TILE_32x32_4W, Config(16, 32, 4, 1), TILE_32x32_4W, TILE_32x32_4W),
        *(TILE_32x32_8W, Config(16, 32, 4, 1)),
    ),
    128: Configs(
        *(Config(32, 16, 4, 1), Config(16, 16, 4, 1), Config(32, 16, 4, 1), Config(32, 16, 4, 1)),
        *(TILE_32x32_8W, Config(16, 16, 4, 1)),
    ),
    256: Configs(
        *(Config(32, 16, 4, 1), Config(16, 16, 4, 1), Config(16, 16, 4, 1, 64)),
        *(Config(16, 16, 4, 1, 64), TILE_32x32_4W, Config(16, 16, 4, 1)),
    ),
}


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on CPU tensors (TRITON_INTERPRET=1)."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def compiler_options(config: Config, backend: str) -> dict[str, Any]:
    """The options of a launch: warps, stages, and for NVIDIA those of the register allocation.

    A limit that is higher than the number which ptxas would select keeps it from spilling.
    """
    options: dict[str, Any] = {
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "enable_fp_fusion": True,  # the default; Triton warns where it is left out
    }
    if backend == "cuda" and config.registers:
        options["maxnreg"] = 255
    if backend == "cuda" and config.registers == REGISTERS_255_LEVEL2:
        options["ptx_options"] = "--register-usage-level=2"
    return options


def max_decode_rows(itemsize: int) -> int:
    """Query rows of a KV head, of all heads of its group, up to which the decode kernel is used."""
    return 16 if itemsize == 4 else 64  # more would spill registers


def block_dim(dim: int) -> int:
    """The width of a tile that holds `dim` columns."""
    return max(16, 1 << (dim - 1).bit_length())


def select_configs(
    dims: tuple[int, int], itemsize: int, backend: str, *, is_plain: bool = False
) -> Configs:
    """The configurations for a head_dim and an item size in bytes.

    Args:
        dims: Head dimensions of q and k, and of v.
        itemsize: Bytes per element: 2 or 4.
        backend: "cuda", "hip", or "cpu" for the interpreter.
        is_plain: Whether without soft cap, bias and dropout.

    Returns:
        One configuration per kernel.
    """
    if backend == "cpu":
        return INTERPRETED
    if backend == "hip":
        table = HIP_FLOAT if itemsize == 4 else HIP_HALF
    elif itemsize == 4:
        table = CUDA_FLOAT
    else:
        table = CUDA_HALF_PLAIN if is_plain else CUDA_HALF
    configs = table[next(size for size in table if max(dims) <= size)]
    if backend == "hip":
        return configs
    registers = dict.fromkeys((*TILED, "decode", "decode_rows"), REGISTERS_255_LEVEL2)
    if itemsize == 4:
        registers["decode"] = registers["decode_rows"] = REGISTERS_255 if max(dims) <= 128 else 0
        if max(dims) <= 128 and any(block_dim(dim) != dim for dim in dims):
            configs = configs._replace(dkdv=TILE_ODD_DIM, dq=TILE_ODD_DIM)
        elif dims[0] != dims[1] and max(dims) <= 128:
            registers["dkdv"] = REGISTERS_255
        elif dims[0] != dims[1]:
            configs = configs._replace(dkdv=Config(32, 16, 8, 1, 16))
    return configs._replace(
        **{name: getattr(configs, name)._replace(registers=n) for name, n in registers.items()}
    )
