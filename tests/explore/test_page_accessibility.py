"""axe on every panel, in both languages and themes, on a phone and a desktop; and the keyboard."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests._helpers.browser import (
    PANELS,
    Page,
    Visit,
    axe_violations,
    expect,
    expression_box,
    open_panel,
    overflow,
    panel_of,
)
from tests._helpers.sampling import subset_of_cases

STATE = {
    "text": "The cat\nI",
    "expression": "causal() | window(back=1, ahead=2)",
    "others": ["causal()", "wndow(back=1)"],
    "scores": None,
    "query": 1,
    "key": 0,
}
# The first and the last of the eight combinations, which differ in all three values.
VARIANTS = subset_of_cases(list(product(("en", "zh"), ("light", "dark"), (390, 1280))), 7)


@pytest.mark.parametrize(("lang", "theme", "width"), VARIANTS)
def test_there_are_no_violations(visit: Visit, lang: str, theme: str, width: int) -> None:
    page = visit(screen=(width, 900), **STATE, lang=lang, theme=theme)
    for summary in page.locator("summary:visible").all():
        summary.click()
    page.locator("#atoms .chip").first.click()
    expect(page.locator("#toast")).to_be_visible()
    assert axe_violations(page) == []
    for name in PANELS:
        panel = open_panel(page, name)
        if name == "recognize":
            panel.locator("button.quiet").click()  # the example
            expect(panel.locator(".formula code")).to_be_visible()
        assert axe_violations(page, f"#panel-{name}", is_loaded=True) == [], name
        assert overflow(page) == 0, name
        assert page.evaluate("probes.smallControls()") == [], name


def test_axe_finds_violations(visit: Visit) -> None:
    page = visit(text="a b")
    page.evaluate("document.body.append(document.createElement('button'))")
    assert "button-name" in "".join(axe_violations(page))


def test_errors_suggestions_and_lessons_have_no_violations(visit: Visit) -> None:
    page = visit(**STATE, lesson="why", panel="steps", steps_view="masks")
    box = expression_box(page)
    box.fill("causal() & wnd")
    expect(page.locator("#expression-error")).not_to_be_empty()
    box.press("Control+a")
    box.press_sequentially("ca")
    expect(page.get_by_role("listbox", name="Suggestions")).to_be_visible()
    assert axe_violations(page) == []


def test_long_tokens_and_large_numbers_do_not_overflow(visit: Visit) -> None:
    text = f"{'unbreakable' * 5} b\n{'word ' * 12}"
    page = visit(screen=(390, 740), **{**STATE, "text": text, "lesson": "why"})
    for name in ("steps", "generate", "compare", "cost"):
        open_panel(page, name)
        assert overflow(page) == 0, name
    page.goto(visit.link(text=None, size=1_048_576, expression="causal()", panel="recognize"))
    expect(page.locator("#size-summary")).to_have_text("1,048,576 queries × 1,048,576 keys")
    assert overflow(page) == 0


# Keyboard --------------------------------------------------------------------------------------


def tab_order(page: Page) -> list[dict[str, Any]]:
    """The elements that Tab reaches, in order, until it leaves the page."""
    found: list[dict[str, Any]] = []
    page.evaluate("document.activeElement?.blur()")
    for _ in range(150):
        page.keyboard.press("Tab")
        at = page.evaluate("probes.focused()")
        if at["isBody"] or (found and at["name"] == found[0]["name"] == "skip"):
            return found
        found.append(at)
    raise AssertionError(f"Tab never left the page: {[at['name'] for at in found]}")


def test_tab_reaches_everything_in_order_with_a_visible_focus(visit: Visit) -> None:
    text, expression = "a b c d e f g h i\nj <PAD>", "by_head([causal(), window(back=1)])"
    page = visit(text=text, expression=expression, panel="steps", scores=None)
    panel_of(page, "steps")
    order = tab_order(page)
    names = [at["name"] for at in order]
    wanted = [
        "skip", "lessons-link", "copy-link", "EN", "中文", "theme", "Sentences", "text",
        "pad-0-left", "pad-0-right", "pad-1-left", "pad-1-remove-0", "padding", "left", "right",
        "expression", "back", "combine-and", "combine-or", "negate", "causal", "window",
        "zoom-in", "batch-0", "head-0", "why", "save-svg", "save-png", "tab-steps", "Play", "Next",
    ]  # fmt: skip
    assert [name for name in wanted if name not in names] == [], names
    places = [names.index(name) for name in wanted]
    assert places == sorted(places), names
    assert any(name.startswith("Mask, 9 rows by 9 columns") for name in names)
    assert [at["name"] for at in order if not at["visible"]] == []


def test_the_keyboard_reaches_the_expression_and_the_panels(visit: Visit) -> None:
    page = visit(text="a b c d", expression="causal()", panel="steps", scores=None)
    press = page.keyboard.press
    press("Tab")
    expect(page.get_by_role("link", name="Skip to the mask")).to_be_focused()
    press("Enter")
    expect(expression_box(page)).to_be_focused()
    press("Tab")  # moves on, as the suggestions are closed
    expect(expression_box(page)).not_to_be_focused()
    page.locator("#tab-steps").focus()
    for name in PANELS[1:3]:
        press("ArrowRight")
        expect(page.locator(f"#tab-{name}")).to_be_focused()
        expect(page.locator(f"#panel-{name}")).to_be_visible()
    press("Tab")
    press("Tab")
    page.keyboard.type("window(back=1)")
    expect(page.locator("#panel-compare .verdict")).to_have_text("differs")
    page.locator("#tab-compare").focus()
    press("End")
    press("ArrowRight")
    expect(page.locator("#tab-steps")).to_be_focused()


def test_arrow_keys_change_the_stage_but_not_in_a_field(visit: Visit) -> None:
    page = visit(text="a b c", expression="causal()", panel="steps", scores=None, step=None)
    panel = panel_of(page, "steps")
    panel.get_by_role("button", name="Play").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(panel.locator(".place")).to_have_text("2 of 9")
    panel.get_by_role("spinbutton", name="Seed").press("ArrowRight")
    expect(panel.locator(".place")).to_have_text("2 of 9")
