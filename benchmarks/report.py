"""docs/performance.md and its picture, as the measurements make them: `python -m benchmarks report`.

Nothing is measured here, and no number is typed in.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.chart import chart
from benchmarks.figures import (
    BOTH,
    FORWARD,
    IN_FLOAT32,
    LONG,
    OURS,
    SAID,
    SHORT,
    clock,
    geomean,
    goals,
    groups_table,
    is_long,
    load,
    lost,
    peer,
    percent,
    ratio,
    said_group,
    share,
    times,
    variants_rows,
)
from benchmarks.measure import table

if TYPE_CHECKING:
    from benchmarks.figures import Cell, Result

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "performance.md"
# Whole models, the kernel on other processors, and an earlier commit.
BESIDE = "prefill", "training", "variants", "compare"
PICTURE = DOCS / "images" / "performance.svg"


def _kernel_line(kernel: str | None) -> str:
    """What computed attention."""
    if kernel is None:
        return (
            "Attention was computed by the `blocks` backend: the C kernel was missing in that run."
        )
    return f"Attention was computed by the C kernel, with {kernel}, where that serves."


def page(
    result: Result,
    prefill: Result | None = None,
    training: Result | None = None,
    variants: Result | None = None,
    compare: Result | None = None,
) -> str:
    """docs/performance.md, as the measurements make it."""
    machine = result["machine"]
    of = {(c["group"], c["dtype"], c["mode"], c["pattern"]): c for c in result["cells"]}
    parts = [
        "# How fast it is",
        "Written by `python -m benchmarks report` from the last measurement; no number is typed in. To "
        "measure again:",
        f"```bash\n{result['command']}\n"
        "python -m benchmarks variants prefill training\npython -m benchmarks report\n```",
        f"Measured on {machine['cpu']}, {result['threads']} threads, Python {machine['python']}, PyTorch "
        f"{machine['torch']}, NumPy {machine['numpy']}, maskwright {machine['maskwright']}, in "
        f"{result['seconds'] / 60:.0f} minutes. A 2048³ matmul in float32, measured in between, reached "
        f"{result['gemm'] / 1e9:.0f} Gflop/s: the fractions below refer to this peak.",
        _kernel_line(machine.get("kernel")),
        "![Time of maskwright relative to the fastest peer, mask by mask](images/performance.svg)",
        "## In short",
        table(["what", "measured"], [list(row) for row in goals(result)]),
        "## What is compared",
        _COMPARED.format(upcast=_upcast(result)),
        _compile_line(result),
        _bfloat16_line(of),
    ]
    for mode in (FORWARD, BOTH):
        for dtype in dict.fromkeys(c["dtype"] for c in result["cells"]):
            made = _mode_table(result, of, mode, dtype)
            if made:
                parts += [f"## {mode.capitalize()}, {dtype}", made]
    for group, title in (
        ("small", "Small: a batch of 32 × 128 tokens"),
        ("decode", "Decoding: one query, 8,192 keys"),
    ):
        made = _group_table(result, group)
        if made:
            parts += [f"## {title}", made]
    parts += ["## Where a peer is faster", _lost_table(result)]
    if "memory" in result:
        parts += ["## Memory", _memory(result["memory"])]
    if prefill is not None:
        parts += ["## A whole model", _prefill(prefill)]
    if training is not None:
        parts += ["## A step of training", _training(training)]
    if variants is not None:
        parts += ["## Other processors", _variants(variants)]
    if compare is not None:
        parts += ["## Compared with an earlier commit", _compare(compare)]
    parts += ["## Means", groups_table(result)]
    return "\n\n".join(part for part in parts if part) + "\n"


_COMPARED = """\
In every cell all runners get the same tensors and, which is checked, give the same output (and the same
gradients). They take turns, and each one's best time counts: at least three rounds, more for short ones; a
run of more than 4 seconds, or of more than three times the fastest peer's, is not repeated. Heads
are 8 of 64 (2 at 16,384 tokens), the batch is 1 (for ragged padding 4, and 2 at 16,384), and q, k and v are
laid out as projections give them. The peers:

- `sdpa`, `sdpa is_causal`: `scaled_dot_product_attention` without a mask, or with its flag, where that is
  exactly the same;
- `sdpa float mask`, `sdpa bool mask`: with a dense mask that was made before. SDPA makes the first of the
  second per call, so the second is left out where it would take long: at 16,384 tokens, and with
  the backward from 4,096 tokens on;
- `flex`: compiled `flex_attention`, its BlockMask made before, with the mask_mod that one would write
  by hand, and the block size that suits the mask. It has no backward on a CPU;
- `textbook`: scores, `masked_fill`, softmax, where the scores fit in 2 GB (for bfloat16, which can take
  minutes, in 0.2 GB of float32){upcast}.

maskwright is called as `mw.attention(q, k, v, mask)`, where the mask exists and was used once before, as it
is from the second layer of a model on. **Ratio** is the time of the fastest peer over maskwright's: above 1
maskwright is faster. **Share** is useful work a second (4 flops for each seen cell and head dimension, 14
with the backward), as a share of the float32 matmul peak, for bfloat16 too. The first call also plans; it
stands apart, in the JSON as `first`."""


def _upcast(result: Result) -> str:
    if not any(name.endswith(IN_FLOAT32) for cell in result["cells"] for name in cell["seconds"]):
        return ""
    return (
        ";\n- `… in float32`, for bfloat16: the same on q, k and v cast to float32, and cast back. With the"
        "\n  backward, SDPA in bfloat16 itself is then left out from 4,096 tokens on, being the slower"
    )


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
            f"Planning a mask of {LONG:,} tokens and more (the first call less a later one) took "
            f"{middle} in the median and {most} at most."
        )
    if "flex_compile" in result:
        said.append(
            f"Compiling `flex` for a new mask_mod took {result['flex_compile']:.1f} s with nothing cached."
        )
    return " ".join(said)


def _bfloat16_line(of: dict[tuple[str, ...], Cell]) -> str:
    """How PyTorch's own bfloat16 stands to its float32 here: ratios in bfloat16 are read with it."""
    said = []
    for mode in (FORWARD, BOTH):
        slower: dict[str, list[float | None]] = {"PyTorch": [], OURS: []}
        for (group, dtype, of_mode, pattern), cell in of.items():
            twin = of.get((group, "float32", mode, pattern))
            if dtype != "bfloat16" or of_mode != mode or twin is None:
                continue
            mine, other = peer(cell), peer(twin)
            if mine and other:
                slower["PyTorch"].append(cell["seconds"][mine] / twin["seconds"][other])
            if OURS in cell["seconds"] and OURS in twin["seconds"]:
                slower[OURS].append(cell["seconds"][OURS] / twin["seconds"][OURS])
        if slower["PyTorch"] and slower[OURS]:
            took = " and ".join(f"{geomean(all_):.1f} for {who}" for who, all_ in slower.items())
            said.append(f"{mode} {took}")
    if not said or _upcast({"cells": list(of.values())}):
        return ""
    return (
        "Not every CPU is fast in bfloat16. Time relative to float32, in the "
        f"geometric mean over the fastest ways of all cells: {'; '.join(said)}. Ratios in bfloat16 stand "
        "compared with PyTorch's bfloat16, which is easily beaten where it is slower than its float32."
    )


def _mode_table(result: Result, of: dict[tuple[str, ...], Cell], mode: str, dtype: str) -> str:
    groups = [g for g in dict.fromkeys(c["group"] for c in result["cells"]) if g.isdigit()]
    rows = []
    for pattern in dict.fromkeys(cell["pattern"] for cell in result["cells"]):
        cells = [of.get((group, dtype, mode, pattern)) for group in groups]
        if any(cells):
            rows.append([SAID.get(pattern, pattern), *(_cell(c, result["gemm"]) for c in cells)])
    if not rows:
        return ""
    note = "Ratio, share of the peak, and the fastest peer."
    return f"{note}\n\n{table(['mask', *(f'{int(g):,} tokens' for g in groups)], rows)}"


def _cell(cell: Cell | None, gemm: float) -> str:
    if cell is None:
        return ""
    if OURS in cell["failed"]:
        return "failed"
    number = ratio(cell)
    shown = f"{times(number)}, {percent(share(cell, gemm))}, {peer(cell) or 'no peer'}"
    return f"*{shown}*" if number is not None and number < 1 else shown


def _group_table(result: Result, group: str) -> str:
    rows = []
    for cell in result["cells"]:
        if cell["group"] != group:
            continue
        fastest = peer(cell)
        said = {**SAID, **(SHORT if group == "small" else {})}
        rows.append(
            [
                said.get(cell["pattern"], cell["pattern"]),
                cell["dtype"],
                cell["mode"],
                clock(cell["seconds"][OURS]) if OURS in cell["seconds"] else "failed",
                f"{clock(cell['seconds'][fastest])}, {fastest}" if fastest else "–",
                times(ratio(cell)),
                percent(share(cell, result["gemm"])),
            ]
        )
    head = ["mask", "dtype", "mode", OURS, "fastest peer", "ratio", "share"]
    return table(head, rows) if rows else ""


def _lost_table(result: Result) -> str:
    behind = [c for c in result["cells"] if (r := ratio(c)) is not None and r < 1]
    if not behind:
        return f"In none of {len(result['cells'])} cells."
    rows = [
        [
            SAID.get(cell["pattern"], cell["pattern"]),
            said_group(cell["group"]),
            cell["dtype"],
            cell["mode"],
            clock(cell["seconds"][OURS]),
            f"{clock(cell['seconds'][peer(cell)])}, {peer(cell)}",
            times(ratio(cell)),
        ]
        for cell in sorted(behind, key=ratio)
    ]
    head = ["mask", "tokens", "dtype", "mode", OURS, "fastest peer", "ratio"]
    clearly = f"in {len(lost(result))} of them by more than 5 %"
    note = f"In {len(behind)} of {len(result['cells'])} cells, {clearly}:"
    return f"{note}\n\n{table(head, rows)}"


def _memory(used: dict[str, Any]) -> str:
    return (
        f"Forward and backward over {used['tokens']:,} tokens, {used['heads']} heads of "
        f"{used['head_dim']}, float32, a causal window of {used['window']}: at its peak "
        f"{used['peak_bytes'] / 1e6:.0f} MB above what q, k, v and the gradient of the output took, "
        f"which is {used['multiple']:.2f} times the {used['tensor_bytes'] / 1e6:.0f} MB of q, k, v and the "
        "output together. The output and the three gradients alone are once that much. A dense mask of "
        f"this length would have {used['tokens'] ** 2 / 1e9:.1f} GB as bools."
    )


def _prefill(found: Result) -> str:
    rows = [
        [f'`attn_implementation="{name}"`', clock(took), times(found["seconds"]["sdpa"] / took)]
        for name, took in found["seconds"].items()
    ]
    config = found["config"]
    note = (
        f"Prefill of {found['tokens']:,} tokens by a Mistral of transformers {found['transformers']} with "
        f"random weights: {config['num_hidden_layers']} layers of {config['hidden_size']}, "
        f"{config['num_attention_heads']} heads and {config['num_key_value_heads']} key heads, a window of "
        f"{config['sliding_window']}, float32."
    )
    return f"{note}\n\n{table(['attention', 'seconds', 'relative to sdpa'], rows)}"


def _training(found: Result) -> str:
    rows = [
        [
            f"{cell['batch']} × {cell['tokens']:,}",
            f"`{cell['mask']}`",
            clock(cell["seconds"][OURS]),
            *(f"{cell['tokens a second'][name]:,.0f}" for name in (OURS, "sdpa")),
            times(cell["ratio"]),
        ]
        for cell in found["cells"]
    ]
    size = found["size"]
    note = (
        f"Forward, loss, backward and a step of AdamW of the library's GPT ({size['layers']} layers of "
        f"{size['width']}, {size['heads']} heads), compared with the same GPT on SDPA: by "
        "`is_causal` where that "
        "is the mask, and else with a dense mask that was made before."
    )
    head = ["batch × tokens", "mask", "a step", "tokens/s", "tokens/s on sdpa", "times"]
    return f"{note}\n\n{table(head, rows)}"


def _variants(found: Result) -> str:
    cells = found["cells"]
    fallback = (
        "`blocks` is the backend without the C kernel; " if "blocks" in cells[0]["shares"] else ""
    )
    note = (
        "The kernel is compiled for several instruction sets, and the best that a processor has is used. "
        "Here each of them was forced, on the same machine, so that owners of others know what to expect: "
        f"share of a 2048³ matmul on as many threads, {cells[0]['tokens']:,} tokens, 8 heads of 64, "
        f"float32. {fallback}SDPA has `is_causal` for causal, and "
        "else a dense mask of floats that was made before. The baseline is what a compiler makes of plain "
        "vectors of four floats, as any x86-64 has them; it serves ARM too, where it was not measured."
    )
    return f"{note}\n\n{table(*variants_rows(cells))}"


def _compare(found: Result) -> str:
    """Means per direction and dtype of the ratios to an earlier commit."""
    cells = [cell for cell in found["cells"] if not cell.get("failed")]
    keys = dict.fromkeys((c["direction"], c["dtype"], c["threads"]) for c in cells)
    rows = []
    for key in keys:
        ratios = [c["ratio"] for c in cells if (c["direction"], c["dtype"], c["threads"]) == key]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        numbers = [str(len(ratios)), f"{mean:.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}"]
        rows.append([*map(str, key), *numbers])
    summary, machine = found["summary"], found["machine"]
    note = (
        f"Both versions were measured in one run of `python -m benchmarks compare`, interleaved, on "
        f"{machine['cpu']} with {machine['kernel']}. The ratio is the time of commit "
        f"`{found['base']['commit'][:7]}` over that of this version: above 1 this version is faster. "
        f"Over all {summary['cells']} cells the geometric mean is {summary['geometric_mean']:.3f}, "
        f"the minimum {summary['minimum']:.3f}."
    )
    head = ["direction", "dtype", "threads", "cells", "geometric mean", "minimum", "maximum"]
    return f"{note}\n\n{table(head, rows)}"


def run() -> None:
    """Write docs/performance.md and its picture from what was measured."""
    result = load("attention")
    if result is None:
        raise SystemExit(
            "There is no attention.json yet. Run `python -m benchmarks attention` first."
        )
    PAGE.write_text(page(result, *(load(name) for name in BESIDE)))
    PICTURE.write_text(chart(result))
    print(f"written to {PAGE} and {PICTURE}")
