"""What the measurements say: ratios, shares of the peak, their means, and docs/performance.md.

Everything here is computed from the JSON files in results/, and nothing is measured.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.measure import RESULTS, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Cell = dict[str, Any]
    Result = dict[str, Any]

OURS, FORWARD, BOTH = "maskwright", "forward", "forward + backward"
IN_FLOAT32 = " in float32"  # a peer that casts its bfloat16 and computes in float32
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
LOST = 0.95  # below this share of the fastest peer's speed a cell is listed
LONG, SPARSE = 4_096, 0.15
INTERVALS = ("causal", "window", "documents", "chunked", "prefix-lm", "sinks")
SAID = {
    "none": "no mask",
    "causal": "causal",
    "ragged": "causal, ragged padding",
    "window": "causal window of 256",
    "documents": "packed documents of 512 on average, causal",
    "prefix-lm": "prefix-LM, a quarter prefix",
    "sinks": "4 sinks and a window of 256",
    "chunked": "chunks of 512, causal",
    "longformer": "Longformer: 128 on each side, 16 global",
    "bigbird": "BigBird: blocks of 64",
    "dilated": "every fourth of the last 1,024",
    "tree": "tree of 256 drafts after a long prefix",
    "image": "square image, radius 3",
    "random-blocks": "a tenth of the blocks of 64",
    "by-head": "heads differ: causal, window, documents, chunks",
}
SHORT = {"window": "causal window of 64", "documents": "packed documents of 32, causal"} | {
    "sinks": "4 sinks and a window of 64",
    "chunked": "chunks of 32, causal",
}


# ── one cell ──────────────────────────────────────────────────────────────────────────────────


def peer(cell: Cell) -> str | None:
    """The fastest runner that is not maskwright."""
    others = {name: took for name, took in cell["seconds"].items() if name != OURS}
    return min(others, key=others.__getitem__, default=None)


def ratio(cell: Cell) -> float | None:
    """How many times faster than the fastest peer; None where one of them is missing."""
    fastest, ours = peer(cell), cell["seconds"].get(OURS)
    return None if fastest is None or ours is None else cell["seconds"][fastest] / ours


def share(cell: Cell, gemm: float) -> float | None:
    """Useful work a second, as a share of a large float32 matmul's."""
    ours = cell["seconds"].get(OURS)
    return None if ours is None or not gemm else cell["flops"] / ours / gemm


def line(cell: Cell, gemm: float) -> str:
    """A cell in a line, for reading along while it is measured."""
    took = ", ".join(f"{name} {clock(s)}" for name, s in cell["seconds"].items())
    where = f"{cell['group']:>6} {cell['dtype']:8} {cell['mode']:18} {cell['pattern']:13}"
    wrong = "".join(f"  DIFFERS {name} {gap:.1g}" for name, gap in cell["differs"].items())
    wrong += "".join(f"  FAILED {name}: {why}" for name, why in cell["failed"].items())
    return f"{where} {times(ratio(cell)):>7} {percent(share(cell, gemm)):>6}  {took}{wrong}"


def times(number: float | None) -> str:
    """A ratio to read."""
    if number is None:
        return "–"
    return (
        f"{number:.2f} ×"
        if number < 9.995
        else f"{number:.1f} ×"
        if number < 99.5
        else f"{number:.0f} ×"
    )


def percent(number: float | None) -> str:
    """A share to read."""
    return (
        "–"
        if number is None
        else f"{number:.1%}".replace("%", " %")
        if number < 0.0995
        else f"{number:.0%}".replace("%", " %")
    )


def clock(seconds: float) -> str:
    """A time to read."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


# ── many cells ────────────────────────────────────────────────────────────────────────────────


def geomean(numbers: Iterable[float | None]) -> float | None:
    """The geometric mean of those that are there."""
    there = [number for number in numbers if number is not None]
    return math.exp(sum(map(math.log, there)) / len(there)) if there else None


def tokens(cell: Cell) -> int:
    """The length that a cell belongs to."""
    return int(cell["shape"]["kv_len"])


def is_long(cell: Cell) -> bool:
    """Whole sequences of 4,096 tokens and more: neither small nor one step of decoding."""
    return cell["group"].isdigit() and tokens(cell) >= LONG


def lost(result: Result) -> list[Cell]:
    """The cells in which a peer is clearly faster."""
    return [cell for cell in result["cells"] if (r := ratio(cell)) is not None and r < LOST]


def wrong(result: Result) -> list[Cell]:
    """The cells in which a runner computed something else, or maskwright could not."""
    return [cell for cell in result["cells"] if cell["differs"] or OURS in cell["failed"]]


def goals(result: Result) -> list[tuple[str, str]]:
    """The few numbers that say most."""
    cells, gemm = result["cells"], result["gemm"]

    def mean(chosen: Callable[[Cell], bool]) -> str:
        return counted([ratio(cell) for cell in cells if chosen(cell)], times)

    rows = [
        (
            f"cells below {LOST} of the fastest peer",
            f"{len(lost(result))} of {sum(ratio(cell) is not None for cell in cells)}",
        ),
        ("forward, beside the fastest peer", mean(lambda c: c["mode"] == FORWARD)),
        ("forward + backward, beside the fastest peer", mean(lambda c: c["mode"] == BOTH)),
        (
            f"forward + backward, {LONG:,} tokens and more, density at most {SPARSE:.0%}".replace(
                "%", " %"
            ),
            mean(lambda c: c["mode"] == BOTH and is_long(c) and c["density"] <= SPARSE),
        ),
    ]
    for mode in (FORWARD, BOTH):
        shares = [
            share(cell, gemm)
            for cell in cells
            if cell["pattern"] in INTERVALS
            and is_long(cell)
            and cell["dtype"] == "float32"
            and cell["mode"] == mode
        ]
        name = (
            f"share of the matmul peak, interval masks, {LONG:,} tokens and more, float32, {mode}"
        )
        rows.append((name, counted(shares, percent)))
    rows.append(("small shapes, beside the fastest peer", mean(lambda c: c["group"] == "small")))
    rows.append(
        ("one step of decoding, beside the fastest peer", mean(lambda c: c["group"] == "decode"))
    )
    if "memory" in result:
        used = result["memory"]
        rows.append(
            (
                f"memory of forward + backward, {used['tokens']:,} tokens, window of {used['window']}",
                f"{used['multiple']:.2f} × that of q, k, v and the output",
            )
        )
    return rows


def counted(numbers: list[float | None], shown: Callable[[float | None], str]) -> str:
    """A geometric mean, with how many numbers it is of and the least of them."""
    there = [number for number in numbers if number is not None]
    if not there:
        return "not measured"
    return f"{shown(geomean(there))} (geometric mean of {len(there)}, least {shown(min(there))})"


def groups_table(result: Result) -> str:
    """Geometric means of every group."""
    rows = []
    for group, dtype, mode in dict.fromkeys(
        (cell["group"], cell["dtype"], cell["mode"]) for cell in result["cells"]
    ):
        cells = [
            cell
            for cell in result["cells"]
            if (cell["group"], cell["dtype"], cell["mode"]) == (group, dtype, mode)
        ]
        ratios = [r for cell in cells if (r := ratio(cell)) is not None]
        rows.append(
            [
                said_group(group),
                dtype,
                mode,
                times(geomean(ratios)),
                times(min(ratios, default=None)),
                percent(geomean(share(cell, result["gemm"]) for cell in cells)),
            ]
        )
    rows.append(["all", "", "", times(geomean(map(ratio, result["cells"]))), "", ""])
    return table(["tokens", "dtype", "mode", "ratio", "least", "share of peak"], rows)


def cells_table(result: Result) -> str:
    """Every cell, with every runner's time."""
    names = list(dict.fromkeys(name for cell in result["cells"] for name in cell["seconds"]))
    rows = [
        [
            cell["pattern"],
            said_group(cell["group"]),
            cell["dtype"],
            cell["mode"],
            f"{cell['density']:.3f}",
            *(clock(took) if (took := cell["seconds"].get(name)) else "" for name in names),
            clock(cell["first"][OURS]) if OURS in cell["first"] else "",
            times(ratio(cell)),
            percent(share(cell, result["gemm"])),
        ]
        for cell in result["cells"]
    ]
    head = ["pattern", "tokens", "dtype", "mode", "density", *names]
    return table([*head, "first call", "ratio", "share"], rows)


def summary(result: Result) -> str:
    """The goals, the groups, and every cell that is lost or wrong."""
    parts = [
        groups_table(result),
        table(["what", "measured"], [list(row) for row in goals(result)]),
        f"2048³ matmul in float32: {result['gemm'] / 1e9:.0f} Gflop/s, {result['threads']} threads",
        f"cells below {LOST} of the fastest peer: {len(lost(result))}",
        *(line(cell, result["gemm"]) for cell in sorted(lost(result), key=ratio)),
    ]
    if wrong(result):
        parts += ["NOT THE SAME OUTPUT:", *(line(c, result["gemm"]) for c in wrong(result))]
    return "\n\n".join(parts[:3]) + "\n\n" + "\n".join(parts[3:])


def said_group(group: str) -> str:
    """A group to read."""
    return f"{int(group):,}" if group.isdigit() else group


# ── the page ──────────────────────────────────────────────────────────────────────────────────


def load(name: str) -> Result | None:
    """A measurement, if there is one."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _kernel_line(kernel: str | None) -> str:
    """What computed attention."""
    if kernel is None:
        return "Attention was computed by strips alone: there was no kernel in C in that run."
    return f"Attention was computed by the kernel in C, with {kernel}, where that serves."


def page(result: Result, prefill: Result | None = None) -> str:
    """docs/performance.md, as the measurements make it."""
    machine = result["machine"]
    of = {(c["group"], c["dtype"], c["mode"], c["pattern"]): c for c in result["cells"]}
    parts = [
        "# How fast it is",
        "Written by `python -m benchmarks report` from the last measurement; no number is typed in. To "
        "measure anew:",
        f"```bash\n{result['command']}\npython -m benchmarks prefill\npython -m benchmarks report\n```",
        f"Measured on {machine['cpu']}, {result['threads']} threads, Python {machine['python']}, PyTorch "
        f"{machine['torch']}, NumPy {machine['numpy']}, maskwright {machine['maskwright']}, in "
        f"{result['seconds'] / 60:.0f} minutes. A 2048³ matmul in float32, measured in between, reached "
        f"{result['gemm'] / 1e9:.0f} Gflop/s: that is the peak of which shares are told below.",
        _kernel_line(machine.get("kernel")),
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
  second in every call, so the second is left out where it would take long: at 16,384 tokens, and with
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
        "Not every CPU is quick in bfloat16. Here it takes so many times as long as float32, in the "
        f"geometric mean over the fastest ways of all cells: {'; '.join(said)}. Ratios in bfloat16 stand "
        "beside PyTorch's bfloat16, which is easily beaten where it is slower than its float32."
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
    return f"{note}\n\n{table(['attention', 'seconds', 'beside sdpa'], rows)}"


def run() -> None:
    """Write docs/performance.md from what was measured."""
    result = load("attention")
    if result is None:
        raise SystemExit(
            "There is no attention.json yet. Run `python -m benchmarks attention` first."
        )
    PAGE.write_text(page(result, load("prefill")))
    print(f"written to {PAGE}")
