"""The configurations of all measurements in which a baseline is faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from benchmarks import core, targets
from benchmarks.figures import LABELS, OURS, SMALL_LABELS, clock, group_label, times
from benchmarks.measure import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.figures import Result

PLAIN = "plain"  # attention of maskwright without the bias of the row
CLEARLY = 0.95  # below this ratio a loss is larger than the usual noise
NOT_BASELINES = (OURS, "unbound mask", "the same mask")  # maskwright, used differently


class Loss(NamedTuple):
    """A configuration in which a baseline is faster."""

    measurement: str
    configuration: str
    ours: float  # seconds
    theirs: float
    baseline: str

    @property
    def ratio(self) -> float:
        """Below 1."""
        return self.theirs / self.ours


def compared(name: str, result: Result) -> Iterator[tuple[str, float, dict[str, float]]]:
    """Each configuration: its label, the seconds of maskwright, and those of the baselines."""
    cells: dict[str, dict[str, float]] = {}
    if name == "attention":
        for cell in result["cells"]:
            labels = LABELS | (SMALL_LABELS if cell["group"] == "small" else {})
            parts = labels.get(cell["pattern"], cell["pattern"]), group_label(cell["group"])
            cells[", ".join([*parts, cell["dtype"], cell["mode"]])] = cell["seconds"]
    elif name == "prefill":
        cells[f"Mistral, {result['tokens']:,} tokens"] = result["seconds"]
    elif name == "training":
        for cell in result["cells"]:
            label = f"{cell['batch']} × {cell['tokens']:,} tokens, `{cell['mask']}`"
            cells[label] = cell["seconds"]
    elif name == "bias_models":
        cells |= {model: row["seconds"] for model, row in result["models"].items()}
    elif name == "paths_models":
        for path, row in result["paths"].items():
            cells[path] = row["seconds"]
            if "step" in row:
                cells[f"{path}: one decode step"] = row["step"]["seconds"]
    elif name == "bias":
        for cell in result["cells"]:
            cells[cell["case"]] = cell["seconds"]
    elif name == "paths":
        for cell in result["cells"]:
            mode = f", {cell['mode']}" if cell["mode"] else ""
            cells[f"{cell['group']}: {cell['case']}{mode}"] = cell["seconds"]
    elif name == "variants":
        for cell in result["cells"]:
            isa, threads = next(iter(cell["shares"])), cell["threads"]
            seconds = {OURS: cell["seconds"][isa], "sdpa": cell["seconds"]["sdpa"]}
            cells[f"{isa}: {cell['mask']}, {cell['mode']}, threads: {threads}"] = seconds
    elif name == "core":
        shape = "batch 32, 128 tokens"
        cells[f"spans and tiles, {core.TOKENS:,} tokens"] = _pair(
            result["blocks"], "`create_block_mask`"
        )
        cells[f"`dense()`, {shape}"] = _pair(result["dense"], "NumPy by hand")
    elif name == "targets":
        cells[f"BlockMask, {targets.SHORT:,} tokens"] = _pair(
            result["short"], "`create_block_mask`"
        )
    for label, seconds in cells.items():
        peers = {who: took for who, took in seconds.items() if who not in NOT_BASELINES}
        if OURS in seconds and peers:
            yield label, seconds[OURS], peers


def _pair(seconds: Mapping[str, float], baseline: str) -> dict[str, float]:
    """The times of maskwright and of one baseline."""
    return {OURS: seconds["ours"], baseline: seconds["theirs"]}


def losses(results: Mapping[str, Result]) -> tuple[list[Loss], int]:
    """The configurations of all measurements in which a baseline is faster, and the count of all."""
    lost, count = [], 0
    for name, result in results.items():
        for label, ours, peers in compared(name, result):
            count += 1
            baseline = min(peers, key=peers.__getitem__)
            if peers[baseline] < ours:
                lost.append(Loss(name, label, ours, peers[baseline], baseline))
    return sorted(lost, key=lambda loss: loss.ratio), count


def losses_table(results: Mapping[str, Result]) -> str:
    """All of them, the largest loss first."""
    lost, count = losses(results)
    if not lost:
        return f"None of {count} configurations."
    rows = [
        [
            loss.measurement,
            loss.configuration,
            clock(loss.ours),
            f"{clock(loss.theirs)}, {_baseline(loss.baseline)}",
            times(loss.ratio),
        ]
        for loss in lost
    ]
    clearly = sum(loss.ratio < CLEARLY for loss in lost)
    note = (
        f"{len(lost)} of the {count} configurations of all measurements on this page, {clearly} of them "
        f"by more than {1 - CLEARLY:.0%}:".replace("%", " %")
    )
    head = ["measurement", "configuration", OURS, "fastest baseline", "ratio"]
    return f"{note}\n\n{table(head, rows)}"


def _baseline(name: str) -> str:
    return "maskwright without bias and soft cap" if name == PLAIN else name
