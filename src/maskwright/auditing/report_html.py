"""An audit's report as one page of HTML, for a browser: no scripts, and nothing from elsewhere.

What may enter here: what a report holds, in words and tables. Nothing is judged here, and all
that comes from outside is escaped.
"""

from __future__ import annotations

import hashlib
import html
from typing import TYPE_CHECKING, Any, NamedTuple

from maskwright._version import __version__
from maskwright.auditing.report_drawings import drawings
from maskwright.auditing.report_style import STYLE
from maskwright.linting.codes import meaning_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maskwright.auditing.probes.answer import Answer
    from maskwright.auditing.report import AuditFinding, AuditReport


class Section(NamedTuple):
    """A report as a part of a page, in plain text, so that it can be sent to another process."""

    name: str
    ok: bool
    told: str
    body: str


def html_of(report: AuditReport) -> str:
    """The report as one page.

    >>> from maskwright.auditing.report import AuditReport
    >>> page = html_of(AuditReport((), (), "causal()", passes=3, seconds=0.1, subject="Decoder"))
    >>> "<h1>" in page, "Decoder obeys causal()" in page
    (True, True)
    """
    return _page(report.verdict, _body(report, 1, "r"))


def section_of(name: str, report: AuditReport) -> Section:
    """A report as a part of a page of several."""
    return Section(name, report.ok, report.verdict, _body(report, 2, _anchor(name), name))


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
    verdict = f"{_sign(report.ok)} {_text(report.verdict)}"
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
    parts += drawings(report, anchor, level + 2)
    if report.trace is not None:
        parts.append(f"<{inner}>The masks that attention used</{inner}>")
        parts.append(_trace(report.trace))
    return "\n".join(parts)


def _sign(ok: bool) -> str:
    kind, sign, word = ("good", "✓", "obeys") if ok else ("bad", "✗", "does not obey")
    return f'<span class="{kind}" role="img" aria-label="{word}">{sign}</span>'


def _finding(alike: Sequence[AuditFinding], level: int) -> str:
    """Findings of one cause: the first in full, and what else it was met as."""
    finding, *others = alike
    facts = [
        (
            "Cause",
            f"<code>{_text(finding.cause)}</code>: {_text(meaning_of(finding.cause))}",
        ),
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
