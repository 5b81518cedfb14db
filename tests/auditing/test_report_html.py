"""The HTML page of an audit: its text, its drawings, and that it is valid and safe HTML."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.auditing.probes import Failure, ProbeResult, Symptom, skip
from maskwright.auditing.report import AuditFinding, AuditReport
from maskwright.auditing.report_html import (
    STYLE,
    influence_scenes,
    report_page,
    report_section,
    sections_page,
)
from maskwright.draw.palette import DARK, LIGHT
from maskwright.draw.scene import Kind
from maskwright.messages import Reason
from tests._helpers.html_page import Page

HOSTILE = "<script>alert('1')</script> & \" </style>"


def page_of_many(reports: dict[str, AuditReport]) -> str:
    return sections_page([report_section(name, one) for name, one in reports.items()])


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
    tried = Reason("audit.leak.tried", {"count": 3, "share": 1.0})
    failure = Failure("leak", Symptom.LEAK, Reason("audit.reach.ignored"))
    leak = ProbeResult("leak", failures=[failure] if findings else [])
    leak.add_case(tried)
    answers = (
        leak,
        skip("steps", "audit.steps.no_cache"),
    )
    given = {"answers": answers, "expected": "causal()", "passes": 12, "seconds": 0.5}
    return AuditReport(findings, **{**given, "subject": "Decoder", **changes})


def causal_cells(length: int, batch: int = 1) -> np.ndarray:
    return np.broadcast_to(np.tri(length, dtype=bool), (batch, length, length))


# ── what it says ──────────────────────────────────────────────────────────────────────────────


def test_a_healthy_model_respects_its_mask() -> None:
    page = Page(report_page(report()))
    assert page.words("h1") == ["✓ Decoder respects causal()"]
    assert page.words("title") == ["Decoder respects causal()"]
    assert page.words("article") == []


def test_a_finding_is_told_whole() -> None:
    page = Page(report_page(report(finding())))
    assert page.words("h1") == ["✗ Decoder does not respect causal()"]
    told = dict(zip(page.words("dt"), page.words("dd"), strict=True))
    assert told == {
        "Cause": "mask-missing: no mask is applied",
        "Fix": "Pass the mask to attention.",
        "Layer": "layers.0.attn",
        "Mask used": "everything()",
        "Location": "batch 0, output 0, input 1",
        "Size": "0.25",
        "Probe": "leak",
    }
    assert "position 0 depends on position 1 (batch 0)" in page.words("h3")
    assert "found = mw.influence(model, inputs)" in page.words("pre")[0]


def test_what_is_not_known_is_left_out() -> None:
    bare = AuditFinding("steps", "differs", "step-differs", "Look.")
    page = Page(report_page(report(bare)))
    assert page.words("dt") == ["Cause", "Fix", "Probe"]
    assert 'probes=["steps"]' in page.words("pre")[0].replace("'", '"')
    assert (
        "probes"
        not in Page(report_page(report(finding(probe="run", reproduce="")))).words("pre")[0]
    )


def test_every_probe_has_a_row() -> None:
    page = Page(report_page(report(finding())))
    assert "All probes" in page.words("caption")
    rows = page.words("tr")
    assert any("✗ failed" in row and "3 sets" in row for row in rows)
    assert any("– not applicable" in row and "returns no cache" in row for row in rows)


def test_the_trace_is_a_table() -> None:
    class Broken:
        layer, kernel, convention, masked_share = "layers.1", "softmax", None, 0.5

        @property
        def mask(self) -> str:
            raise ValueError("can't be read")

    calls = (
        SimpleNamespace(
            layer="layers.0",
            kernel="sdpa",
            convention="is_causal",
            masked_share=0.375,
            mask="causal()",
        ),
        Broken(),
    )
    page = Page(report_page(report(trace=SimpleNamespace(calls=calls))))
    rows = page.words("tr")
    assert any(
        all(word in row for word in ("layers.0", "sdpa", "is_causal", "causal()", "38%"))
        for row in rows
    )
    assert any("layers.1" in row and "unrecognized" in row for row in rows)


def test_without_a_trace_there_is_no_table_of_it() -> None:
    assert "Masks used by attention" not in report_page(report())


# ── that it is sound ──────────────────────────────────────────────────────────────────────────


def hostile_report() -> AuditReport:
    found = finding(
        message=HOSTILE, cause=HOSTILE, fix=HOSTILE, layer=HOSTILE, used=HOSTILE, reproduce=HOSTILE
    )
    call = SimpleNamespace(
        layer=HOSTILE, kernel=HOSTILE, convention=HOSTILE, masked_share=0.0, mask=HOSTILE
    )
    return report(
        found,
        subject=HOSTILE,
        expected=HOSTILE,
        answers=(
            ProbeResult(
                HOSTILE,
                Reason("audit.variant.custom", {"name": HOSTILE}),
                notes=[Reason("audit.not_run", {"case": HOSTILE, "error": HOSTILE})],
            ),
        ),
        trace=SimpleNamespace(calls=(call,), differences=(HOSTILE,)),
    )


def test_whatever_comes_from_outside_is_escaped() -> None:
    for text in (report_page(hostile_report()), page_of_many({HOSTILE: hostile_report()})):
        page = Page(text)
        assert not page.all("script")
        assert len(page.all("style")) == 1
        assert HOSTILE in page.words("h1")[0] or HOSTILE in page.words("h2")[0]
        assert page.words("pre") == [HOSTILE]


def test_letters_that_no_page_can_hold_are_replaced() -> None:
    text = report_page(report(finding(message="a\0b\x1b[31m\ud800")))
    assert "a\0b" not in text
    assert "\x1b" not in text
    text.encode()


def test_nothing_is_fetched() -> None:
    page = Page(page_of_many({"one": report(finding()), "two": report()}))
    assert not {name for name, *_ in page.elements} & {"script", "link", "img", "iframe", "object"}
    for _, attributes, _ in page.elements:
        assert not {"src", "srcset", "onload", "onclick"} & set(attributes)
        assert attributes.get("href", "#").startswith("#")
    assert "url(" not in STYLE  # only patterns of the same page, by #id, in drawings
    assert "@import" not in STYLE


def test_headings_are_in_order_and_ids_are_single() -> None:
    cells = causal_cells(4, 2)
    one = report(finding(), allowed=cells, measured=cells.astype(float))
    for text in (report_page(one), page_of_many({"one": one, "two": one})):
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
    page = Page(report_page(report(finding(), allowed=cells, measured=cells.astype(float))))
    for own, text in page.all("svg"):
        assert own.get("aria-hidden") == "true" or (own["role"] == "img" and text)
    assert len(page.all("table")) == len(page.all("caption"))
    assert page.all("html", lang="en")
    assert page.all("meta", name="viewport")


def colours(theme: str) -> dict[str, str]:
    light, dark = re.findall(r":root\{([^}]*)\}", report_page(report()))
    return dict(re.findall(r"--(\w+):(#[0-9a-f]{6})", light if theme == "light" else dark))


def brightness(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((brightness(one), brightness(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_marks_have_contrast(theme: str) -> None:
    known = colours(theme)
    for name in ("text", "faint", "good", "bad", "link"):
        assert contrast(known[name], known["ground"]) >= 4.5, name
        assert contrast(known[name], known["box"]) >= 4.5, name
    kinds = (LIGHT if theme == "light" else DARK).kinds
    for kind in (Kind.VISIBLE, Kind.SECOND_ONLY, Kind.BOTH_DIFFER):  # visible, no dependence, leak
        assert contrast(kinds[kind], known["ground"]) >= 3, kind
        assert contrast(kinds[kind], kinds[Kind.MASKED]) >= 3, kind


def test_it_fits_a_narrow_window() -> None:
    page = Page(report_page(report(finding())))
    assert "@media (max-width" in STYLE
    for own, _ in page.all("div", role="region"):
        assert own["class"] == "scroll"
        assert own["tabindex"] == "0"


# ── what it draws ─────────────────────────────────────────────────────────────────────────────


def kinds(found: AuditReport, grid: str, b: int = 0) -> np.ndarray:
    """The cells of the expected or the measured grid of a sequence."""
    return influence_scenes(found)[b].grids[("expected", "measured").index(grid)].kinds


def test_both_masks_are_drawn_and_differences_are_marked() -> None:
    allowed = causal_cells(6)
    measured = np.where(allowed, 1.0, 0.0)
    measured[0, 1, 4] = 0.05
    measured[0, 5, 0] = 0.0
    found = report(finding(), allowed=allowed, measured=measured)
    assert np.array_equal(kinds(found, "expected") == Kind.VISIBLE, allowed[0])
    leak, lost = np.zeros((6, 6), bool), np.zeros((6, 6), bool)
    leak[1, 4] = lost[5, 0] = True
    assert np.array_equal(kinds(found, "measured") == Kind.BOTH_DIFFER, leak)
    assert np.array_equal(kinds(found, "measured") == Kind.SECOND_ONLY, lost)
    assert np.array_equal(kinds(found, "measured") == Kind.VISIBLE, allowed[0] & ~lost)
    page = report_page(found)
    assert "Output 1 depends on input 4, which is masked." in page
    assert "Output 5 does not depend on input 0, which is visible." in page
    # Kinds differ in their pattern too, so no colour has to be recognized.
    for kind in (Kind.BOTH_DIFFER, Kind.SECOND_ONLY):
        assert f'url(#r-0-{kind.value})"' in page
        assert f'<pattern id="r-0-{kind.value}"' in page


def test_shades_show_how_far_an_output_moved() -> None:
    allowed = np.ones((1, 1, 5), bool)
    measured = np.array([[[10.0, 0.5, 0.01, 1e-7, np.nan]]])
    found = report(allowed=allowed, measured=measured)
    assert kinds(found, "measured")[0].tolist() == [Kind.VISIBLE] * 4 + [Kind.FIRST_ONLY]
    shades = influence_scenes(found)[0].grids[1].shades
    assert shades is not None
    assert list(shades[0, :4]) == sorted(set(shades[0, :4]), reverse=True)
    assert "Measured as expected." in report_page(found)


def test_outputs_of_padding_are_not_marked() -> None:
    allowed, measured = causal_cells(3), np.ones((1, 3, 3))
    judged = np.array([[True, True, False]])
    found = report(allowed=allowed & judged[:, None, :], measured=measured, judged=judged)
    leaks = kinds(found, "measured") == Kind.BOTH_DIFFER
    assert leaks[:2].any()
    assert not leaks[2].any()
    assert (kinds(found, "measured")[2] == Kind.PARTIAL).all()
    assert "not tested" in report_page(found)


def test_at_most_four_sequences_are_drawn() -> None:
    cells = causal_cells(3, 9)
    page = Page(report_page(report(allowed=cells, measured=cells.astype(float))))
    assert len(page.all("figure")) == 4
    assert "The first 4 of 9 sequences are shown." in " ".join(page.words("p"))


def test_long_sequences_are_drawn_in_blocks() -> None:
    allowed = causal_cells(300)
    measured = allowed.astype(float)
    measured[0, 0, 299] = 1.0
    found = report(finding(), allowed=allowed, measured=measured)
    assert "a block of 3 × 3" in report_page(found)
    below = np.tri(100, k=-1, dtype=bool)
    assert np.array_equal(kinds(found, "expected") == Kind.VISIBLE, below)
    assert np.array_equal(kinds(found, "expected") == Kind.PARTIAL, np.eye(100, dtype=bool))
    assert np.argwhere(kinds(found, "measured") == Kind.BOTH_DIFFER).tolist() == [[0, 99]]


def test_a_large_page_stays_small() -> None:
    allowed = causal_cells(128, 4)
    noisy = np.random.default_rng(0).random(allowed.shape)
    assert len(report_page(report(finding(), allowed=allowed, measured=noisy))) < 3_000_000


def test_a_missing_measurement_is_stated() -> None:
    page = Page(report_page(report(allowed=causal_cells(4))))
    assert "was not measured" in " ".join(page.words("p"))
    assert len(page.all("figure")) == 1
    other = report(allowed=causal_cells(4), measured=np.zeros((1, 4, 5)))
    assert "was not measured" in report_page(other)


def test_there_may_be_nothing_to_draw() -> None:
    assert "Nothing to draw" in report_page(report())
    empty = np.zeros((1, 0, 0))
    assert "no positions" in report_page(report(allowed=empty.astype(bool), measured=empty))


# ── several, and files ────────────────────────────────────────────────────────────────────────


def test_several_reports_are_one_page() -> None:
    page = Page(page_of_many({"tests/a.py::test_b": report(finding()), "test_c": report()}))
    assert page.words("h2") == ["tests/a.py::test_b", "test_c"]
    assert "2 audits, 1 of models that do not respect their mask." in page.words("p")
    links = [own["href"].removeprefix("#") for own, _ in page.all("a")]
    assert links == [own["id"] for own, _ in page.all("section")]


def test_no_report_is_a_page_too() -> None:
    page = Page(page_of_many({}))
    assert "No model was audited." in page.words("p")
    assert not page.all("table")


def test_a_real_report_becomes_a_page() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    found = mw.audit(lambda x: x.flip(1), torch.randn(2, 6, 4), expects="causal")
    page = Page(report_page(found))
    assert page.words("h1") == ["✗ model does not respect causal()"]
    assert page.words("article")
    assert found.to_html() == report_page(found)


def test_a_model_that_was_not_tested_is_not_said_to_respect_its_mask() -> None:
    given = torch.randn(2, 4, 3)
    report = mw.audit(torch.relu, given, expects=mw.everything(), probes=["leak"])
    assert str(report).startswith("relu was not tested against everything()")
    assert "was not tested against" in report.to_html()


def test_a_page_in_chinese() -> None:
    cells = causal_cells(4)
    found = mw.audit(lambda x: x.flip(1), torch.randn(2, 4, 3), expects="causal")
    page = Page(found.to_html("zh"))
    assert page.all("html", lang="zh")
    assert page.words("h1") == ["✗ model 不遵守 causal()"]
    assert "原因" in page.words("dt")
    assert "没有可以绘制的内容" not in found.to_html("zh")
    drawn = report(finding(), allowed=cells, measured=cells.astype(float)).to_html("zh")
    assert "期望" in drawn
    assert "测得" in drawn
