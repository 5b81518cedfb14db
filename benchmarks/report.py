"""The text of docs/performance.md, computed from the JSON files of all measurements."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import core, targets
from benchmarks.attention import MAX_BFLOAT16_CELLS, MAX_BFLOAT16_TOKENS, Pace
from benchmarks.figures import (
    BOTH,
    FORWARD,
    LABELS,
    LONG,
    OURS,
    SMALL_LABELS,
    clock,
    goals,
    groups_table,
    is_long,
    models_rows,
    paths_rows,
    peer,
    percent,
    ratio,
    share,
    times,
    variants_rows,
)
from benchmarks.losses import losses_table
from benchmarks.measure import table
from benchmarks.peak import FMA
from benchmarks.peers.textbook import MAX_SCORES

if TYPE_CHECKING:
    from benchmarks.figures import Cell, Result

# In the order of the page: `attention`, then a section each, which has a function below.
RESULTS = (
    "attention",
    "prefill",
    "training",
    "paths_models",
    "bias",
    "bias_models",
    "paths",
    "paths_kernel",
    "variants",
    "core",
    "targets",
    "explore",
)
PACE = Pace()
VERSIONS = {"python": "Python", "torch": "PyTorch", "numpy": "NumPy", "maskwright": "maskwright"}


def where(found: Result) -> str:
    """The processor, the instruction set, the versions, the commit and the date of a measurement."""
    machine, measured = found.get("machine", {}), found.get("measured", {})
    parts = [
        machine.get("cpu", "an unrecorded processor"),
        kernel(machine) or "without the C kernel",
        *(f"{said} {machine[name]}" for name, said in VERSIONS.items() if machine.get(name)),
    ]
    return f"{', '.join(parts)}; {when(measured)}"


def kernel(machine: Result) -> str:
    """The instruction set of the C kernel, or an empty text without it."""
    return (machine.get("kernel") or "").upper().replace("AVX512", "AVX-512")


def when(measured: Result) -> str:
    """The commit and the date, or that the file does not say."""
    commit, date = measured.get("commit"), measured.get("date")
    if commit is None:
        return "commit and date not recorded"
    changed = "" if measured.get("clean") else " with uncommitted changes"
    return f"commit {commit[:10]}{changed}, {date[:10]}"


def _elsewhere(found: Result, result: Result) -> str:
    """Where a section was measured, if it was not with the main measurement of the page."""
    keys = "commit", "clean"
    same = found.get("machine") == result["machine"] and all(
        found.get("measured", {}).get(key) == result.get("measured", {}).get(key) for key in keys
    )
    return "" if same else f"Measured on {where(found)}."


def page(attention: Result, **others: Result) -> str:
    """The text of docs/performance.md.

    Args:
        attention: The measurement of `attention`.
        others: Other measurements, named as in `RESULTS`.

    Returns:
        The page in Markdown.
    """
    result = attention
    of = {(c["group"], c["dtype"], c["mode"], c["pattern"]): c for c in result["cells"]}
    parts = [
        "# Performance",
        "`make docs` generates this page from the JSON files in `benchmarks/results`. `make bench` repeats "
        "all measurements. Sections that were measured elsewhere, or with another commit, say so.",
        f"Measured on {where(result)}, {result['threads']} threads. {_peak_line(result)}",
        "![Speed of maskwright relative to the fastest baseline, by mask](images/performance.svg)",
        "## Summary",
        table(["measurement", "result"], [list(row) for row in goals(result)]),
        "## Method",
        _METHOD,
        _compile_line(result),
    ]
    for mode in (FORWARD, BOTH):
        for dtype in dict.fromkeys(c["dtype"] for c in result["cells"]):
            made = _mode_table(result, of, mode, dtype)
            if made:
                parts += [f"## {mode.capitalize()}, {dtype}", made]
    for group, title in (
        ("small", "Small shapes: batch of 32, 128 tokens"),
        ("decode", "Decode step: one query, 8,192 keys"),
    ):
        made = _group_table(result, group)
        if made:
            parts += [f"## {title}", made]
    found = {"attention": result, **others}
    parts += ["## Configurations in which a baseline is faster", losses_table(found)]
    if "memory" in result:
        parts += ["## Memory", _memory(result["memory"])]
    for name in RESULTS[1:]:
        if name in found:
            title, section = _SECTIONS[name]
            parts += [f"## {title}", _elsewhere(found[name], result), section(found[name])]
    parts += ["## Geometric means", groups_table(result), "## Result files", _files(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _peak_line(result: Result) -> str:
    """What the shares refer to."""
    rate, name = f"{result['peak'] / 1e9:.0f} GFLOP/s", result["yardstick"]
    if name == FMA:
        return f"The peak to which shares refer is that of {name} in the same run: {rate}."
    return (
        f"The peak to which shares refer is {name} in the same run: {rate}. A matmul does not reach the "
        "peak of the processor, so shares above 100 % are possible."
    )


_METHOD = f"""\
In each configuration all implementations receive the same tensors, and their outputs (and gradients)
are compared. They run interleaved, and the best time counts: at least {PACE.least} repetitions, more for
short calls, and at least {PACE.least_long} of calls that take more than {PACE.long:g} second. A call that
takes more than {PACE.once:g} seconds, or more than {PACE.behind:g} times the fastest baseline, is not
repeated. There are 8 heads (2 at 16,384 tokens) with head_dim 64, batch size 1 (4 for ragged padding, 2
at 16,384 tokens), and q, k and v have the memory layout of a fused projection. bfloat16 is measured up to
{MAX_BFLOAT16_TOKENS:,} tokens. The baselines:

- `sdpa`, `sdpa is_causal`: `scaled_dot_product_attention` without a mask, or with its flag, where that
  is exactly the same mask;
- `sdpa float mask`, `sdpa bool mask`: a precomputed dense mask. SDPA converts a boolean mask in every
  call, so the second is not measured where that takes long: at 16,384 tokens, and with a backward pass
  from 4,096 tokens;
- `flex`: compiled `flex_attention` with a precomputed BlockMask, a hand-written mask_mod, and the block
  size that suits the mask. It has no backward pass on the CPU;
- `textbook` (float32 only): scores, `masked_fill`, softmax, up to {MAX_SCORES / 1e9:.1f} GB of scores;
- `… in float32` (bfloat16 only): q, k and v are cast to float32 and the output is cast back. With a
  backward pass, SDPA in bfloat16 itself is measured up to {math.isqrt(MAX_BFLOAT16_CELLS[1]):,} tokens.

maskwright is called as `mw.attention(q, k, v, mask)` with a mask that was used once before, as in every
layer of a model but the first. **Ratio** is the time of the fastest baseline over that of maskwright:
above 1 maskwright is faster. **Share** is the useful FLOP/s (4 per visible cell and head dimension, 14
with the backward pass) relative to the float32 peak, also for bfloat16. The first call also
computes the spans of the mask; its time is `first` in the JSON file."""


def _compile_line(result: Result) -> str:
    plans = [
        cell["first"][OURS] - cell["seconds"][OURS]
        for cell in result["cells"]
        if cell["mode"] == FORWARD and is_long(cell) and OURS in cell["first"]
    ]
    said = []
    if plans:
        middle, most = clock(max(0.0, median(plans))), clock(max(0.0, *plans))
        said.append(
            f"The first call with a mask of {LONG:,} tokens or more takes longer than later calls by "
            f"{middle} (median) and at most {most}."
        )
    if "flex_compile" in result:
        said.append(
            f"Compiling `flex` for a new mask_mod took {result['flex_compile']:.1f} s with empty caches."
        )
    return " ".join(said)


def _mode_table(result: Result, of: dict[tuple[str, ...], Cell], mode: str, dtype: str) -> str:
    groups = [g for g in dict.fromkeys(c["group"] for c in result["cells"]) if g.isdigit()]
    rows = []
    for pattern in dict.fromkeys(cell["pattern"] for cell in result["cells"]):
        cells = [of.get((group, dtype, mode, pattern)) for group in groups]
        if any(cells):
            rows.append([LABELS.get(pattern, pattern), *(_cell(c, result["peak"]) for c in cells)])
    if not rows:
        return ""
    note = "Ratio, share of the peak, fastest baseline."
    return f"{note}\n\n{table(['mask', *(f'{int(g):,} tokens' for g in groups)], rows)}"


def _cell(cell: Cell | None, peak_rate: float) -> str:
    if cell is None:
        return ""
    if OURS in cell["failed"]:
        return "failed"
    number = ratio(cell)
    shown = f"{times(number)}, {percent(share(cell, peak_rate))}, {peer(cell) or 'no baseline'}"
    return f"*{shown}*" if number is not None and number < 1 else shown


def _group_table(result: Result, group: str) -> str:
    rows = []
    for cell in result["cells"]:
        if cell["group"] != group:
            continue
        fastest = peer(cell)
        said = {**LABELS, **(SMALL_LABELS if group == "small" else {})}
        rows.append(
            [
                said.get(cell["pattern"], cell["pattern"]),
                cell["dtype"],
                cell["mode"],
                clock(cell["seconds"][OURS]) if OURS in cell["seconds"] else "failed",
                f"{clock(cell['seconds'][fastest])}, {fastest}" if fastest else "–",
                times(ratio(cell)),
                percent(share(cell, result["peak"])),
            ]
        )
    head = ["mask", "dtype", "mode", OURS, "fastest baseline", "ratio", "share"]
    return table(head, rows) if rows else ""


def _memory(used: dict[str, Any]) -> str:
    return (
        f"Forward and backward over {used['tokens']:,} tokens, {used['heads']} heads of "
        f"{used['head_dim']}, float32, a causal window of {used['window']}: the peak is "
        f"{used['peak_bytes'] / 1e6:.0f} MB above q, k, v and the gradient of the output, "
        f"{used['multiple']:.2f} times the {used['tensor_bytes'] / 1e6:.0f} MB of q, k, v and the "
        "output. The output and the three gradients alone are 1.0 times that size. A dense boolean mask of "
        f"this length has {used['tokens'] ** 2 / 1e9:.1f} GB."
    )


def _prefill(found: Result) -> str:
    rows = [
        [f'`attn_implementation="{name}"`', clock(took), times(found["seconds"]["sdpa"] / took)]
        for name, took in found["seconds"].items()
    ]
    config = found["config"]
    note = (
        f"Prefill of {found['tokens']:,} tokens by a Mistral model of transformers {found['transformers']} "
        f"with random weights: {config['num_hidden_layers']} layers, hidden size {config['hidden_size']}, "
        f"{config['num_attention_heads']} heads, {config['num_key_value_heads']} KV heads, window "
        f"{config['sliding_window']}, float32."
    )
    return f"{note}\n\n{table(['attention', 'seconds', 'relative to sdpa'], rows)}"


def _training(found: Result) -> str:
    rows = [
        [
            f"{cell['batch']} × {cell['tokens']:,}",
            f"`{cell['mask']}`",
            clock(cell["seconds"][OURS]),
            *(f"{cell['tokens_per_second'][name]:,.0f}" for name in (OURS, "sdpa")),
            times(cell["ratio"]),
        ]
        for cell in found["cells"]
    ]
    size = found["size"]
    note = (
        f"Forward, loss, backward and AdamW step of `maskwright.models.GPT` ({size['layers']} layers, "
        f"n_embd {size['width']}, {size['heads']} heads), compared with the same model on SDPA, with "
        f"`is_causal` for the causal mask and a precomputed dense mask otherwise."
    )
    head = ["batch × tokens", "mask", "time per step", "tokens/s", "tokens/s with sdpa", "ratio"]
    return f"{note}\n\n{table(head, rows)}"


def _variants(found: Result) -> str:
    cells = found["cells"]
    fallback = (
        "`blocks` is the backend without the C kernel; " if "blocks" in cells[0]["shares"] else ""
    )
    note = (
        "The kernel is compiled for several instruction sets and selects the best one at run time. "
        "Here each variant was selected explicitly on the same machine. "
        f"Share of the peak ({cells[0]['yardstick']}) with the same number of threads, "
        f"{cells[0]['tokens']:,} tokens, 8 heads, "
        f"head_dim 64, float32. {fallback}SDPA uses `is_causal` for the causal mask and a precomputed "
        "float mask otherwise. The portable baseline uses vectors of four floats, which every x86-64 CPU "
        f"supports; on ARM it was not measured."
    )
    return f"{note}\n\n{table(*variants_rows(cells))}"


_PATHS_NOTES = {
    "call overhead": "Four tokens, one head, head_dim 8: the time is that of Python and dispatch.",
    "decode step": "One query, 8 heads, head_dim 64. Every step has one more key, and reads a view of a "
    "KV cache with room for more. maskwright uses `bound.next()`; `unbound mask` passes the mask itself. "
    "SDPA gets the cache cut by hand where that is the same, and a boolean mask otherwise.",
    "small shapes": "Causal, head_dim 64. SDPA uses `is_causal`.",
    "new mask per step": "Packed documents, 8 heads, head_dim 64: each call constructs and binds a new "
    "mask. `the same mask` is the time of a call with a mask that was used before. `flex` creates a "
    "BlockMask per call.",
    "pack": "`mw.pack` into rows of 2,048 tokens.",
}


def _paths(found: Result) -> str:
    """A table per group; ratios are times of the others over that of maskwright."""
    parts = [
        "The Python path of `attention`, where the kernel has little to do. Ratios are times "
        "relative to maskwright: above 1 maskwright is faster.",
    ]
    for group in dict.fromkeys(cell["group"] for cell in found["cells"]):
        cells = [cell for cell in found["cells"] if cell["group"] == group]
        threads = "" if group == "pack" else f" Threads: {cells[0]['threads']}."
        parts += [
            f"### {group.capitalize()}",
            _PATHS_NOTES[group] + threads,
            table(*paths_rows(cells)),
        ]
    return "\n\n".join(parts)


def _paths_models(found: Result) -> str:
    """`generate`, and compiled prefill and training step of models of transformers."""
    config = found["config"]
    divided = any("step" in row for row in found["paths"].values())
    steps = "; a decode step is the mean time between two of them" if divided else ""
    note = (
        f"Models of transformers {found['transformers']} with random weights, {found['tokens']:,} tokens: "
        f"{config['num_hidden_layers']} layers, hidden size {config['hidden_size']}, "
        f"{config['num_attention_heads']} heads, {config['num_key_value_heads']} KV heads, float32, "
        f"{found['threads']} threads. Mistral has a window of {found['window']}. `generate` is the prefill "
        f"and {found['new_tokens']} new tokens{steps}. The compiled rows run under `torch.compile`; their "
        f"first call is not timed."
    )
    return f"{note}\n\n{table(['path', OURS, 'sdpa', 'ratio'], models_rows(found))}"


def _bias(found: Result) -> str:
    """Soft cap, bias and sinks compared with plain attention and with PyTorch."""
    cells, memory = found["cells"], found["memory"]
    note = (
        f"{cells[0]['tokens']:,} tokens, 8 heads, head_dim 64, float32, {cells[0]['threads']} threads. The "
        "ratio is the shortest of the other times over that of maskwright. FlexAttention has no sinks: it "
        f"gets one more key instead, which every query attends to."
    )
    rows = []
    for cell in cells:
        took = dict(cell["seconds"])
        ours = clock(took.pop(OURS))
        others = "; ".join(f"{name} {clock(seconds)}" for name, seconds in took.items())
        rows.append([cell["case"], ours, others, times(cell["ratio"])])
    closing = (
        f"Forward and backward with T5's table over {memory['tokens']:,} tokens need "
        f"{memory['ratio']:.2f} times the memory of q, k, v and the output."
    )
    return f"{note}\n\n{table(['case', OURS, 'others', 'ratio'], rows)}\n\n{closing}"


def _bias_models(found: Result) -> str:
    """Whole models with soft cap or a position bias."""
    note = (
        f"Forward pass of models of transformers {found['transformers']} with random weights, "
        f"{found['tokens']:,} tokens, {found['threads']} threads. Gemma 2 has a soft cap, and a window of "
        f"{found['configs']['gemma2']['sliding_window']} in every other layer; `sdpa` does not "
        f"compute it."
    )
    rows = [
        [model, f'`attn_implementation="{name}"`', clock(took), times(took / row["seconds"][OURS])]
        for model, row in found["models"].items()
        for name, took in row["seconds"].items()
    ]
    head = ["model", "attention", "seconds", "relative to maskwright"]
    return f"{note}\n\n{table(head, rows)}"


def _paths_kernel(found: Result) -> str:
    """The share of the peak under narrow and scattered masks."""
    cells = found["cells"]
    note = (
        "Floating-point operations of the visible cells per second, relative to the peak "
        f"({cells[0]['yardstick']}), also for bfloat16; {cells[0]['tokens']:,} tokens, head_dim 64, "
        f"{cells[0]['threads']} threads. "
        "`maskwright bench --profile` shows in which phases of the kernel the time is spent."
    )
    masks = dict.fromkeys(cell["mask"] for cell in cells)
    columns = dict.fromkeys((cell.get("dtype", "float32"), cell["mode"]) for cell in cells)
    shares = {(c["mask"], c.get("dtype", "float32"), c["mode"]): c["share"] for c in cells}
    rows = [[mask, *(percent(shares.get((mask, *key))) for key in columns)] for mask in masks]
    return f"{note}\n\n{table(['mask', *(f'{mode}, {dtype}' for dtype, mode in columns)], rows)}"


def _core(found: Result) -> str:
    """Spans and tiles compared with create_block_mask, dense masks with numpy, and long masks."""
    blocks, dense = found["blocks"], found["dense"]
    rows = [
        [
            f"spans and tiles; `create_block_mask`, {core.TOKENS:,} tokens",
            clock(blocks["ours"]),
            clock(blocks["theirs"]),
            times(blocks["theirs"] / blocks["ours"]),
        ],
        [
            "`dense()`, batch 32, 128 tokens; the same with NumPy by hand",
            clock(dense["ours"]),
            clock(dense["theirs"]),
            times(dense["theirs"] / dense["ours"]),
        ],
    ]
    long = [
        [f"{int(tokens):,}", clock(row["spans"]), clock(row["tiles"]), f"{row['peak']:.0f} MB"]
        for tokens, row in found["long"].items()
    ]
    return (
        f"Spans and tiles of a causal window of {core.WINDOW:,} within {core.DOCUMENTS} documents, on one "
        f"thread.\n\n{table(['task', OURS, 'other', 'ratio'], rows)}\n\n"
        "A causal window of 4,096 within documents of 2,097 tokens on average; memory is above that of "
        f"the process before:\n\n{table(['tokens', 'spans', 'tiles', 'memory'], long)}\n\n"
        f"`import maskwright` takes {clock(found['import'])}."
    )


def _targets(found: Result) -> str:
    """`lower(mask, "torch.flex")` compared with create_block_mask."""
    short, long = found["short"], found["long"]
    rows = [
        [
            f"{targets.SHORT:,} tokens",
            clock(short["ours"]),
            clock(short["theirs"]),
            times(short["theirs"] / short["ours"]),
        ],
        [
            f"{targets.LONG:,} tokens",
            f"{clock(long['seconds'])}, {long['megabytes']:.0f} MB",
            f"fails with {targets.LIMIT} GB of memory",
            "–",
        ],
    ]
    return (
        f'`lower(mask, "torch.flex")` and `create_block_mask` of a causal window of {targets.WINDOW:,} '
        f"within documents of {targets.TOKENS_A_DOCUMENT:,} tokens on average (for the longer mask "
        f"`create_block_mask` gets the window only).\n\n"
        f"{table(['length', OURS, '`create_block_mask`', 'ratio'], rows)}"
    )


def _explore(found: Result) -> str:
    """Response times of the explorer's server."""
    key, million = found["keystroke"], found["million"]
    return (
        f"A request per keystroke for a mask of {key['tokens']} tokens takes {clock(key['median'])} "
        f"(median of {key['requests']}; at most {clock(key['slowest'])}), a request for "
        f"{million['tokens']:,} tokens {clock(million['request'])}, its SVG {clock(million['svg'])}."
    )


def _files(results: dict[str, Result]) -> str:
    """The source of each section."""
    rows = []
    for name, found in results.items():
        machine, measured = found.get("machine", {}), found.get("measured", {})
        load = measured.get("load_average", {}).get("start")
        took = measured.get("seconds")
        rows.append(
            [
                f"`{name}.json`",
                machine.get("cpu", "–"),
                kernel(machine) or "–",
                when(measured),
                "–" if load is None else f"{load[0]:.1f}",
                "–" if took is None else clock(took) if took < 120 else f"{took / 60:.0f} min",
            ]
        )
    head = ["file", "processor", "kernel", "source", "load average before", "duration"]
    return table(head, rows)


_SECTIONS = {
    "prefill": ("Prefill of a model", _prefill),
    "training": ("Training step", _training),
    "paths_models": ("Generation and compiled models", _paths_models),
    "bias": ("Soft cap, bias and sinks", _bias),
    "bias_models": ("Models with soft cap or position bias", _bias_models),
    "paths": ("Calls, decode steps, small shapes, new masks and packing", _paths),
    "paths_kernel": ("Share of the peak by mask", _paths_kernel),
    "variants": ("Instruction sets", _variants),
    "core": ("Building spans and tiles", _core),
    "targets": ("Building a BlockMask", _targets),
    "explore": ("The explorer", _explore),
}
