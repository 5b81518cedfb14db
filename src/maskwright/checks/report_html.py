"""An audit's report as one page of HTML, for a browser: no scripts, and nothing from elsewhere.

What may enter here: words and drawings of what a report holds. Nothing is judged here, and all
that comes from outside is escaped.
"""

from __future__ import annotations

import hashlib
import html
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from maskwright._version import __version__
from maskwright.checks.auditing.mistakes import CAUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from maskwright.checks.probes.answer import Answer
    from maskwright.checks.report import AuditFinding, AuditReport
    from maskwright.core.arrays import BoolArray

    States = npt.NDArray[np.int8]

MOST_CELLS: Final = 128  # along a side of a drawing; beyond, cells are joined to blocks
MOST_SEQUENCES: Final = 4
MOST_PAIRS: Final = 5  # that are told in words
RULED: Final = 40  # cells along a side up to which they are kept apart by lines

# What a cell of a drawing can be; all but NONE are drawn.
NONE, FAINT, WEAK, STRONG, FULL, WILD, LEAK, DEAF, ASIDE = range(9)

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --box: #f3f5f7; --ink: #1c2128; --quiet: #525b66; --line: #8b949e;
  --good: #0f5c27; --bad: #9b1022; --link: #0a4da3;
  --faint: #7991c1; --weak: #5475b2; --strong: #345b9d; --full: #16335f;
  --leak: #b3152a; --wild: #6b3fa0; --aside: #9aa2ab;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0f1419; --box: #1a2129; --ink: #e4e9ee; --quiet: #a9b3bd; --line: #66707b;
    --good: #6fd08c; --bad: #ff9aa5; --link: #8cc0ff;
    --faint: #4a68a0; --weak: #6b8cc9; --strong: #97b5ea; --full: #d3e2ff;
    --leak: #ff8592; --wild: #c9a2f5; --aside: #5d6670;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere;
}
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2rem; }
h3 { font-size: 1.1rem; } h4 { font-size: 1rem; }
h1, h2, h3, h4 { line-height: 1.3; }
a { color: var(--link); }
.good { color: var(--good); } .bad { color: var(--bad); } .quiet { color: var(--quiet); }
code, pre { font: .9rem/1.45 ui-monospace, monospace; }
pre { background: var(--box); padding: .75rem; overflow-x: auto; overflow-wrap: normal; }
.finding { border-left: .25rem solid var(--bad); background: var(--box); }
.finding { padding: .1rem 1rem .5rem; margin: 1rem 0; }
.finding pre { background: var(--paper); }
.report { border-top: .15rem solid var(--line); margin-top: 2.5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; }
dt { color: var(--quiet); } dd { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; overflow-wrap: break-word; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0; }
th, td { border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.pair { display: flex; flex-wrap: wrap; gap: 1rem 2rem; }
figure { margin: 0; flex: 1 1 16rem; max-width: 30rem; }
figcaption { padding-top: .25rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-family: system-ui, sans-serif; }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; list-style: none; }
.key svg { display: inline-block; width: 1rem; height: 1rem; vertical-align: -.15rem; margin-right: .4rem; }
.s1 { fill: var(--faint); } .s2 { fill: var(--weak); } .s3 { fill: var(--strong); }
.s4 { fill: var(--full); } .s5 { fill: var(--wild); } .s6 { fill: var(--leak); }
.s7 { fill: var(--paper); } .s8 { fill: var(--aside); }
.frame { fill: none; stroke: var(--line); } .rule { fill: none; stroke: var(--paper); stroke-width: .06; }
.cross { fill: none; stroke: var(--paper); stroke-width: .16; }
.diamond { fill: none; stroke: var(--ink); stroke-width: .12; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
"""

# Marks are told by their form, so that no colour has to be known. Of the cell at {x}, {y}:
MARKS: Final = {
    LEAK: ("cross", "M{x}.2 {y}.2l.6.6m0-.6l-.6.6"),
    DEAF: ("diamond", "M{x}.5 {y}.2l.3.3-.3.3-.3-.3z"),
}


class Section(NamedTuple):
    """A report as a part of a page, in plain text, so that it can be sent to another process."""

    name: str
    ok: bool
    told: str
    body: str


def html_of(report: AuditReport) -> str:
    """The report as one page.

    >>> from maskwright.checks.report import AuditReport
    >>> page = html_of(AuditReport((), (), "causal()", passes=3, seconds=0.1, subject="Decoder"))
    >>> "<h1>" in page, "Decoder obeys causal()" in page
    (True, True)
    """
    return _page(_verdict(report), _body(report, 1, "r"))


def html_of_many(reports: Mapping[str, AuditReport]) -> str:
    """Several reports, by their names, as one page with a table of them."""
    return page_of([section_of(name, report) for name, report in reports.items()])


def section_of(name: str, report: AuditReport) -> Section:
    """A report as a part of a page of several."""
    return Section(name, report.ok, _verdict(report), _body(report, 2, _anchor(name), name))


def page_of(sections: Sequence[Section]) -> str:
    """One page of several parts."""
    wrong = sum(not section.ok for section in sections)
    rows = [
        f"<tr><td>{_sign(section.ok)}</td>"
        f'<td><a href="#{_anchor(section.name)}">{_text(section.name)}</a></td>'
        f"<td>{_text(section.told)}</td></tr>"
        for section in sections
    ]
    if not sections:
        told = "No model was audited."
    else:
        models = "1 audit" if len(sections) == 1 else f"{len(sections)} audits"
        told = f"{models}: {wrong or 'none'} found a model that does not obey its mask."
    parts = [
        f"<h1>Mask audits</h1><p>{told}</p>",
        _table("All audits", _head(("Verdict", "Audit", "Of")), rows) if sections else "",
        *(
            f'<section class="report" id="{_anchor(section.name)}">{section.body}</section>'
            for section in sections
        ),
    ]
    return _page("Mask audits", "\n".join(parts))


# ── the page ──────────────────────────────────────────────────────────────────────────────────


def _page(title: str, body: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_text(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
<footer><p class="quiet">maskwright {__version__}</p></footer>
</body>
</html>
"""


def _body(report: AuditReport, level: int, anchor: str, name: str = "") -> str:
    """A report, with headings from this level on."""
    verdict = f"{_sign(report.ok)} {_text(_verdict(report))}"
    parts = [
        f"<h{level}>{_text(name)}</h{level}><p>{verdict}</p>" if name else f"<h1>{verdict}</h1>"
    ]
    parts.append(f'<p class="quiet">{report.passes} passes, {report.seconds:.1f} s</p>')
    inner = f"h{level + 1}"
    if report.findings:
        parts.append(f"<{inner}>What is wrong</{inner}>")
        parts += [_finding(alike, level + 2) for alike in report.by_cause]
    parts.append(f"<{inner}>What was tried</{inner}>")
    parts.append(_answers(report.answers))
    parts.append(f"<{inner}>Expected and measured</{inner}>")
    parts += _drawings(report, anchor, level + 2)
    if report.trace is not None:
        parts.append(f"<{inner}>The masks that attention used</{inner}>")
        parts.append(_trace(report.trace))
    return "\n".join(parts)


def _verdict(report: AuditReport) -> str:
    return f"{report.subject} {'obeys' if report.ok else 'does not obey'} {report.expects}"


def _sign(ok: bool) -> str:
    kind, sign, word = ("good", "✓", "obeys") if ok else ("bad", "✗", "does not obey")
    return f'<span class="{kind}" role="img" aria-label="{word}">{sign}</span>'


def _finding(alike: Sequence[AuditFinding], level: int) -> str:
    """Findings of one cause: the first in full, and what else it was met as."""
    finding, *others = alike
    facts = [
        ("Cause", f"<code>{_text(finding.cause)}</code>: {_text(CAUSES.get(finding.cause, ''))}"),
        ("Fix", _text(finding.fix)),
        ("Layer", f"<code>{_text(finding.layer)}</code>" if finding.layer else ""),
        ("Mask used there", f"<code>{_text(finding.used)}</code>" if finding.used else ""),
        ("Where", _text(_where(finding))),
        ("Size", f"{finding.size:.3g}" if finding.size else ""),
        ("Found by", _text(finding.probe)),
    ]
    listed = "".join(f"<dt>{term}</dt><dd>{told}</dd>" for term, told in facts if told)
    return (
        f'<article class="finding"><h{level}>{_text(finding.message)}</h{level}>'
        f"<dl>{listed}</dl><p>To see it again:</p>"
        f'<pre tabindex="0"><code>{_text(finding.reproduce or _again(finding))}</code></pre>'
        f"{_also(others)}</article>"
    )


def _also(others: Sequence[AuditFinding]) -> str:
    if not others:
        return ""
    told = "".join(f"<li>{_text(other.probe)}: {_text(other.message)}</li>" for other in others)
    return f"<p>Also met as:</p><ul>{told}</ul>"


def _where(finding: AuditFinding) -> str:
    places = [("batch", finding.batch), ("output", finding.output), ("input", finding.input)]
    return ", ".join(f"{name} {at}" for name, at in places if at is not None)


def _again(finding: AuditFinding) -> str:
    probe = "" if finding.probe == "run" else f", probes=[{finding.probe!r}]"
    return (
        "import maskwright as mw\n"
        f"report = mw.audit(model, inputs, expects=expects{probe})\n"
        "report.assert_ok()"
    )


def _answers(answers: Iterable[Answer]) -> str:
    rows = []
    for answer in answers:
        told = "; ".join(part for part in (answer.tried, *answer.notes) if part)
        if answer.skipped:
            sign = '<span class="quiet">– not asked</span>'
        elif answer.troubles:
            sign = '<span class="bad">✗ fault</span>'
        else:
            sign = '<span class="good">✓ as it should</span>'
        worst = f"{answer.worst:.2g}" if answer.worst else "0"
        rows.append(
            f"<tr><td>{sign}</td>"
            f'<th scope="row">{_text(answer.probe)}</th><td>{_text(told)}</td>'
            f'<td class="number">{answer.passes}</td>'
            f'<td class="number">{"–" if answer.skipped else worst}</td></tr>'
        )
    names = ("Result", "Probe", "What it did", "Passes", "Largest movement where none may be")
    return _table("Every probe, and what came of it", _head(names), rows)


def _trace(trace: Any) -> str:
    rows = []
    for call in getattr(trace, "calls", ()):
        hidden = _of(call, "hidden_share")
        share = f"{hidden:.0%}" if isinstance(hidden, (int, float)) else "–"
        mask = _of(call, "mask_text") or _of(call, "mask")
        told = "a mask without a name" if mask is None else mask
        late = ", taken away after the softmax" if _of(call, "after_softmax") else ""
        flow = " → ".join(map(str, _of(call, "flow") or ()))
        cells = (_of(call, "kernel"), flow, _of(call, "convention"))
        rows.append(
            f'<tr><th scope="row"><code>{_text(_of(call, "layer") or "(model)")}</code></th>'
            + "".join(f"<td>{_text(cell or '–')}</td>" for cell in cells)
            + f'<td><code>{_text(told)}</code>{late}</td><td class="number">{share}</td></tr>'
        )
    names = ("Layer", "Computed by", "Shapes", "How the mask was told", "The mask", "Hidden")
    differ = "".join(f"<li>{_text(line)}</li>" for line in _of(trace, "differences") or ())
    table = _table("Every attention call of one pass, in order", _head(names), rows)
    return table + (f"<ul>{differ}</ul>" if differ else "")


def _of(call: Any, name: str) -> Any:
    """What a call holds; a mask that can't be read is no reason to have no page."""
    try:
        return getattr(call, name, None)
    except Exception:
        return None


def _table(caption: str, head: str, rows: Sequence[str]) -> str:
    return (
        f'<div class="scroll" role="region" aria-label="{_text(caption)}" tabindex="0"><table>'
        f"<caption>{_text(caption)}</caption><thead>{head}</thead><tbody>"
        + "\n".join(rows)
        + "</tbody></table></div>"
    )


def _head(names: Iterable[str]) -> str:
    return "<tr>" + "".join(f'<th scope="col">{name}</th>' for name in names) + "</tr>"


def _text(value: object) -> str:
    """Anything as text of a page: escaped, and without letters that a page can't hold."""
    told = (
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(value)
    )
    return html.escape("".join(told), quote=True)


def _anchor(name: str) -> str:
    return "r" + hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:12]


# ── the drawings ──────────────────────────────────────────────────────────────────────────────


def _drawings(report: AuditReport, anchor: str, level: int) -> list[str]:
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
