"""An SVG chart: maskwright relative to the fastest baseline, per mask."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from benchmarks import report
from benchmarks.figures import FORWARD, LABELS, OURS, clock, peer, ratio, times

if TYPE_CHECKING:
    from benchmarks.figures import Cell, Result

GROUP, DTYPE = "4096", "float32"
WIDTH, NAMES, BARS, ROW, TOP = 900, 350, 310, 34, 74
INK = "#1b1f24", "#57606a", "#0969da", "#c3cbd5", "#ffffff"
DARK = "#e6edf3", "#9aa7b4", "#6cb2f5", "#49535f", "#0f1419"
CLASSES = "text", "faint", "ours", "peer", "ground"


def chart(result: Result) -> str:
    """Time of one forward pass; a bar is as long as its share of the time of the fastest baseline.

    The colours follow the reader's choice of light or dark.
    """
    cells = [
        cell
        for cell in result["cells"]
        if (cell["group"], cell["dtype"], cell["mode"]) == (GROUP, DTYPE, FORWARD)
        and ratio(cell) is not None
    ]
    told = _told(result)
    height = TOP + ROW * len(cells) + 18 + 16 * len(told)
    title = (
        f"Attention forward, {int(GROUP):,} tokens, {DTYPE}: time relative to the fastest baseline"
    )
    said = "; ".join(f"{LABELS[c['pattern']]}: {times(ratio(c))} as fast" for c in cells)
    dark = "".join(f".{name}{{fill:{ink}}}" for name, ink in zip(CLASSES, DARK, strict=True))
    light = "".join(f".{name}{{fill:{ink}}}" for name, ink in zip(CLASSES, INK, strict=True))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d" '
            'font-family="system-ui,sans-serif" font-size="13">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(said)}</desc>',
            f"<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="6" class="ground"/>',
            f'<text x="16" y="28" font-size="15" class="text">{escape(title)}</text>',
            _legend(),
            *(line for n, cell in enumerate(cells) for line in _row(cell, TOP + n * ROW)),
            *(
                f'<text x="16" y="{height + 2 - 16 * (len(told) - n)}" font-size="11" class="faint">'
                f"{escape(line)}</text>"
                for n, line in enumerate(told)
            ),
            "</svg>",
            "",
        ]
    )


def _legend() -> str:
    return (
        '<rect x="16" y="42" width="12" height="12" class="ours"/>'
        f'<text x="34" y="53" class="faint">{OURS}</text>'
        '<rect x="130" y="42" width="12" height="12" class="peer"/>'
        '<text x="148" y="53" class="faint">the fastest of what PyTorch has for that mask</text>'
    )


def _row(cell: Cell, y: int) -> list[str]:
    """Two bars, their times, and the ratio."""
    theirs = str(peer(cell))
    took = cell["seconds"]
    longest = max(took[OURS], took[theirs])
    lines = [f'<text x="16" y="{y + 18}" class="text">{escape(LABELS[cell["pattern"]])}</text>']
    for kind, name, top in (("ours", OURS, y + 3), ("peer", theirs, y + 15)):
        wide = max(2, round(BARS * took[name] / longest))
        told = clock(took[name]) if name == OURS else f"{clock(took[name])}, {name}"
        lines += [
            f'<rect x="{NAMES}" y="{top}" width="{wide}" height="11" class="{kind}"/>',
            f'<text x="{NAMES + wide + 6}" y="{top + 10}" font-size="11" class="faint">'
            f"{escape(told)}</text>",
        ]
    lines.append(
        f'<text x="{WIDTH - 16}" y="{y + 18}" text-anchor="end" class="text">{times(ratio(cell))}</text>'
    )
    return lines


def _told(result: Result) -> list[str]:
    """Two lines: the sizes and the processor; the versions and the source."""
    machine, threads = result["machine"], result["threads"]
    return [
        f"8 heads of 64, {threads} {'thread' if threads == 1 else 'threads'} of {machine['cpu']}",
        f"{report.kernel(machine)}, PyTorch {machine['torch']}; {report.when(result.get('measured', {}))}",
    ]
