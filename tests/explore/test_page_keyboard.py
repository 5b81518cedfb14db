"""The page by keyboard alone: Tab reaches all that matters, and one always sees where one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import maskwright as mw
from tests.explore.browser import PANELS, expect, expression_box, panel_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.explore.browser import Visit

# What has the focus, by its id or its name, and whether one can see it.
FOCUSED = """() => {
  const at = document.activeElement;
  const look = getComputedStyle(at);
  const around = at.closest(".editor") ? getComputedStyle(at.closest(".editor")) : look;
  const outlined = [look, around].some(
    (each) => (each.outlineStyle !== "none" && parseFloat(each.outlineWidth) >= 1)
      || each.boxShadow !== "none");
  const box = at.getBoundingClientRect();
  const name = at.id || at.dataset.name || at.getAttribute("aria-label") || at.textContent.trim();
  return { name, outlined, shown: box.width > 0 && box.height > 0, isBody: at === document.body };
}"""


def tab_order(page: Page, most: int = 150) -> list[dict[str, Any]]:
    """Everything that Tab reaches, in order, until it leaves the page."""
    found: list[dict[str, Any]] = []
    page.evaluate("document.activeElement?.blur()")
    for _ in range(most):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUSED)
        if at["isBody"] or (found and at["name"] == found[0]["name"] == "skip"):
            return found
        found.append(at)
    raise AssertionError(f"Tab never left the page: {[at['name'] for at in found]}")


def test_tab_reaches_everything_in_order_with_a_visible_focus(visit: Visit) -> None:
    page = visit(
        text="a b c d e f g h i\nj <PAD>",
        expression="by_head([causal(), window(back=1)])",
        panel="steps",
        scores=None,
    )
    panel_of(page, "steps")
    order = tab_order(page)
    names = [at["name"] for at in order]
    wanted = [
        "skip", "lessons-link", "copy-link", "EN", "中文", "theme", "Sentences", "text",
        "pad-0-left", "pad-0-right", "pad-1-left", "pad-1-remove-0", "padding", "left", "right",
        "expression", "back", "& and", "| or", "replace", "negate", "causal", "window",
        "zoom-in", "batch-0", "head-0", "why", "save-svg", "save-png", "tab-steps", "Play", "Next",
    ]  # fmt: skip
    missing = [name for name in wanted if name not in names]
    assert not missing, names
    places = [names.index(name) for name in wanted]
    assert places == sorted(places), names
    assert any(name.startswith("Mask, 9 rows by 9 columns") for name in names)
    assert [at["name"] for at in order if not at["outlined"]] == []
    assert [at["name"] for at in order if not at["shown"]] == []


def test_the_first_tab_skips_to_the_mask(visit: Visit) -> None:
    page = visit(text="a b", expression="causal()")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the mask")).to_be_focused()
    page.keyboard.press("Enter")
    expect(expression_box(page)).to_be_focused()


def test_a_mask_is_written_looked_at_and_compared_without_a_mouse(visit: Visit) -> None:
    page = visit(text="a b c d", expression="causal()", panel="steps", scores=None)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    page.keyboard.type("win")
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox", name="Suggestions")).to_be_hidden()
    page.keyboard.type("d")
    page.keyboard.press("Enter")
    page.keyboard.type("back=1")
    expect(expression_box(page)).to_have_value("window(back=1)")
    page.keyboard.press("Tab")  # the suggestions are closed: Tab goes on
    expect(expression_box(page)).not_to_be_focused()
    page.get_by_role("application").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#why")).to_have_text(mw.window(back=1).on(4).why(0, 2).text())

    page.locator("#tab-steps").focus()
    for name in PANELS[1:3]:
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#tab-{name}")).to_be_focused()
        expect(page.locator(f"#panel-{name}")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator("#panel-compare")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("causal()")
    expect(page.locator("#panel-compare .verdict")).to_have_text("differs")
    page.locator("#tab-compare").focus()
    page.keyboard.press("End")
    expect(page.locator("#tab-lessons")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-steps")).to_be_focused()


def test_arrow_keys_go_through_stages_but_not_while_typing(visit: Visit) -> None:
    page = visit(text="a b c", expression="causal()", panel="steps", scores=None, step=None)
    panel = panel_of(page, "steps")
    panel.get_by_role("button", name="Play").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(panel.locator(".place")).to_have_text("2 of 9")
    panel.get_by_role("spinbutton", name="Seed").focus()
    page.keyboard.press("ArrowRight")
    expect(panel.locator(".place")).to_have_text("2 of 9")
