"""The drawings of an audit's page: what may be seen, and what was measured, cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.auditing.report import AuditReport
    from maskwright.core.validate import BoolArray

    States = npt.NDArray[np.int8]

MOST_CELLS: Final = 128  # along a side of a drawing; beyond, cells are joined to blocks
MOST_SEQUENCES: Final = 4
MOST_PAIRS: Final = 5  # that are told in words
RULED: Final = 40  # cells along a side up to which they are kept apart by lines

# What a cell of a drawing can be; all but NONE are drawn.
NONE, FAINT, WEAK, STRONG, FULL, WILD, LEAK, DEAF, ASIDE = range(9)

# Marks are told by their form, so that no colour has to be known. Of the cell at {x}, {y}:
MARKS: Final = {
    LEAK: ("cross", "M{x}.2 {y}.2l.6.6m0-.6l-.6.6"),
    DEAF: ("diamond", "M{x}.5 {y}.2l.3.3-.3.3-.3-.3z"),
}


def drawings(report: AuditReport, anchor: str, level: int) -> list[str]:
    """What was expected and what was measured, of the first sequences, with headings above them."""
    if report.allowed is None:
        return ["<p>There is nothing to draw: the model did not run.</p>"]
    allowed = np.asarray(report.allowed, np.bool_)
    measured = None if report.measured is None else np.asarray(report.measured, np.float64)
    if measured is not None and measured.shape != allowed.shape:
        measured = None
    judged = np.asarray(getattr(report, "judged", None))
    if judged.shape != allowed.shape[:2]:
        judged = np.ones(allowed.shape[:2], np.bool_)
    shown = min(allowed.shape[0], MOST_SEQUENCES)
    parts = [_about(allowed, measured, shown), _key(measured is not None, not judged.all())]
    for b in range(shown):
        own = None if measured is None else measured[b]
        top = 0.0 if measured is None else _top(measured)
        parts.append(f"<h{level}>Sequence {b}</h{level}>")
        parts.append(_pair(allowed[b], own, judged[b], top, f"{anchor}-{b}"))
    return parts


def _about(allowed: BoolArray, measured: Any, shown: int) -> str:
    batch, outputs, inputs = allowed.shape
    told = [f"A row for each of {outputs} outputs, a column for each of {inputs} inputs."]
    size = _block(outputs, inputs)
    if size > 1:
        told.append(f"A cell stands for a block of {size} × {size}.")
    if batch > shown:
        told.append(f"The first {shown} of {batch} sequences are shown.")
    if measured is None:
        told.append(
            "The influence was not measured: the probe reach does that, on inputs short enough to "
            "change every position by itself."
        )
    return f"<p>{' '.join(told)}</p>"


def _pair(allowed: BoolArray, measured: Any, judged: BoolArray, top: float, anchor: str) -> str:
    """Both drawings of one sequence, and the first differences in words."""
    if not allowed.size:
        return "<p>There are no positions.</p>"
    size = _block(*allowed.shape)
    some, every = _reduced(np.maximum, allowed, size), _reduced(np.minimum, allowed, size)
    states = np.where(every, FULL, np.where(some, WEAK, NONE)).astype(np.int8)
    share = f"{allowed.sum()} of {allowed.size} pairs may be seen"
    figures = [_figure("Expected", share, states, size, f"{anchor}-e")]
    told = ""
    if measured is not None:
        moved = (measured > 0) | ~np.isfinite(measured)
        leak = moved & ~allowed & judged[:, None]
        deaf = allowed & ~moved & judged[:, None]
        states = _levels(measured, top, size)
        aside = _reduced(np.minimum, np.repeat(~judged[:, None], allowed.shape[1], 1), size)
        states[aside & (states > NONE)] = ASIDE
        states[_reduced(np.maximum, deaf, size) & (states == NONE)] = DEAF
        states[_reduced(np.maximum, leak, size)] = LEAK
        share = (
            f"{moved.sum()} of {moved.size} outputs moved; {leak.sum()} though the input is hidden "
            f"from them; {deaf.sum()} may see theirs and did not"
        )
        figures.append(_figure("Measured", share, states, size, f"{anchor}-m"))
        told = _differences(leak, deaf)
    return f'<div class="pair">{"".join(figures)}</div>{told}'


def _levels(measured: npt.NDArray[np.float64], top: float, size: int) -> States:
    finite = np.isfinite(measured)
    share = np.where(finite, measured, 0.0) / (top or 1.0)
    most = _reduced(np.maximum, share, size)
    levels = np.select(
        [most >= 1e-1, most >= 1e-2, most >= 1e-4, most > 0], [FULL, STRONG, WEAK, FAINT], NONE
    ).astype(np.int8)
    levels[_reduced(np.maximum, ~finite, size)] = WILD
    return levels


def _top(measured: npt.NDArray[np.float64]) -> float:
    finite = measured[np.isfinite(measured)]
    return float(finite.max()) if finite.size else 0.0


def _block(rows: int, columns: int) -> int:
    """How many positions are joined to one cell, along each side."""
    return max(1, -(-max(rows, columns) // MOST_CELLS))


def _reduced(by: np.ufunc, cells: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    if size == 1:
        return cells
    rows, columns = (np.arange(0, length, size) for length in cells.shape)
    return np.asarray(by.reduceat(by.reduceat(cells, rows, 0), columns, 1))


def _differences(leak: BoolArray, deaf: BoolArray) -> str:
    told = [f"Output {i} moved with input {j}, which is hidden from it." for i, j in _first(leak)]
    told += [f"Output {i} may see input {j}, and did not move with it." for i, j in _first(deaf)]
    left = int(leak.sum() + deaf.sum()) - len(told)
    if left > 0:
        told.append(f"And {left} more.")
    if not told:
        return "<p>Measured as expected.</p>"
    return "<ul>" + "".join(f"<li>{line}</li>" for line in told) + "</ul>"


def _first(cells: BoolArray) -> list[tuple[int, int]]:
    return [(int(i), int(j)) for i, j in np.argwhere(cells)[:MOST_PAIRS]]


def _figure(title: str, told: str, states: States, size: int, anchor: str) -> str:
    rows, columns = states.shape
    side = max(rows, columns)
    font = 0.05 * side
    edge = 2.2 * font
    box = (
        f"{-edge:.2f} {-1.4 * font:.2f} {columns + edge + 0.02 * side:.2f} {rows + 1.6 * font:.2f}"
    )
    parts = [
        f'<svg viewBox="{box}" role="img" aria-labelledby="{anchor}-t {anchor}-d">'
        f'<title id="{anchor}-t">{title}</title><desc id="{anchor}-d">{told}</desc>'
    ]
    parts += [
        f'<path class="s{state}" shape-rendering="crispEdges" d="{path}"/>'
        for state in range(FAINT, ASIDE + 1)
        if (path := _runs(states == state))
    ]
    if side <= RULED:
        lines = [f"M0 {y}h{columns}" for y in range(1, rows)]
        lines += [f"M{x} 0v{rows}" for x in range(1, columns)]
        parts.append(f'<path class="rule" d="{"".join(lines)}"/>')
    parts += [_marks(state, states == state) for state in MARKS]
    thick = f"{0.004 * side:.3f}"
    parts.append(f'<rect class="frame" stroke-width="{thick}" width="{columns}" height="{rows}"/>')
    parts += _ticks(rows, columns, size, font)
    caption = f"<figcaption><b>{title}</b>: {told}.</figcaption>"
    return f"<figure>{''.join(parts)}</svg>{caption}</figure>"


def _runs(cells: BoolArray) -> str:
    """The outline of all cells that are set, a rectangle for each run of them."""
    edges = np.diff(cells.astype(np.int8), axis=1, prepend=0, append=0)
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    return "".join(
        f"M{x} {y}h{end - x}v1h{x - end}z"
        for (y, x), (_, end) in zip(starts.tolist(), ends.tolist(), strict=True)
    )


def _marks(state: int, cells: BoolArray) -> str:
    kind, mark = MARKS[state]
    path = "".join(mark.format(x=x, y=y) for y, x in np.argwhere(cells).tolist())
    return f'<path class="{kind}" d="{path}"/>' if path else ""


def _ticks(rows: int, columns: int, size: int, font: float) -> list[str]:
    step = 1
    while max(rows, columns) / step > 8:
        step *= 2
    style = f'font-size="{font:.2f}"'
    return [
        f'<text {style} x="{x + 0.5}" y="{-0.4 * font:.2f}" text-anchor="middle">{x * size}</text>'
        for x in range(0, columns, step)
    ] + [
        f'<text {style} x="{-0.4 * font:.2f}" y="{y + 0.5 + 0.35 * font:.2f}" text-anchor="end">'
        f"{y * size}</text>"
        for y in range(0, rows, step)
    ]


def _key(measured: bool, aside: bool) -> str:
    kinds = [(FULL, "may be seen; or moved"), (NONE, "hidden; or did not move")]
    kinds.append((WEAK, "seen in part of a block; or moved less than a hundredth of the most"))
    if measured:
        kinds += [
            (STRONG, "less than a tenth"),
            (FAINT, "less than a ten-thousandth"),
            (WILD, "not finite"),
            (LEAK, "a cross: moved, though the input is hidden"),
            (DEAF, "a diamond: may see the input, and did not move; not always a fault"),
        ]
    if aside:
        kinds.append((ASIDE, "an output of padding, which is not judged"))
    return (
        '<ul class="key">' + "".join(f"<li>{_swatch(k)}{told}</li>" for k, told in kinds) + "</ul>"
    )


def _swatch(state: int) -> str:
    one = np.ones((1, 1), np.bool_)
    return (
        '<svg viewBox="0 0 1 1" aria-hidden="true" focusable="false">'
        + (f'<path class="s{state}" d="{_runs(one)}"/>' if state else "")
        + (_marks(state, one) if state in MARKS else "")
        + '<rect class="frame" stroke-width=".08" width="1" height="1"/></svg>'
    )
