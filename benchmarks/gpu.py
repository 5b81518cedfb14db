"""What can be known about the Triton kernels without a GPU: compilation and a roofline estimate.

`python -m benchmarks gpu` compiles the default configurations for four targets and writes
results/gpu_compile.json. docs/gpu.md shows it beside the roofline, which is computed from the masks. An
interrupted run is continued: kernels of the same sources and Triton version are not compiled again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import RESULTS
from benchmarks.patterns import PATTERNS, Case, make

COMPILED = RESULTS / "gpu_compile.json"
KERNEL_SOURCES = Path(__file__).parents[1] / "src/maskwright/engine/backends/triton"
SOURCES = (
    *("tile", "forward_kernels", "backward_kernels", "decode_kernels", "bias_kernels", "config"),
)
HEAD_DIMS = (64, 128)
LENGTH = "4096"
HEAD_DIM = 128
FLEX_BLOCK = 128


class Device(NamedTuple):
    """Peak rates of a GPU from its data sheet: dense half-precision matrix units, and memory."""

    flops: float
    bytes: float


DEVICES = {
    "A100 80 GB SXM": Device(312e12, 2.039e12),
    "H100 SXM": Device(989e12, 3.35e12),
    "MI300X": Device(1307e12, 5.3e12),
}


class Estimate(NamedTuple):
    """Work of the forward pass under one mask, and the lower bound of its time on each device."""

    pattern: str
    density: float
    tiles: int  # of 64 × 32 cells that the Triton kernel visits
    useful: float  # share of the visited cells that are visible
    flex_useful: float  # the same for FlexAttention's tiles of 128 × 128
    flops: float
    bytes: float
    microseconds: dict[str, float]


def source_hash() -> str:
    """A hash of the sources that the compiled figures depend on."""
    text = b"".join((KERNEL_SOURCES / f"{name}.py").read_bytes() for name in SOURCES)
    return hashlib.sha256(text).hexdigest()[:16]


def combinations() -> list[dict[str, Any]]:
    """What is compiled: the lightest and the heaviest variant of each kernel.

    In float16 at head_dim 64 and 128: one interval per row without terms, and several with all terms
    of the scores. In bfloat16 at head_dim 64 the latter. The kernel of bias gradients has terms always,
    and like decode one variant for all masks.
    """
    groups = (
        *(("float16", dim, False, True) for dim in HEAD_DIMS),
        *(("float16", dim, True, False) for dim in HEAD_DIMS),
        ("bfloat16", 64, False, True),
    )
    return [option for group in groups for option in _variants(*group)]


def _variants(dtype: str, dim: int, one_interval: bool, terms: bool) -> list[dict[str, Any]]:
    """All kernels and targets of one variant."""
    from maskwright.engine.backends.triton.compile_report import KERNELS, TARGETS

    return [
        {
            "name": name,
            "target": target,
            "head_dim": dim,
            "dtype": dtype,
            "one_interval": one_interval,
            "terms": terms,
        }
        for name in KERNELS
        for target in TARGETS
        if terms or name != "bias"
    ]


def run() -> int:
    """Compile everything, and write the figures."""
    import triton

    from maskwright.engine.backends.triton.compile_report import compile_kernel

    data: dict[str, Any] = {"triton": triton.__version__, "sources": source_hash(), "kernels": []}
    stored = json.loads(COMPILED.read_text()) if COMPILED.exists() else {}
    known: dict[tuple[Any, ...], Any] = {}
    if (stored.get("triton"), stored.get("sources")) == (data["triton"], data["sources"]):
        known = {key_of(row): row for row in stored["kernels"]}
    for options in combinations():
        row = known.get(tuple(options.values()))
        if row is None:
            made = compile_kernel(**options)
            row = {**made._asdict(), "config": list(made.config)}
            print(made, file=sys.stderr, flush=True)
        data["kernels"].append(row)
        if len(data["kernels"]) > len(known):
            COMPILED.write_text(json.dumps(data, indent=1) + "\n")
    COMPILED.write_text(json.dumps(data, indent=1) + "\n")
    return 0


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """The values of `combinations` of a compiled kernel."""
    return tuple(row[x] for x in ("kernel", "target", "head_dim", "dtype", "one_interval", "terms"))


def estimate(case: Case) -> Estimate:
    """The roofline of the forward pass: work of the visited tiles, and each tensor read once."""
    from maskwright.engine.backends.triton.config import select_configs

    config = select_configs(HEAD_DIM, HEAD_DIM, 2, "cuda").forward
    bound = case.bound()
    planes = bound.shape[0] * bound.shape[1]
    copies = case.batch * case.heads // planes
    visible = int(bound.spans.cells()) * copies
    ours = _visited(bound.tiles(config.block_m, config.block_n)) * copies
    flex = _visited(bound.tiles(FLEX_BLOCK, FLEX_BLOCK)) * copies
    cells = ours * config.block_m * config.block_n
    flops = 4.0 * HEAD_DIM * cells
    rows = case.batch * case.heads * (2 * case.q_len + 2 * case.kv_len)
    moved = 2.0 * HEAD_DIM * rows
    times = {
        name: max(flops / device.flops, moved / device.bytes) * 1e6
        for name, device in DEVICES.items()
    }
    useful = visible / cells if cells else 1.0
    flex_useful = visible / (flex * FLEX_BLOCK**2) if flex else 1.0
    return Estimate(
        case.pattern, bound.density, ours, useful, flex_useful, flops, moved, times
    )  # fmt: skip


def _visited(tiles: Any) -> int:
    counts = tiles.counts()
    return int(counts["partial"] + counts["full"])


def roofline() -> str:
    """One row per mask of the suite."""
    head = ["mask", "visible", "tiles", "useful", "useful, flex 128", "GFLOP", "MB", *DEVICES]
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for pattern in PATTERNS:
        found = estimate(make(pattern, LENGTH))
        cells = [
            *(pattern, f"{found.density:.1%}", f"{found.tiles:,}", f"{found.useful:.0%}"),
            *(f"{found.flex_useful:.0%}", f"{found.flops / 1e9:.1f}", f"{found.bytes / 1e6:.0f}"),
            *(f"{time:.0f} µs" for time in found.microseconds.values()),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def compiled() -> str:
    """One row per kernel, head_dim, dtype and variant, with the four targets side by side."""
    data = json.loads(COMPILED.read_text())
    targets = list(dict.fromkeys(row["target"] for row in data["kernels"]))
    head = ["kernel", "head_dim", "dtype", "intervals", "terms", "tile", "warps", *targets]
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    grouped: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in data["kernels"]:
        key, target = key_of(row)[:1] + key_of(row)[2:], row["target"]
        grouped.setdefault(key, {})[target] = row
    for (kernel, dim, dtype, one, terms), found in grouped.items():
        tiles = {tuple(row["config"][:3]): target for target, row in found.items()}
        parts = [f"{m} × {n}" for m, n, _ in tiles], [str(warps) for _, _, warps in tiles]
        intervals = "any" if kernel in ("decode", "bias") else "one" if one else "several"
        cells = [kernel, str(dim), dtype, intervals, "all" if terms else "none"]
        cells += [", ".join(dict.fromkeys(part)) for part in parts]
        for target in targets:
            row = found[target]
            share = row["mma_instructions"] / row["instructions"]
            cells.append(
                f"{row['registers']} · {row['spills']} · {row['shared_memory'] / 1024:.0f} KB · "
                f"{share:.0%}"
            )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
