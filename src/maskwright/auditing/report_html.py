"""Audit reports as self-contained HTML pages, without scripts or external resources.

All text that comes from outside is escaped. Grids are drawn by `maskwright.draw`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from maskwright import __version__
from maskwright.auditing.probes import Status
from maskwright.draw import svg
from maskwright.draw.html import page
from maskwright.draw.scene import Grid, Kind, Scene, legend_of
from maskwright.draw.text import escape
from maskwright.linting.codes import meaning_of
from maskwright.messages import Reason, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from maskwright.auditing.probes import ProbeResult
    from maskwright.auditing.report import AuditFinding, AuditReport
    from maskwright.core.validate import BoolArray

STYLE: Final = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
MAX_CELLS: Final = 128  # along a side of a drawing; more are joined to blocks
MAX_SEQUENCES: Final = 4
MAX_PAIRS: Final = 5  # that are listed as text
SHADES: Final = ((1e-1, 1.0), (1e-2, 0.8), (1e-4, 0.6), (0.0, 0.4))  # above a share of the maximum


class Section(NamedTuple):
    """A report as a part of a page: plain text, which can be sent to another process."""

    name: str
    ok: bool
    verdict: str
    body: str


def report_page(report: AuditReport, lang: str = "en") -> str:
    """Renders a report as one page.

    Args:
        report: The report of an audit.
        lang: "en" or "zh".

    >>> from maskwright.auditing.report import AuditReport
    >>> html = report_page(AuditReport((), (), "causal()", passes=3, seconds=0.1, subject="Decoder"))
    >>> "<h1>" in html, "Decoder was not tested against causal()" in html
    (True, True)
    """
    return _page(report.verdict_in(lang), _body(report, 1, "r", lang), lang)


def report_section(name: str, report: AuditReport, lang: str = "en") -> Section:
    """Renders a report as a part of a page of several."""
    body = _body(report, 2, _anchor(name), lang, name)
    return Section(name, report.ok, report.verdict_in(lang), body)


def sections_page(sections: Sequence[Section], lang: str = "en") -> str:
    """Renders several reports as one page."""
    title = _words("title", lang)
    if not sections:
        return _page(title, f"<h1>{title}</h1><p>{_words('none', lang)}</p>", lang)
    wrong = sum(not section.ok for section in sections)
    rows = [
        f"<tr><td>{_sign(section.ok, lang)}</td>"
        f'<td><a href="#{_anchor(section.name)}">{_text(section.name)}</a></td>'
        f"<td>{_text(section.verdict)}</td></tr>"
        for section in sections
    ]
    count = _words("count", lang, count=len(sections), wrong=wrong)
    head = _head(("result", "audit", "verdict"), lang)
    parts = [
        f"<h1>{title}</h1><p>{count}</p>",
        _table(_words("all", lang), head, rows),
        *(
            f'<section class="report" id="{_anchor(section.name)}">{section.body}</section>'
            for section in sections
        ),
    ]
    return _page(title, "\n".join(parts), lang)


# ── a report ──────────────────────────────────────────────────────────────────────────────────


def _page(title: str, body: str, lang: str) -> str:
    footer = f'<footer><p class="quiet">maskwright {__version__}</p></footer>'
    body = f"<main>\n{body}\n</main>\n{footer}"
    return page(title, body, style=STYLE, lang=lang)


def _body(report: AuditReport, level: int, anchor: str, lang: str, name: str = "") -> str:
    """A report, with headings from this level on."""
    verdict = f"{_sign(report.ok, lang)} {_text(report.verdict_in(lang))}"
    parts = [
        f"<h{level}>{_text(name)}</h{level}><p>{verdict}</p>" if name else f"<h1>{verdict}</h1>"
    ]
    passes = _words("passes", lang, passes=report.passes, seconds=report.seconds)
    parts.append(f'<p class="quiet">{passes}</p>')
    inner = f"h{level + 1}"
    if report.findings:
        parts.append(f"<{inner}>{_words('findings', lang)}</{inner}>")
        parts += [_finding(group, level + 2, lang) for group in report.by_cause]
    parts.append(f"<{inner}>{_words('probes', lang)}</{inner}>")
    parts.append(_results(report.answers, lang))
    parts.append(f"<{inner}>{_words('influence', lang)}</{inner}>")
    parts += _drawings(report, anchor, lang)
    if report.trace is not None:
        parts.append(f"<{inner}>{_words('masks', lang)}</{inner}>")
        parts.append(_trace(report.trace, lang))
    return "\n".join(parts)


def _finding(group: Sequence[AuditFinding], level: int, lang: str) -> str:
    """Findings of one cause: the first in full, and the messages of the others."""
    finding, *others = group
    used = finding.rendered("used", lang)
    facts = [
        ("cause", f"<code>{_text(finding.cause)}</code>: {_text(meaning_of(finding.cause, lang))}"),
        ("remedy", _text(finding.rendered("fix", lang))),
        ("layer", f"<code>{_text(finding.layer)}</code>" if finding.layer else ""),
        ("used", f"<code>{_text(used)}</code>" if used else ""),
        ("location", _text(_location(finding, lang))),
        ("size", f"{finding.size:.3g}" if finding.size else ""),
        ("probe", _text(finding.probe)),
    ]
    listed = "".join(
        f"<dt>{_words(name, lang)}</dt><dd>{value}</dd>" for name, value in facts if value
    )
    code = finding.reproduce or _audit_code(finding)
    return (
        f'<article class="finding"><h{level}>{_text(finding.rendered("message", lang))}</h{level}>'
        f"<dl>{listed}</dl><p>{_words('reproduce', lang)}</p>"
        f'<pre tabindex="0"><code>{_text(code)}</code></pre>'
        f"{_others(others, lang)}</article>"
    )


def _others(others: Sequence[AuditFinding], lang: str) -> str:
    if not others:
        return ""
    listed = "".join(
        f"<li>{_text(other.probe)}: {_text(other.rendered('message', lang))}</li>"
        for other in others
    )
    return f"<p>{_words('also', lang)}</p><ul>{listed}</ul>"


def _location(finding: AuditFinding, lang: str) -> str:
    places = [
        ("batch_at", finding.batch),
        ("output_at", finding.output),
        ("input_at", finding.input),
    ]
    return ", ".join(_words(name, lang, index=at) for name, at in places if at is not None)


def _audit_code(finding: AuditFinding) -> str:
    probe = "" if finding.probe == "run" else f", probes=[{finding.probe!r}]"
    return (
        "import maskwright as mw\n"
        f"report = mw.audit(model, inputs, expects=expects{probe})\n"
        "report.assert_ok()"
    )


def _results(results: Iterable[ProbeResult], lang: str) -> str:
    rows = []
    for result in results:
        status = result.status
        style = {Status.FAILED: "bad", Status.PASSED: "good"}.get(status, "quiet")
        name = _text(render(Reason(f"audit.status.{status.value}"), lang))
        sign = f'<span class="{style}">{status.sign} {name}</span>'
        worst = f"{result.worst:.2g}" if result.worst else "0"
        rows.append(
            f"<tr><td>{sign}</td>"
            f'<th scope="row">{_text(result.probe)}</th>'
            f"<td>{_text(result.describe(lang))}</td>"
            f'<td class="number">{result.passes}</td>'
            f'<td class="number">{worst if status.conclusive and not result.skipped else "–"}</td></tr>'
        )
    names = ("result", "probe", "details", "num_passes", "worst")
    return _table(_words("all_probes", lang), _head(names, lang), rows)


def _trace(trace: Any, lang: str) -> str:
    rows = []
    for call in getattr(trace, "calls", ()):
        masked = _get(call, "masked_share")
        share = f"{masked:.0%}" if isinstance(masked, (int, float)) else "–"
        mask = _get(call, "mask_text") or _get(call, "mask")
        shown = _words("unrecognized", lang) if mask is None else _text(mask)
        late = _words("after_softmax", lang) if _get(call, "after_softmax") else ""
        flow = " → ".join(map(str, _get(call, "shapes") or ()))
        cells = (_get(call, "kernel"), flow, _get(call, "convention"))
        rows.append(
            f'<tr><th scope="row"><code>{_text(_get(call, "layer") or "(model)")}</code></th>'
            + "".join(f"<td>{_text(cell or '–')}</td>" for cell in cells)
            + f'<td><code>{shown}</code>{late}</td><td class="number">{share}</td></tr>'
        )
    head = _head(("layer", "kernel", "shapes", "encoding", "mask", "share"), lang)
    reasons = _get(trace, "difference_reasons")
    lines = _get(trace, "differences") if reasons is None else [render(r, lang) for r in reasons]
    differences = "".join(f"<li>{_text(line)}</li>" for line in lines or ())
    table = _table(_words("calls", lang), head, rows)
    return table + (f"<ul>{differences}</ul>" if differences else "")


def _get(call: Any, name: str) -> Any:
    """An attribute, or None: a mask that cannot be read must not prevent the page."""
    try:
        return getattr(call, name, None)
    except Exception:
        return None


# ── drawings ──────────────────────────────────────────────────────────────────────────────────


def _drawings(report: AuditReport, anchor: str, lang: str) -> list[str]:
    """The expected and the measured influence of the first sequences."""
    if report.allowed is None:
        return [f"<p>{_words('no_run', lang)}</p>"]
    if not report.allowed.size:
        return [f"<p>{_words('no_positions', lang)}</p>"]
    batch, outputs, inputs = report.allowed.shape
    scenes = influence_scenes(report, lang)
    about = [_words("rows", lang, outputs=outputs, inputs=inputs)]
    size = _block_size(outputs, inputs)
    if size > 1:
        about.append(_words("blocks", lang, size=size))
    if batch > len(scenes):
        about.append(_words("first", lang, shown=len(scenes), batch=batch))
    if not _is_measured(report):
        about.append(_words("not_measured", lang))
    figures = []
    for b, scene in enumerate(scenes):
        picture = svg.draw(scene, tooltips=False)
        drawn = picture.text.replace(picture.name, f"{anchor}-{b}")  # ids that are unique in a page
        caption = f"<figcaption>{_text(scene.description)}{_differences(report, b, lang)}"
        figures.append(f'<figure class="scroll">{drawn}{caption}</figcaption></figure>')
    return [f"<p>{' '.join(about)}</p>", *figures]


def influence_scenes(report: AuditReport, lang: str = "en") -> list[Scene]:
    """For each of the first sequences, the expected and, if known, the measured influence.

    >>> import torch, maskwright as mw
    >>> report = mw.audit(lambda x: x.cumsum(1), torch.randn(1, 4, 2), expects="causal")
    >>> influence_scenes(report)[0].grids[0].kinds[1]
    array([2, 2, 0, 0], dtype=uint8)
    """
    assert report.allowed is not None
    measured = _is_measured(report)
    scenes = []
    for b in range(min(len(report.allowed), MAX_SEQUENCES)):
        grids = [_expected_grid(report.allowed[b], lang)]
        allowed = report.allowed[b]
        about = [_words("expected_share", lang, count=int(allowed.sum()), total=allowed.size)]
        if measured:
            grids.append(_measured_grid(report, b, lang))
            moved, leaks, lost = _compare(report, b)
            counts = {"moved": int(moved.sum()), "leaks": int(leaks.sum()), "lost": int(lost.sum())}
            about.append(_words("measured_share", lang, **counts, total=moved.size))
        scenes.append(
            Scene(
                _words("sequence", lang, index=b),
                tuple(grids),
                legend=legend_of(tuple(grids), _legend(lang)),
                description=" ".join(about),
            )
        )
    return scenes


def _expected_grid(allowed: BoolArray, lang: str) -> Grid:
    size = _block_size(*allowed.shape)
    some, every = _reduced(np.maximum, allowed, size), _reduced(np.minimum, allowed, size)
    kinds = np.where(every, Kind.VISIBLE, np.where(some, Kind.PARTIAL, Kind.MASKED)).astype(
        np.uint8
    )
    shades = np.where(kinds == Kind.PARTIAL, 0.5, 1.0)
    return _grid("expected", kinds, shades, allowed.shape, lang)


def _measured_grid(report: AuditReport, b: int, lang: str) -> Grid:
    assert report.measured is not None
    assert report.allowed is not None
    measured = np.asarray(report.measured[b], np.float64)
    size = _block_size(*measured.shape)
    _, leaks, lost = _compare(report, b)
    finite = np.isfinite(report.measured)
    top = float(report.measured[finite].max()) if finite.any() else 0.0
    share = _reduced(np.maximum, np.where(np.isfinite(measured), measured, 0.0), size)
    share = share / (top or 1.0)
    shades = np.select(
        [share > 0 if low == 0 else share >= low for low, _ in SHADES],
        [shade for _, shade in SHADES],
        0.0,
    )
    kinds = np.where(share > 0, Kind.VISIBLE, Kind.MASKED).astype(np.uint8)
    untested = np.repeat(~_judged(report)[b][:, None], measured.shape[1], 1)
    not_finite = _reduced(np.maximum, ~np.isfinite(measured), size)
    for kind, where in (
        (Kind.FIRST_ONLY, not_finite),
        (Kind.PARTIAL, _reduced(np.minimum, untested, size) & ((share > 0) | not_finite)),
        (Kind.SECOND_ONLY, _reduced(np.maximum, lost, size) & (kinds == Kind.MASKED) & ~not_finite),
        (Kind.BOTH_DIFFER, _reduced(np.maximum, leaks, size)),
    ):
        kinds[where] = kind
    shades = np.where(kinds == Kind.VISIBLE, shades, np.where(kinds == Kind.PARTIAL, 0.5, 1.0))
    return _grid("measured", kinds, shades, measured.shape, lang)


def _grid(
    name: str,
    kinds: npt.NDArray[np.uint8],
    shades: npt.NDArray[np.float64],
    extent: tuple[int, ...],
    lang: str,
) -> Grid:
    size = _block_size(*extent)
    return Grid(
        kinds,
        _words(name, lang),
        shades,
        block=(size, size),
        extent=(extent[0], extent[1]),
        row_name=_words("output", lang),
        column_name=_words("input", lang),
    )


def _legend(lang: str) -> dict[Kind, str]:
    names = {
        Kind.VISIBLE: "visible",
        Kind.MASKED: "masked",
        Kind.PARTIAL: "partly",
        Kind.BOTH_DIFFER: "leak",
        Kind.SECOND_ONLY: "lost",
        Kind.FIRST_ONLY: "not_finite",
    }
    return {kind: _words(f"key.{name}", lang) for kind, name in names.items()}


def _is_measured(report: AuditReport) -> bool:
    allowed, measured = report.allowed, report.measured
    return allowed is not None and measured is not None and measured.shape == allowed.shape


def _judged(report: AuditReport) -> BoolArray:
    assert report.allowed is not None
    if report.judged is None or report.judged.shape != report.allowed.shape[:2]:
        return np.ones(report.allowed.shape[:2], np.bool_)
    return report.judged


def _compare(report: AuditReport, b: int) -> tuple[BoolArray, BoolArray, BoolArray]:
    """The pairs of a sequence that depend; of these the masked; and the visible that do not."""
    assert report.allowed is not None
    assert report.measured is not None
    allowed, measured, judged = report.allowed[b], report.measured[b], _judged(report)[b]
    moved = (measured > 0) | ~np.isfinite(measured)
    return moved, moved & ~allowed & judged[:, None], allowed & ~moved & judged[:, None]


def _differences(report: AuditReport, b: int, lang: str) -> str:
    if not _is_measured(report):
        return ""
    _, leaks, lost = _compare(report, b)
    listed = [
        _words(name, lang, output=int(i), input=int(j))
        for name, cells in (("leak", leaks), ("lost", lost))
        for i, j in np.argwhere(cells)[:MAX_PAIRS]
    ]
    left = int(leaks.sum() + lost.sum()) - len(listed)
    if left > 0:
        listed.append(_words("more", lang, count=left))
    if not listed:
        return f" {_words('as_expected', lang)}"
    return "<ul>" + "".join(f"<li>{line}</li>" for line in listed) + "</ul>"


def _block_size(rows: int, columns: int) -> int:
    """Number of positions per cell, along each side."""
    return max(1, -(-max(rows, columns) // MAX_CELLS))


def _reduced(by: np.ufunc, cells: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    if size == 1:
        return cells
    rows, columns = (np.arange(0, length, size) for length in cells.shape)
    return np.asarray(by.reduceat(by.reduceat(cells, rows, 0), columns, 1))


# ── HTML ──────────────────────────────────────────────────────────────────────────────────────


def _words(name: str, lang: str, **params: Any) -> str:
    """A text of the page."""
    return _text(render(Reason(f"audit.html.{name}", params), lang))


def _sign(ok: bool, lang: str) -> str:
    style, sign = ("good", "✓") if ok else ("bad", "✗")
    label = _words("ok" if ok else "wrong", lang)
    return f'<span class="{style}" role="img" aria-label="{label}">{sign}</span>'


def _table(caption: str, head: str, rows: Sequence[str]) -> str:
    return (
        f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0"><table>'
        f"<caption>{caption}</caption><thead>{head}</thead><tbody>"
        + "\n".join(rows)
        + "</tbody></table></div>"
    )


def _head(names: Iterable[str], lang: str) -> str:
    cells = "".join(f'<th scope="col">{_words(name, lang)}</th>' for name in names)
    return f"<tr>{cells}</tr>"


def _text(value: object) -> str:
    """Text for HTML: escaped, without characters that a page may not contain."""
    return escape(str(value))


def _anchor(name: str) -> str:
    return "r" + hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:12]
