"""Compilation of the default configurations without a GPU: registers, spills, shared memory, MMA share.

NVIDIA's figures are read from the cubin with the `cuobjdump` that Triton ships, AMD's from the
assembly. `MMA share` is the share of matrix instructions (HMMA, HGMMA, UTCHMMA, v_mfma) among all
instructions of the kernel.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from maskwright.engine.backends.triton.backward_kernels import delta_kernel, dkdv_kernel, dq_kernel
from maskwright.engine.backends.triton.bias_kernels import CELLS, DIAGONALS, bias_gradient_kernel
from maskwright.engine.backends.triton.config import (
    Config,
    block_dim,
    compiler_options,
    select_configs,
)
from maskwright.engine.backends.triton.decode_kernels import decode_kernel, merge_kernel
from maskwright.engine.backends.triton.forward_kernels import forward_kernel

TARGETS: Final = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
KERNELS: Final = {
    "forward": forward_kernel,
    "decode": decode_kernel,
    "merge": merge_kernel,
    "delta": delta_kernel,
    "dq": dq_kernel,
    "dkdv": dkdv_kernel,
    "bias": bias_gradient_kernel,
}
TYPES: Final = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
ITEM_SIZES: Final = {"float16": 2, "bfloat16": 2, "float32": 4}
FLOAT32_POINTERS: Final = ("Lse", "Norm", "Delta", "Split_out", "Split_lse")
DATA_POINTERS: Final = ("Q", "K", "V", "Out", "Grad", "DQ", "DK", "DV", "Distance", "Grid", "Sinks")
FLOATS: Final = ("factor", "cap", "scale", "keep_factor")
TERMS: Final = ("Distance", "Grid", "Sinks")  # absent in the variant without terms
MMA: Final = ("HMMA", "HGMMA", "IMMA", "UTCHMMA", "UTCQMMA", "QMMA")


class Variant(NamedTuple):
    """What a kernel is compiled for.

    Attributes:
        dtype: Name of the dtype.
        head_dim: Head dimension of q and k.
        v_head_dim: Head dimension of v.
        one_interval: Whether no row of the mask has more than one interval.
        terms: Whether with soft cap, a table of distances, a grid, a bias tensor and sinks.
        dropout: Whether with dropout.
        strided: Whether biases have any strides, and no address of biases and sinks is aligned. Those
            of q, k, v and their gradients are: `aligned_rows` copies them where they are not.
        rows: Query rows of a decode step, of all heads of a GQA group.
        mode: How the kernel of bias gradients sums a tile at the end.
    """

    dtype: str = "float16"
    head_dim: int = 64
    v_head_dim: int = 64
    one_interval: bool = True
    terms: bool = False
    dropout: bool = False
    strided: bool = False
    rows: int = 16
    mode: int = DIAGONALS


class CompiledKernel(NamedTuple):
    """What the compiler made of one kernel for one target."""

    kernel: str
    target: str
    variant: Variant
    config: Config
    registers: int
    spills: int  # bytes per thread for NVIDIA, registers for AMD
    shared_memory: int  # bytes per program
    instructions: int
    mma_instructions: int


def compile_kernel(
    name: str, target: str, variant: Variant, config: Config | None = None
) -> CompiledKernel:
    """Compile one kernel.

    Args:
        name: A key of `KERNELS`.
        target: A key of `TARGETS`.
        variant: Dtype, head_dim, and what else is a constant of the kernel.
        config: A configuration in place of the default one.

    Returns:
        The figures of the compiled kernel.
    """
    gpu = TARGETS[target]
    if config is None:
        config = default_config(name, target, variant)
    made = triton.compile(
        _source(name, variant, config),
        target=gpu,
        options=compiler_options(config, gpu.backend),
    )
    read = _read_cubin if gpu.backend == "cuda" else _read_amd
    return CompiledKernel(name, target, variant, config, *read(made))


def default_config(name: str, target: str, variant: Variant) -> Config:
    """The configuration that a launch selects."""
    configs = select_configs(
        (variant.head_dim, variant.v_head_dim),
        ITEM_SIZES[variant.dtype],
        TARGETS[target].backend,
        is_plain=not variant.terms and not variant.dropout,
    )
    if name != "decode":
        config: Config = getattr(configs, name)
        return config
    rows = block_dim(variant.rows)
    return (configs.decode if rows == 16 else configs.decode_rows)._replace(block_m=rows)


def _source(name: str, variant: Variant, config: Config) -> ASTSource:
    kernel = KERNELS[name]
    constants = {
        "HEAD_DIM": variant.head_dim,
        "V_DIM": variant.v_head_dim,
        "BLOCK_D": block_dim(variant.head_dim),
        "BLOCK_DV": block_dim(variant.v_head_dim),
        "BLOCK_K": config.block_k,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "ONE_INTERVAL": variant.one_interval,
        "DROPOUT": variant.dropout,
        "SOFTCAP": variant.terms,
        "INTERPRET": False,
        "BASE2": variant.dtype != "float32",
        "MODE": variant.mode,
    }
    signature: dict[str, Any] = {}
    values: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    aligned = [["tt.divisibility", 16]]
    of_terms = [] if variant.strided else aligned
    for index, parameter in enumerate(kernel.params):
        argument = parameter.name
        if argument == "Biases":
            signature[argument] = ()
            if variant.terms:  # one tensor, whose keys are contiguous unless strided
                last = "i32" if variant.strided else "constexpr"
                signature[argument] = ((f"*{TYPES[variant.dtype]}", "i32", "i32", "i32", last),)
                if not variant.strided:
                    values[(index, 0, 4)] = 1
                attributes |= {(index, 0, n): of_terms for n in range(4)}
        elif parameter.is_constexpr:
            signature[argument] = "constexpr"
            values[(index,)] = constants[argument]
        elif argument in TERMS and not variant.terms:
            signature[argument] = "constexpr"
            values[(index,)] = None
        elif argument.endswith("_sd"):
            signature[argument] = "constexpr"  # rows of q, k, v and their gradients are contiguous
            values[(index,)] = 1
        elif argument[0].isupper():
            signature[argument] = f"*{_element_type(name, argument, variant)}"
            attributes[(index,)] = of_terms if argument in TERMS else aligned
        elif argument in FLOATS:
            signature[argument] = "fp32"
        else:
            signature[argument] = "i32"
            if re.fullmatch(r"(q|k|v|o|g|dq|dk|dv)_s[bhmn]", argument):
                attributes[(index,)] = aligned
    return ASTSource(kernel, signature, values, attributes)


def _element_type(name: str, argument: str, variant: Variant) -> str:
    """The element type of a pointer."""
    if argument in FLOAT32_POINTERS or (
        name == "bias" and argument == "Out" and variant.mode != CELLS
    ):
        return "fp32"
    return TYPES[variant.dtype] if argument in DATA_POINTERS else "i32"


def _read_cubin(made: Any) -> tuple[int, int, int, int, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(made.asm["cubin"])

        def dump(option: str) -> str:
            done = subprocess.run([tool, option, path], capture_output=True, text=True, check=True)
            return done.stdout

        usage, sass = dump("-res-usage"), dump("-sass")
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    if found is None:
        raise ValueError(f"cuobjdump printed no resource usage: {usage}")
    registers, stack, local = (int(number) for number in found.groups())
    names = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+)", sass, re.MULTILINE)
    mma = sum(name in MMA for name in names)
    # A stack frame that no instruction reads or writes is no spill.
    spills = stack + local if {"STL", "LDL"} & set(names) else 0
    return registers, spills, made.metadata.shared, len(names), mma


def _read_amd(made: Any) -> tuple[int, int, int, int, int]:
    text = made.asm["amdgcn"]

    def field(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        if found is None:
            raise ValueError(f"the assembly has no {name}")
        return int(found.group(1))

    names = re.findall(r"^\t([vs]_\w+|ds_\w+|buffer_\w+|global_\w+)", text, re.MULTILINE)
    mma = sum(name.startswith("v_mfma") for name in names)
    spills = field("vgpr_spill_count")
    return field("vgpr_count"), spills, made.metadata.shared, len(names), mma
