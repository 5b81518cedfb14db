"""What can be known about the Triton kernels without a GPU: compilation and a roofline estimate.

`python -m benchmarks gpu` compiles the default configurations for four targets and writes
results/gpu_compile.json, in about 30 minutes. docs/gpu.md shows it beside the roofline, which is computed
from the masks. An interrupted run is continued: what was compiled from the same sources in the same
configuration by the same Triton version is not compiled again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import figures
from benchmarks.measure import RESULTS, circumstances, machine
from benchmarks.patterns import PATTERNS, Case, make
from maskwright._atomic_write import write_atomic

COMPILED = RESULTS / "gpu_compile.json"
KERNEL_SOURCES = Path(__file__).parents[1] / "src/maskwright/engine/backends/triton"
SOURCES = (
    *("tile", "softmax", "forward_kernels", "backward_kernels", "decode_kernels", "bias_kernels"),
)
HEAD_DIMS = (16, 32, 64, 128, 256)
LARGE_DIMS = (64, 128, 256)  # one for each row of the table
UNEQUAL_DIMS = ((64, 128), (192, 128))  # of q and k, and of v
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
    """A hash of the kernels' code, without comments; the configurations are stored with the figures."""
    trees = [ast.parse((KERNEL_SOURCES / f"{name}.py").read_text()) for name in SOURCES]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, (ast.Module, ast.FunctionDef)) and ast.get_docstring(node):
            del node.body[0]
    text = "".join(map(ast.dump, trees))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def combinations() -> list[tuple[str, str, Any]]:
    """What is compiled: kernel, target and variant.

    "Plain" is without terms of the scores and dropout and with one interval per row, "heavy" with all
    of them and several intervals per row.
    """
    from benchmarks.triton_compile import TARGETS

    made = dict.fromkeys([*_tiled(), *_decode(), *_bias(), *_rows()])
    return [(name, target, variant) for name, variant in made for target in TARGETS]


def _heavy(dtype: str, dim: int, v_dim: int = 0, **options: Any) -> Any:
    from benchmarks.triton_compile import Variant

    return Variant(
        dtype, dim, v_dim or dim, one_interval=False, terms=True, dropout=True, **options
    )


def _both(dtype: str, dim: int, **options: Any) -> list[Any]:
    """The plain and the heavy variant."""
    from benchmarks.triton_compile import Variant

    return [Variant(dtype, dim, dim, **options), _heavy(dtype, dim, **options)]


def _tiled() -> list[tuple[str, Any]]:
    """Variants of the kernels over work lists.

    Any strides and addresses of the bias make another kernel, and so does a head_dim that is no power
    of two or differs for the values.
    """
    variants = []
    for dtype in ("float16", "float32"):
        for dim in HEAD_DIMS:
            variants += _both(dtype, dim)
        variants += [_heavy(dtype, dim, strided=True) for dim in LARGE_DIMS]
        variants += [_both(dtype, 128)[0]._replace(one_interval=False), _heavy(dtype, 80)]
        variants += [_heavy(dtype, *dims) for dims in UNEQUAL_DIMS]
    for dim in (64, 128):
        variants += _both("bfloat16", dim)
    return [(name, variant) for variant in variants for name in ("forward", "dq", "dkdv")]


def _decode() -> list[tuple[str, Any]]:
    """Variants of the decode kernel, for each of its tiles of query rows."""
    from benchmarks.triton_compile import ITEM_SIZES
    from maskwright.engine.backends.triton.config import max_decode_rows

    variants = []
    for dtype in ("float16", "float32"):
        for dim in LARGE_DIMS:
            variants += _both(dtype, dim)
            largest = max_decode_rows(ITEM_SIZES[dtype])
            variants += [_heavy(dtype, dim, rows=rows) for rows in (32, 64) if rows <= largest]
        variants += [_heavy(dtype, 128, strided=True), _heavy(dtype, 16), _heavy(dtype, 80)]
        variants += [_heavy(dtype, *dims) for dims in UNEQUAL_DIMS]
    variants += [_heavy("bfloat16", dim) for dim in (64, 128)]
    return [("decode", variant) for variant in variants]


def _bias() -> list[tuple[str, Any]]:
    """Variants of the kernel of bias gradients, which has terms always, in each of its modes."""
    from maskwright.engine.backends.triton.bias_kernels import CELLS, KEYS, ROWS

    variants = []
    for dtype in ("float16", "float32"):
        variants += [_heavy(dtype, dim) for dim in HEAD_DIMS]
        variants += [_heavy(dtype, 128, mode=mode) for mode in (CELLS, KEYS, ROWS)]
        variants += [_heavy(dtype, 128, strided=True), _heavy(dtype, *UNEQUAL_DIMS[-1])]
    variants += [_heavy("bfloat16", 128)]
    return [("bias", variant) for variant in variants]


def _rows() -> list[tuple[str, Any]]:
    """Variants of the kernels of single rows: the merge of splits, with and without sinks, and delta."""
    from benchmarks.triton_compile import ITEM_SIZES, Variant

    made = []
    for dtype in ITEM_SIZES:
        for dim in (64, 256):
            plain = Variant(dtype, dim, dim)
            made += [("merge", plain), ("merge", plain._replace(terms=True)), ("delta", plain)]
    return made


def run() -> int:
    """Compile everything, and write the figures."""
    import triton

    from benchmarks.triton_compile import compile_kernel, default_config

    data: dict[str, Any] = {"triton": triton.__version__, "sources": source_hash()}
    stored = json.loads(COMPILED.read_text()) if COMPILED.exists() else {}
    known: dict[tuple[Any, ...], Any] = {}
    if (stored.get("triton"), stored.get("sources")) == (data["triton"], data["sources"]):
        known = {(*key_of(row), tuple(row["config"])): row for row in stored["kernels"]}
    wanted = combinations()
    rows: dict[tuple[Any, ...], Any] = {}
    for name, target, variant in wanted:
        key = (name, target, tuple(variant), tuple(default_config(name, target, variant)))
        if key in known:
            rows[key] = known[key]
    reused = len(rows)
    for number, (name, target, variant) in enumerate(wanted):
        key = (name, target, tuple(variant), tuple(default_config(name, target, variant)))
        if key not in rows:
            made = compile_kernel(name, target, variant)
            rows[key] = made._asdict()
            print(f"{number + 1} of {len(wanted)}: {made}", file=sys.stderr, flush=True)
            if len(rows) % 10 == 0:
                _write(data, list(rows.values()))
    if len(rows) == reused:  # as compiled before
        data |= {name: stored[name] for name in ("machine", "measured") if name in stored}
    else:
        data |= {"machine": machine(), "measured": circumstances()}
    order = {(name, target, tuple(variant)): n for n, (name, target, variant) in enumerate(wanted)}
    _write(data, sorted(rows.values(), key=lambda row: order[key_of(row)]))
    return 0


def _write(data: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the figures, one kernel per line."""
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = json.dumps(data)[:-1]
    write_atomic(COMPILED, f'{head}, "kernels": [\n{lines}\n]}}\n')


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """The kernel, target and variant of a compiled kernel, as in `combinations`."""
    return row["kernel"], row["target"], tuple(row["variant"])


def estimate(case: Case) -> Estimate:
    """The roofline of the forward pass: work of the visited tiles, and each tensor read once."""
    from maskwright.engine.backends.triton.config import select_configs

    config = select_configs((HEAD_DIM, HEAD_DIM), 2, "cuda", is_plain=True).forward
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
    """One row per kernel, item size and configuration: the largest figures of all its variants."""
    data = figures.load(COMPILED.stem)
    targets = list(dict.fromkeys(row["target"] for row in data["kernels"]))
    head = ["kernel", "dtype", "head_dim", "variants", "tile, warps", *targets]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in data["kernels"]:
        dtype, dim, v_dim = row["variant"][:3]
        size = next(size for size in LARGE_DIMS if max(dim, v_dim) <= size)
        if row["kernel"] in ("merge", "delta"):  # one configuration
            size, dtype = LARGE_DIMS[-1], "all"
        key = (row["kernel"], "half" if "16" in dtype else dtype, size)
        groups.setdefault(key, []).append(row)
    order = list(dict.fromkeys(row["kernel"] for row in data["kernels"]))
    for (kernel, dtype, _size), rows in sorted(
        groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1] != "half", item[0][2])
    ):
        dims = sorted({row["variant"][1] for row in rows})
        cells = [
            kernel,
            dtype,
            ", ".join(map(str, dims)),
            str(len({key_of(row)[2] for row in rows})),
        ]
        tiles = [f"{m} × {n}, {warps}" for m, n, warps, *_ in (row["config"] for row in rows)]
        cells.append("; ".join(dict.fromkeys(tiles)))
        for target in targets:
            own = [row for row in rows if row["target"] == target]
            largest = [max(row[x] for row in own) for x in ("registers", "spills", "shared_memory")]
            mma = max(row["mma_instructions"] / row["instructions"] for row in own)
            cells.append(f"{largest[0]} · {largest[1]} · {largest[2] / 1024:.0f} KB · {mma:.0%}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
