"""axe over every panel, in both languages and themes, on a phone and on a desk; and no sideways scroll."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from tests.explore.browser import PANELS, expect, lacking, open_panel, panel_of
from tests.thinned import thinned

try:
    from axe_playwright_python.sync_playwright import Axe
except ImportError:
    lacking("axe is not installed. Run: pip install axe-playwright-python")

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.explore.browser import Visit

STATE = {
    "text": "The cat\nI",
    "expression": "causal() | window(back=1, ahead=2)",
    "others": ["causal()", "wndow(back=1)"],
    "scores": None,
    "query": 1,
    "key": 0,
}
# Each of the three both ways: of all eight the first and the last.
VARIANTS = thinned(list(product(("en", "zh"), ("light", "dark"), (360, 1280))), 7)
SERIOUS = ("serious", "critical")
THERE = Axe(axe_script="void 0")  # for a page that has axe already


def faults(axe: Axe, page: Page, context: str | None = None) -> list[str]:
    found = axe.run(page, context).response["violations"]
    return [
        f"{fault['id']}: {node['target']} {node['failureSummary']}"
        for fault in found
        if fault["impact"] in SERIOUS
        for node in fault["nodes"]
    ]


def filled(page: Page, name: str) -> Locator:
    """A panel with as much in it as it can show."""
    panel = open_panel(page, name)
    if name == "recognise":
        panel.locator("button.quiet").click()  # the example
        expect(panel.locator(".findings, .says").first).to_be_visible()
    return panel


@pytest.mark.parametrize(("lang", "theme", "width"), VARIANTS)
def test_axe_finds_nothing_serious(visit: Visit, lang: str, theme: str, width: int) -> None:
    page = visit(screen=(width, 900), **STATE, lang=lang, theme=theme)
    for summary in page.locator("summary:visible").all():
        summary.click()
    assert faults(Axe(), page) == []
    for name in PANELS:
        if name != "code":
            filled(page, name)
            assert faults(THERE, page, f"#panel-{name}") == [], name
            assert sideways(page) == 0, name


def test_axe_finds_nothing_serious_in_code(visit: Visit) -> None:
    """All variants on one page, since the first answer of a server takes long."""
    page = visit(**STATE, panel="code", theme="light")
    for lang, theme, width in VARIANTS:
        page.locator(f"[data-lang={lang}]").click()
        page.locator("#theme").select_option(theme)
        page.set_viewport_size({"width": width, "height": 900})
        panel_of(page, "code")
        axe = THERE if page.evaluate("'axe' in window") else Axe()
        assert faults(axe, page, "#panel-code") == [], (lang, theme, width)
        assert sideways(page) == 0


def test_axe_would_find_something(visit: Visit) -> None:
    page = visit(text="a b")
    page.evaluate("document.body.append(document.createElement('button'))")
    assert "button-name" in "".join(faults(Axe(), page))


def test_axe_finds_nothing_serious_in_errors_suggestions_and_lessons(visit: Visit) -> None:
    page = visit(**STATE, lesson="why", panel="steps", steps_view="masks")
    box = page.get_by_role("textbox", name="Mask expression")
    box.fill("causal() & wnd")
    expect(page.locator("#expression-error")).not_to_be_empty()
    box.press("Control+a")
    box.press_sequentially("ca")
    expect(page.get_by_role("listbox", name="Suggestions")).to_be_visible()
    assert faults(Axe(), page) == []


def test_long_words_and_large_numbers_do_not_make_a_phone_scroll_sideways(visit: Visit) -> None:
    long = {**STATE, "text": f"{'unbreakable' * 5} b\n{'word ' * 12}", "lesson": "why"}
    page = visit(screen=(360, 740), **long)
    for name in ("steps", "generate", "compare", "cost"):
        filled(page, name)
        assert sideways(page) == 0, name
    page.goto(visit.link(text=None, size=1_048_576, expression="causal()", panel="recognise"))
    expect(page.locator("#frame-says")).to_have_text("1,048,576 queries × 1,048,576 keys")
    assert sideways(page) == 0


def sideways(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    wider: int = page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
    return max(0, wider)


def test_controls_are_large_enough_to_be_touched(visit: Visit) -> None:
    page = visit(**STATE, panel="generate")
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("innerWidth") == width
        assert page.evaluate(SMALL) == [], width


SMALL = """() => [...document.querySelectorAll("button, select, input:not([type=checkbox]), summary")]
  .map((control) => [control.outerHTML.slice(0, 80), control.getBoundingClientRect()])
  .filter(([, box]) => box.width > 0 && Math.min(box.width, box.height) < 24)
  .map(([name, box]) => `${name} ${box.width} × ${box.height}`)"""
