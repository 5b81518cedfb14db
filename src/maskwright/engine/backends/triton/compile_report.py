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

from maskwright.engine.backends.triton.backward_kernels import dkdv_kernel, dq_kernel
from maskwright.engine.backends.triton.bias_kernels import DIAGONALS, bias_gradient_kernel
from maskwright.engine.backends.triton.config import Config, select_configs
from maskwright.engine.backends.triton.decode_kernels import decode_kernel
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
    "dq": dq_kernel,
    "dkdv": dkdv_kernel,
    "bias": bias_gradient_kernel,
}
TYPES: Final = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
ITEM_SIZES: Final = {"float16": 2, "bfloat16": 2, "float32": 4}
FLOAT32_POINTERS: Final = ("Lse", "Norm", "Delta", "Split_out", "Split_lse")
DATA_POINTERS: Final = ("Q", "K", "V", "Out", "Grad", "DQ", "DK", "DV", "Distance", "Sinks")
FLOATS: Final = ("factor", "cap", "scale", "keep_factor")
TERMS: Final = ("Distance", "Sinks")  # absent in the plain variant; a grid is absent in both
MMA: Final = ("HMMA", "HGMMA", "IMMA", "UTCHMMA", "UTCQMMA", "QMMA")


class CompiledKernel(NamedTuple):
    """What the compiler made of one kernel for one target."""

    kernel: str
    target: str
    head_dim: int
    dtype: str
    one_interval: bool  # whether the variant for masks with one interval per row
    terms: bool  # whether with soft cap, a table of distances, a bias tensor and sinks
    config: Config
    registers: int
    spills: int  # bytes per thread for NVIDIA, registers for AMD
    shared_memory: int  # bytes per program
    instructions: int
    mma_instructions: int


def compile_kernel(
    name: str,
    target: str,
    head_dim: int,
    dtype: str = "float16",
    config: Config | None = None,
    *,
    one_interval: bool = True,
    terms: bool = False,
) -> CompiledKernel:
    """Compile one kernel in its default configuration.

    Args:
        name: A key of `KERNELS`.
        target: A key of `TARGETS`.
        head_dim: Head dimension of q, k and v.
        dtype: Name of the dtype.
        config: A configuration in place of the default one.
        one_interval: Whether no row of the mask has more than one interval.
        terms: Whether with soft cap, a table of distances, a bias tensor and sinks.

    Returns:
        The figures of the compiled kernel.
    """
    gpu = TARGETS[target]
    if config is None:
        config = getattr(select_configs(head_dim, head_dim, ITEM_SIZES[dtype], gpu.backend), name)
    made = triton.compile(
        _source(KERNELS[name], dtype, head_dim, config, (one_interval, terms)),
        target=gpu,
        options={
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            "enable_fp_fusion": True,
        },
    )
    read = _read_cubin if gpu.backend == "cuda" else _read_amd
    figures = read(made)
    return CompiledKernel(name, target, head_dim, dtype, one_interval, terms, config, *figures)


def _source(
    kernel: Any, dtype: str, head_dim: int, config: Config, variant: tuple[bool, bool]
) -> ASTSource:
    one_interval, terms = variant
    constants = {
        "HEAD_DIM": head_dim,
        "V_DIM": head_dim,
        "BLOCK_D": head_dim,
        "BLOCK_DV": head_dim,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "ONE_INTERVAL": one_interval,
        "DROPOUT": False,
        "SOFTCAP": terms,
        "INTERPRET": False,
        "BASE2": dtype != "float32",
        "MODE": DIAGONALS,
    }
    signature: dict[str, Any] = {}
    values: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    aligned = [["tt.divisibility", 16]]
    for index, parameter in enumerate(kernel.params):
        name = parameter.name
        if name == "Biases":
            signature[name] = ()
            if terms:  # one tensor, whose keys are contiguous
                signature[name] = ((f"*{TYPES[dtype]}", "i32", "i32", "i32", "constexpr"),)
                values[(index, 0, 4)] = 1
                attributes |= {(index, 0, n): aligned for n in range(4)}
            continue
        is_absent = name == "Grid" or (name in TERMS and not terms)
        if parameter.is_constexpr or is_absent or name.endswith("_sd"):
            # Rows of q, k, v and their gradients are contiguous.
            signature[name] = "constexpr"
            values[(index,)] = (
                constants[name] if parameter.is_constexpr else None if is_absent else 1
            )
            continue
        if name[0].isupper():
            kind = "i32"
            if name in FLOAT32_POINTERS or (kernel is bias_gradient_kernel and name == "Out"):
                kind = "fp32"
            elif name in DATA_POINTERS:
                kind = TYPES[dtype]
            signature[name] = f"*{kind}"
            attributes[(index,)] = aligned
        elif name in FLOATS:
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if re.fullmatch(r"(q|k|v|o|g|dq|dk|dv)_s[bhmn]", name):
                attributes[(index,)] = aligned
    return ASTSource(kernel, signature, values, attributes)


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
    return registers, stack + local, made.metadata.shared, len(names), mma


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
