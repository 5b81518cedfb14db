"""The page of an audit: what it says, what it draws, and that it is sound HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.auditing.probes.answer import Answer, Trouble, skip
from maskwright.auditing.report import AuditFinding, AuditReport
from maskwright.auditing.report_drawings import drawings
from maskwright.auditing.report_html import html_of, page_of, section_of
from maskwright.auditing.report_style import STYLE

VOID = {"meta", "br", "hr", "img", "link", "input"}
HOSTILE = "<script>alert('1')</script> & \" </style>"


def html_of_many(reports: dict[str, AuditReport]) -> str:
    return page_of([section_of(name, one) for name, one in reports.items()])


class Page(HTMLParser):
    """A page as it is read: its elements with what they hold, and whether all were closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._within: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held: list[str] = []
        self.elements.append((tag, {name: value or "" for name, value in attrs}, held))
        if tag not in VOID:
            self.open.append(tag)
            self._within.append(held)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._within.pop()

    def handle_data(self, data: str) -> None:
        for held in self._within:
            held.append(data)

    def all(self, tag: str, **attributes: str) -> list[tuple[dict[str, str], str]]:
        return [
            (own, " ".join("".join(held).split()))
            for name, own, held in self.elements
            if name == tag and all(own.get(key) == value for key, value in attributes.items())
        ]

    def words(self, tag: str) -> list[str]:
        return [text for _, text in self.all(tag)]


def finding(**changes: Any) -> AuditFinding:
    given = {
        "probe": "leak",
        "message": "position 0 depends on position 1 (batch 0)",
        "cause": "mask-missing",
        "fix": "Pass the mask to attention.",
        "layer": "layers.0.attn",
        "used": "everything()",
        "batch": 0,
        "output": 0,
        "input": 1,
        "size": 0.25,
        "reproduce": "import maskwright as mw\nfound = mw.influence(model, inputs)\nprint(found)",
    }
    return AuditFinding(**{**given, **changes})


def report(*findings: AuditFinding, **changes: Any) -> AuditReport:
    answers = (
        Answer("leak", "3 sets changed", [Trouble("leak", "leak", "…")] if findings else []),
        skip("steps", "no cache is known of"),
    )
    given = {"answers": answers, "expects": "causal()", "passes": 12, "seconds": 0.5}
    return AuditReport(findings, **{**given, "subject": "Decoder", **changes})


def causal_cells(length: int, batch: int = 1) -> np.ndarray:
    return np.broadcast_to(np.tri(length, dtype=bool), (batch, length, length))


# ── what it says ──────────────────────────────────────────────────────────────────────────────


def test_a_healthy_model_obeys() -> None:
    page = Page(html_of(report()))
    assert page.words("h1") == ["✓ Decoder obeys causal()"]
    assert page.words("title") == ["Decoder obeys causal()"]
    assert page.words("article") == []


def test_a_finding_is_told_whole() -> None:
    page = Page(html_of(report(finding())))
    assert page.words("h1") == ["✗ Decoder does not obey causal()"]
    told = dict(zip(page.words("dt"), page.words("dd"), strict=True))
    assert told == {
        "Cause": "mask-missing: no mask is applied",
        "Fix": "Pass the mask to attention.",
        "Layer": "layers.0.attn",
        "Mask used there": "everything()",
        "Where": "batch 0, output 0, input 1",
        "Size": "0.25",
        "Found by": "leak",
    }
    assert "position 0 depends on position 1 (batch 0)" in page.words("h3")
    assert "found = mw.influence(model, inputs)" in page.words("pre")[0]


def test_what_is_not_known_is_left_out() -> None:
    bare = AuditFinding("steps", "differs", "step-differs", "Look.")
    page = Page(html_of(report(bare)))
    assert page.words("dt") == ["Cause", "Fix", "Found by"]
    assert 'probes=["steps"]' in page.words("pre")[0].replace("'", '"')
    assert "probes" not in Page(html_of(report(finding(probe="run", reproduce="")))).words("pre")[0]


def test_every_probe_has_a_row() -> None:
    page = Page(html_of(report(finding())))
    assert "Every probe, and what came of it" in page.words("caption")
    rows = page.words("tr")
    assert any("✗ fault" in row and "3 sets changed" in row for row in rows)
    assert any("– not asked" in row and "no cache is known of" in row for row in rows)


def test_the_trace_is_a_table() -> None:
    class Broken:
        layer, kernel, convention, hidden_share = "layers.1", "softmax", None, 0.5

        @property
        def mask(self) -> str:
            raise ValueError("can't be read")

    calls = (
        SimpleNamespace(
            layer="layers.0",
            kernel="sdpa",
            convention="is_causal",
            hidden_share=0.375,
            mask="causal()",
        ),
        Broken(),
    )
    page = Page(html_of(report(trace=SimpleNamespace(calls=calls))))
    rows = page.words("tr")
    assert any(
        all(word in row for word in ("layers.0", "sdpa", "is_causal", "causal()", "38%"))
        for row in rows
    )
    assert any("layers.1" in row and "a mask without a name" in row for row in rows)


def test_without_a_trace_there_is_no_table_of_it() -> None:
    assert "The masks that attention used" not in html_of(report())


# ── that it is sound ──────────────────────────────────────────────────────────────────────────


def hostile_report() -> AuditReport:
    found = finding(
        message=HOSTILE, cause=HOSTILE, fix=HOSTILE, layer=HOSTILE, used=HOSTILE, reproduce=HOSTILE
    )
    call = SimpleNamespace(
        layer=HOSTILE, kernel=HOSTILE, convention=HOSTILE, hidden_share=0.0, mask=HOSTILE
    )
    return report(
        found,
        subject=HOSTILE,
        expects=HOSTILE,
        answers=(Answer(HOSTILE, HOSTILE, notes=[HOSTILE]),),
        trace=SimpleNamespace(calls=(call,), differences=(HOSTILE,)),
    )


def test_whatever_comes_from_outside_is_escaped() -> None:
    for text in (html_of(hostile_report()), html_of_many({HOSTILE: hostile_report()})):
        page = Page(text)
        assert not page.all("script")
        assert len(page.all("style")) == 1
        assert HOSTILE in page.words("h1")[0] or HOSTILE in page.words("h2")[0]
        assert page.words("pre") == [HOSTILE]


def test_letters_that_no_page_can_hold_are_replaced() -> None:
    text = html_of(report(finding(message="a\0b\x1b[31m\ud800")))
    assert "a\N{REPLACEMENT CHARACTER}b" in text
    text.encode()


def test_nothing_is_fetched() -> None:
    page = Page(html_of_many({"one": report(finding()), "two": report()}))
    assert not {name for name, *_ in page.elements} & {"script", "link", "img", "iframe", "object"}
    for _, attributes, _ in page.elements:
        assert not {"src", "srcset", "onload", "onclick"} & set(attributes)
        assert attributes.get("href", "#").startswith("#")
    assert "url(" not in STYLE
    assert "@import" not in STYLE


def test_headings_are_in_order_and_ids_are_single() -> None:
    cells = causal_cells(4, 2)
    one = report(finding(), allowed=cells, measured=cells.astype(float))
    for text in (html_of(one), html_of_many({"one": one, "two": one})):
        page = Page(text)
        levels = [int(name[1]) for name, *_ in page.elements if re.fullmatch(r"h\d", name)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b <= a + 1 for a, b in pairwise(levels))
        ids = [own["id"] for _, own, _ in page.elements if "id" in own]
        assert len(ids) == len(set(ids))
        named = [own for _, own, _ in page.elements if "aria-labelledby" in own]
        assert named
        for own in named:
            assert set(own["aria-labelledby"].split()) <= set(ids)


def test_drawings_and_tables_have_words() -> None:
    cells = causal_cells(4)
    page = Page(html_of(report(finding(), allowed=cells, measured=cells.astype(float))))
    for own, text in page.all("svg"):
        assert own.get("aria-hidden") == "true" or (own["role"] == "img" and text)
    assert len(page.all("table")) == len(page.all("caption"))
    assert page.all("html", lang="en")
    assert page.all("meta", name="viewport")


def colours(part: str) -> dict[str, str]:
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", part))


def brightness(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((brightness(one), brightness(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_marks_stand_out(theme: str) -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    known = colours(light) if theme == "light" else colours(dark)
    assert set(known) == set(colours(light))
    for text in ("ink", "quiet", "good", "bad", "link"):
        assert contrast(known[text], known["paper"]) >= 4.5
        assert contrast(known[text], known["box"]) >= 4.5
    assert contrast(known["leak"], known["paper"]) >= 4.5  # the cross on its cell
    for drawn in ("line", "faint", "weak", "strong", "full", "wild"):
        assert contrast(known[drawn], known["paper"]) >= 3
    order = [brightness(known[level]) for level in ("faint", "weak", "strong", "full")]
    assert order == sorted(order, reverse=theme == "light")


def test_it_fits_a_narrow_window() -> None:
    page = Page(html_of(report(finding())))
    assert "@media (max-width" in STYLE
    for own, _ in page.all("div", role="region"):
        assert own["class"] == "scroll"
        assert own["tabindex"] == "0"


# ── what it draws ─────────────────────────────────────────────────────────────────────────────


def drawn(page: str, title: str, kind: str, shape: tuple[int, int], nth: int = 0) -> np.ndarray:
    """The cells of one kind in the nth drawing of this title, read back from its path."""
    figures = re.findall(rf"<figure><svg[^>]*><title[^>]*>{title}<.*?</figure>", page, re.S)
    found = np.zeros(shape, bool)
    path = re.search(rf'class="{kind}"[^>]* d="([^"]*)"', figures[nth])
    if path is None:
        return found
    if kind in ("cross", "diamond"):
        at = r"M(\d+)\.\d (\d+)\.\d"
        for x, y in re.findall(at, path[1]):
            found[int(y), int(x)] = True
        return found
    for x, y, wide in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", path[1]):
        found[int(y), int(x) : int(x) + int(wide)] = True
    return found


def test_both_masks_are_drawn_and_what_differs_is_marked() -> None:
    allowed = causal_cells(6)
    measured = np.where(allowed, 1.0, 0.0)
    measured[0, 1, 4] = 0.05
    measured[0, 5, 0] = 0.0
    page = html_of(report(finding(), allowed=allowed, measured=measured))
    assert np.array_equal(drawn(page, "Expected", "s4", (6, 6)), allowed[0])
    leak, deaf = np.zeros((6, 6), bool), np.zeros((6, 6), bool)
    leak[1, 4] = deaf[5, 0] = True
    assert np.array_equal(drawn(page, "Measured", "cross", (6, 6)), leak)
    assert np.array_equal(drawn(page, "Measured", "s6", (6, 6)), leak)
    assert np.array_equal(drawn(page, "Measured", "diamond", (6, 6)), deaf)
    assert np.array_equal(drawn(page, "Measured", "s4", (6, 6)), allowed[0] & ~deaf)
    assert "Output 1 moved with input 4, which is hidden from it." in page
    assert "Output 5 may see input 0, and did not move with it." in page


def test_how_far_it_moved_is_told_by_shades() -> None:
    allowed = np.ones((1, 1, 5), bool)
    measured = np.array([[[10.0, 0.5, 0.01, 1e-7, np.nan]]])
    page = html_of(report(allowed=allowed, measured=measured))
    for n, kind in enumerate(("s4", "s3", "s2", "s1", "s5")):
        cells = drawn(page, "Measured", kind, (1, 5))
        assert np.flatnonzero(cells[0]).tolist() == [n]
    assert "Measured as expected." in page


def test_outputs_that_are_not_judged_are_not_marked() -> None:
    allowed, measured = causal_cells(3), np.ones((1, 3, 3))
    judged = np.array([[True, True, False]])
    given = SimpleNamespace(allowed=allowed & judged[:, None, :], measured=measured, judged=judged)
    text = "".join(drawings(given, "r", 3))  # type: ignore[arg-type]
    crosses = drawn(text, "Measured", "cross", (3, 3))
    assert crosses[:2].any()
    assert not crosses[2].any()
    assert drawn(text, "Measured", "s8", (3, 3))[2].all()
    assert "which is not judged" in text


def test_at_most_four_sequences_are_drawn() -> None:
    cells = causal_cells(3, 9)
    page = Page(html_of(report(allowed=cells, measured=cells.astype(float))))
    assert len(page.all("figure")) == 8
    assert "The first 4 of 9 sequences are shown." in " ".join(page.words("p"))


def test_long_sequences_are_drawn_in_blocks() -> None:
    allowed = causal_cells(300)
    measured = allowed.astype(float)
    measured[0, 0, 299] = 1.0
    page = html_of(report(finding(), allowed=allowed, measured=measured))
    assert "a block of 3 × 3" in page
    below = np.tri(100, k=-1, dtype=bool)
    assert np.array_equal(drawn(page, "Expected", "s4", (100, 100)), below)
    assert np.array_equal(drawn(page, "Expected", "s2", (100, 100)), np.eye(100, dtype=bool))
    crosses = drawn(page, "Measured", "cross", (100, 100))
    assert np.argwhere(crosses).tolist() == [[0, 99]]


def test_a_large_page_stays_small() -> None:
    allowed = causal_cells(128, 4)
    noisy = np.random.default_rng(0).random(allowed.shape)
    assert len(html_of(report(finding(), allowed=allowed, measured=noisy))) < 3_000_000


def test_what_was_not_measured_is_said() -> None:
    page = Page(html_of(report(allowed=causal_cells(4))))
    assert "was not measured" in " ".join(page.words("p"))
    assert len(page.all("figure")) == 1
    other = report(allowed=causal_cells(4), measured=np.zeros((1, 4, 5)))
    assert "was not measured" in html_of(other)


def test_there_may_be_nothing_to_draw() -> None:
    assert "There is nothing to draw" in html_of(report())
    empty = np.zeros((1, 0, 0))
    assert "no positions" in html_of(report(allowed=empty.astype(bool), measured=empty))


# ── several, and files ────────────────────────────────────────────────────────────────────────


def test_several_reports_are_one_page() -> None:
    page = Page(html_of_many({"tests/a.py::test_b": report(finding()), "test_c": report()}))
    assert page.words("h2") == ["tests/a.py::test_b", "test_c"]
    assert "2 audits: 1 found a model that does not obey its mask." in page.words("p")
    links = [own["href"].removeprefix("#") for own, _ in page.all("a")]
    assert links == [own["id"] for own, _ in page.all("section")]


def test_no_report_is_a_page_too() -> None:
    page = Page(html_of_many({}))
    assert "No model was audited." in page.words("p")
    assert not page.all("table")


def test_a_real_report_becomes_a_page() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    found = mw.audit(lambda x: x.flip(1), torch.randn(2, 6, 4), expects="causal")
    page = Page(html_of(found))
    assert page.words("h1") == ["✗ model does not obey causal()"]
    assert page.words("article")
    assert found.to_html() == html_of(found)


def test_who_was_asked_nothing_is_not_said_to_obey() -> None:
    given = torch.randn(2, 4, 3)
    report = mw.audit(torch.relu, given, expects=mw.everything(), probes=["leak"])
    assert str(report).startswith("relu was not asked to obey everything()")
    assert "was not asked to obey" in report.to_html()
