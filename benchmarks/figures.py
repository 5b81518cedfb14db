"""Ratios, shares of the floating-point peak and their means, computed from the JSON files in results/."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from benchmarks.measure import RESULTS, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Cell = dict[str, Any]
    Result = dict[str, Any]

OURS, FORWARD, BOTH = "maskwright", "forward", "forward + backward"
IN_FLOAT32 = " in float32"  # a baseline that casts bfloat16 to float32
SLOWER = 0.95  # below this share of the fastest baseline's speed a cell is listed
LONG, SPARSE = 4_096, 0.15
INTERVALS = ("causal", "window", "documents", "chunked", "prefix-lm", "sinks")
LABELS = {
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
SMALL_LABELS = {"window": "causal window of 64", "documents": "packed documents of 32, causal"} | {
    "sinks": "4 sinks and a window of 64",
    "chunked": "chunks of 32, causal",
}


# ── one cell ──────────────────────────────────────────────────────────────────────────────────


def peer(cell: Cell) -> str | None:
    """The fastest baseline."""
    others = {name: took for name, took in cell["seconds"].items() if name != OURS}
    return min(others, key=others.__getitem__, default=None)


def ratio(cell: Cell) -> float | None:
    """Time of the fastest baseline over that of maskwright; None if one is missing."""
    fastest, ours = peer(cell), cell["seconds"].get(OURS)
    return None if fastest is None or ours is None else cell["seconds"][fastest] / ours


def share(cell: Cell, peak_rate: float) -> float | None:
    """Useful FLOP/s, as a fraction of the peak."""
    ours = cell["seconds"].get(OURS)
    return None if ours is None or not peak_rate else cell["flops"] / ours / peak_rate


def line(cell: Cell, peak_rate: float) -> str:
    """One line per cell, printed during the measurement."""
    took = ", ".join(f"{name} {clock(s)}" for name, s in cell["seconds"].items())
    where = f"{cell['group']:>6} {cell['dtype']:8} {cell['mode']:18} {cell['pattern']:13}"
    wrong = "".join(f"  DIFFERS {name} {gap:.1g}" for name, gap in cell["differs"].items())
    wrong += "".join(f"  FAILED {name}: {why}" for name, why in cell["failed"].items())
    return f"{where} {times(ratio(cell)):>7} {percent(share(cell, peak_rate)):>6}  {took}{wrong}"


def times(number: float | None) -> str:
    """Formats a ratio."""
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
    """Formats a share."""
    return (
        "–"
        if number is None
        else f"{number:.1%}".replace("%", " %")
        if number < 0.0995
        else f"{number:.0%}".replace("%", " %")
    )


def clock(seconds: float) -> str:
    """Formats a time."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


# ── many cells ────────────────────────────────────────────────────────────────────────────────


def geomean(numbers: Iterable[float | None]) -> float | None:
    """The geometric mean of the numbers that are not None."""
    there = [number for number in numbers if number is not None]
    return math.exp(sum(map(math.log, there)) / len(there)) if there else None


def tokens(cell: Cell) -> int:
    """The sequence length of a cell."""
    return int(cell["shape"]["kv_len"])


def is_long(cell: Cell) -> bool:
    """Whole sequences of 4,096 tokens and more: neither small nor one step of decoding."""
    return cell["group"].isdigit() and tokens(cell) >= LONG


def slower(result: Result) -> list[Cell]:
    """The cells in which a baseline is clearly faster."""
    return [cell for cell in result["cells"] if (r := ratio(cell)) is not None and r < SLOWER]


def wrong(result: Result) -> list[Cell]:
    """The cells in which outputs differ, or in which maskwright failed."""
    return [cell for cell in result["cells"] if cell["differs"] or OURS in cell["failed"]]


def goals(result: Result) -> list[tuple[str, str]]:
    """The summary table."""
    cells, peak_rate = result["cells"], result["peak"]

    def mean(chosen: Callable[[Cell], bool]) -> str:
        return counted([ratio(cell) for cell in cells if chosen(cell)], times)

    rows = [
        (
            f"cells below {SLOWER} of the fastest baseline",
            f"{len(slower(result))} of {sum(ratio(cell) is not None for cell in cells)}",
        ),
        ("forward, relative to the fastest baseline", mean(lambda c: c["mode"] == FORWARD)),
        ("forward + backward, relative to the fastest baseline", mean(lambda c: c["mode"] == BOTH)),
        (
            f"forward + backward, {LONG:,} tokens and more, density at most {SPARSE:.0%}".replace(
                "%", " %"
            ),
            mean(lambda c: c["mode"] == BOTH and is_long(c) and c["density"] <= SPARSE),
        ),
    ]
    for mode in (FORWARD, BOTH):
        shares = [
            share(cell, peak_rate)
            for cell in cells
            if cell["pattern"] in INTERVALS
            and is_long(cell)
            and cell["dtype"] == "float32"
            and cell["mode"] == mode
        ]
        name = f"share of the peak, interval masks, {LONG:,} tokens and more, float32, {mode}"
        rows.append((name, counted(shares, percent)))
    rows.append(
        ("small shapes, relative to the fastest baseline", mean(lambda c: c["group"] == "small"))
    )
    rows.append(
        (
            "one decode step, relative to the fastest baseline",
            mean(lambda c: c["group"] == "decode"),
        )
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
    """The geometric mean, the count and the minimum."""
    there = [number for number in numbers if number is not None]
    if not there:
        return "not measured"
    return f"{shown(geomean(there))} (geometric mean of {len(there)}, minimum {shown(min(there))})"


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
                group_label(group),
                dtype,
                mode,
                times(geomean(ratios)),
                times(min(ratios, default=None)),
                percent(geomean(share(cell, result["peak"]) for cell in cells)),
            ]
        )
    rows.append(["all", "", "", times(geomean(map(ratio, result["cells"]))), "", ""])
    return table(["tokens", "dtype", "mode", "ratio", "minimum", "share of peak"], rows)


def cells_table(result: Result) -> str:
    """All cells with the times of all implementations."""
    names = list(dict.fromkeys(name for cell in result["cells"] for name in cell["seconds"]))
    rows = [
        [
            cell["pattern"],
            group_label(cell["group"]),
            cell["dtype"],
            cell["mode"],
            f"{cell['density']:.3f}",
            *(clock(took) if (took := cell["seconds"].get(name)) else "" for name in names),
            clock(cell["first"][OURS]) if OURS in cell["first"] else "",
            times(ratio(cell)),
            percent(share(cell, result["peak"])),
        ]
        for cell in result["cells"]
    ]
    head = ["pattern", "tokens", "dtype", "mode", "density", *names]
    return table([*head, "first call", "ratio", "share"], rows)


def summary(result: Result) -> str:
    """The summary, the groups, and every cell that is slower than a baseline or wrong."""
    parts = [
        groups_table(result),
        table(["measurement", "result"], [list(row) for row in goals(result)]),
        f"peak of {result['yardstick']}: {result['peak'] / 1e9:.0f} GFLOP/s, {result['threads']} threads",
        f"cells below {SLOWER} of the fastest baseline: {len(slower(result))}",
        *(line(cell, result["peak"]) for cell in sorted(slower(result), key=ratio)),
    ]
    if wrong(result):
        parts += ["NOT THE SAME OUTPUT:", *(line(c, result["peak"]) for c in wrong(result))]
    return "\n\n".join(parts[:3]) + "\n\n" + "\n".join(parts[3:])


def group_label(group: str) -> str:
    """The label of a group."""
    return f"{int(group):,}" if group.isdigit() else group


def variants_rows(cells: list[Result]) -> tuple[list[str], list[list[str]]]:
    """The kernel by instruction set: shares of the floating-point peak, and the best relative to SDPA."""
    names = list(cells[0]["shares"])
    rows = [
        [
            cell["mask"],
            cell["mode"],
            str(cell["threads"]),
            *(percent(cell["shares"][name]) for name in names),
            times(cell["seconds"]["sdpa"] / cell["seconds"][names[0]]),
        ]
        for cell in cells
    ]
    return ["mask", "mode", "threads", *names, f"{names[0]} relative to sdpa"], rows


def models_rows(found: Result) -> list[list[str]]:
    """The rows of the table: path, seconds of both, and their ratio; after `generate`, its steps."""
    cells = []
    for path, cell in found["paths"].items():
        cells.append((path, cell))
        if "step" in cell:
            cells.append((f"{path}: one decode step", cell["step"]))
    return [
        [path, *(clock(cell["seconds"][name]) for name in (OURS, "sdpa")), times(cell["ratio"])]
        for path, cell in cells
    ]


def paths_rows(cells: list[Result]) -> tuple[list[str], list[list[str]]]:
    """One group of `paths`: the time of each runner, with its ratio to that of maskwright."""
    names = list(dict.fromkeys(name for cell in cells for name in cell["seconds"] if name != OURS))
    rows = []
    for cell in cells:
        seconds = cell["seconds"]
        row = [cell["case"], *([cell["mode"]] if cell["mode"] else []), clock(seconds[OURS])]
        if "tokens_per_second" in cell:
            row.append(f"{cell['tokens_per_second'] / 1e6:.1f} million")
        for name in names:
            if name in seconds:
                row.append(f"{clock(seconds[name])}, {times(seconds[name] / seconds[OURS])}")
            else:
                row.append("failed" if name in cell["failed"] else "–")
        rows.append(row)
    head = ["case", *(["mode"] if cells[0]["mode"] else []), OURS]
    return [*head, *(["tokens/s"] if "tokens_per_second" in cells[0] else []), *names], rows


# ── files ─────────────────────────────────────────────────────────────────────────────────────


COMMANDS = {"gpu_compile": "gpu"}  # the measurement, where the file has another name
loaded: set[str] = set()  # the names of all measurements that were read


class MissingResultError(Exception):
    """A page needs a result file that is not there."""


def load(name: str) -> Result:
    """A measurement.

    Raises:
        MissingResultError: There is no such file.
    """
    path = RESULTS / f"{name}.json"
    if not path.exists():
        command = f"python -m benchmarks {COMMANDS.get(name, name)}"
        raise MissingResultError(f"benchmarks/results/{name}.json is missing. Run `{command}`.")
    loaded.add(name)
    result: Result = json.loads(path.read_text())
    return result


def audit_table(models: dict[str, Any]) -> str:
    """The cost of audits in Markdown."""
    head = ["model", "weights", "one forward", "audit", "in forwards", "passes", "peak memory"]
    rows = [
        [
            name,
            f"{found['weights'] / 1e6:.0f} M",
            clock(found["forward"]),
            clock(found["seconds"]),
            f"{found['forwards']:.1f}",
            str(found["passes"]),
            f"{found['bytes'] / 1e9:.1f} GB, {found['memory']:.2f}×",
        ]
        for name, found in models.items()
    ]
    return table(head, rows)
