"""The state in the URL: links, undo and redo, the Back button, and invalid links."""

from __future__ import annotations

import re

from tests._helpers.browser import (
    Visit,
    cell_center,
    expect,
    expression_box,
    open_panel,
    panel_of,
    wait_until_loaded,
)


def test_a_link_shows_the_same_page_in_another_browser(visit: Visit) -> None:
    page = visit(text="x")
    page.locator("#text").fill("I like tea & = 100%\nyou 🍵")
    page.get_by_role("button", name="left", exact=True).click()
    expression_box(page).fill("causal() | keys([1])")
    page.get_by_role("tab", name="batch 1").click()
    expect(page.locator("#stage [data-row]")).to_have_text(["<PAD>"] * 4 + ["you", "🍵"])
    page.mouse.click(*cell_center(page, 2, 4, (6, 6)))
    page.get_by_role("combobox", name="Theme").select_option("dark")
    page.get_by_role("button", name="中文").click()
    open_panel(page, "compare").get_by_role("textbox").first.fill("window(back=1)")
    expect(page).to_have_url(re.compile("others=.*panel=compare|panel=compare.*others="))
    expect(page).to_have_url(re.compile("query=2.*key=4"))

    second = visit.blank()
    second.goto(page.url)
    for each in (page, second):
        for name, value in {
            "#expression": "causal() | keys([1])",
            "#text": "I like tea & = 100%\nyou 🍵",
            "#panel-compare input >> nth=0": "window(back=1)",
        }.items():
            expect(each.locator(name)).to_have_value(value)
        expect(each.locator("#stage [data-row]")).to_have_text(["<PAD>"] * 4 + ["you", "🍵"])
        for name in ("#tab-compare", "#batch-1"):
            expect(each.locator(name)).to_have_attribute("aria-selected", "true")
        expect(each.locator("html[data-theme=dark][lang=zh-Hans]")).to_have_count(1)
        expect(each.locator("#stage .ring")).to_have_count(1)
    expect(second.locator("#why")).to_have_text(page.locator("#why").inner_text())
    assert second.url == page.url


def test_the_link_is_copied(visit: Visit) -> None:
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    page = visit(text="a b", expression="window(back=1)", context=allowed)
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#announcer")).not_to_be_empty()
    other = visit.blank()
    other.goto(page.evaluate("navigator.clipboard.readText()"))
    expect(expression_box(other)).to_have_value("window(back=1)")


def test_the_link_contains_the_state_of_panels(visit: Visit) -> None:
    page = visit(panel="steps", text="a b c", expression="causal()", scores=None, step=None)
    panel = panel_of(page, "steps")
    seed = panel.get_by_role("spinbutton", name="Seed")
    scale = panel.get_by_role("switch", name="Divide by √hs")
    seed.fill("7")
    scale.click()
    panel.get_by_role("button", name="Next").click()
    expect(page).to_have_url(re.compile("step=0"))
    page.reload()
    panel_of(page, "steps")
    expect(seed).to_have_value("7")
    expect(scale).not_to_be_checked()
    expect(panel.locator(".place")).to_have_text("1 of 8")


def test_changes_are_undone_and_redone(visit: Visit) -> None:
    page = visit(text="a b c", expression="window(back=1)")
    box, undo, redo = expression_box(page), page.locator("#undo"), page.locator("#redo")
    expect(undo).to_be_disabled()
    page.get_by_role("slider", name="back").evaluate(  # changes at once are one entry
        """slider => ["2", "1", "0"].forEach((value) => {
            slider.value = value;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
        })"""
    )
    expect(box).to_have_value("window(back=0)")
    page.wait_for_url("**back=0**")
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 900))")  # ends the entry
    open_panel(page, "cost")
    page.wait_for_url("**panel=cost**")
    page.keyboard.press("Control+z")
    expect(page.locator("#panel-recognize")).to_be_visible()
    undo.click()
    expect(box).to_have_value("window(back=1)")
    expect(undo).to_be_disabled()
    expect(redo).to_be_focused()
    page.keyboard.press("Control+y")
    expect(box).to_have_value("window(back=0)")
    page.keyboard.press("Control+Shift+Z")
    expect(page.locator("#panel-cost")).to_be_visible()
    expect(redo).to_be_disabled()
    page.go_back()
    expect(page.locator("#panel-recognize")).to_be_visible()


def test_text_fields_keep_their_own_undo(visit: Visit) -> None:
    page = visit(text="a b c", expression="causal()")
    padding = page.get_by_role("switch", name="Mask padding")
    padding.click()
    page.wait_for_url("**padding=false**")
    box = expression_box(page)
    box.press("End")
    box.press_sequentially(" | keys([0])")
    box.press("Control+z")
    expect(box).not_to_have_value("causal() | keys([0])")
    expect(padding).not_to_be_checked()


INVALID: list[dict[str, object]] = [
    {"size": -5, "batch": 999, "head": "x", "view": {"row": 0}},
    {"expression": ["causal()"], "text": 5, "query": 10**9, "key": "a", "fill": {}},
    {"panel": "<img src=x onerror=alert(1)>", "lang": "xx", "theme": "pink", "others": [1]},
    {"scores": {"a": 1}, "step": "x", "row": [], "steps_view": 5, "lesson": "nowhere"},
    {"__proto__": {"a": 1}, "constructor": 5, "toString": "x", "tokens": [["evil"]]},
]


def test_invalid_values_in_a_link_are_ignored(visit: Visit) -> None:
    page = visit.blank()
    for state in INVALID:
        page.goto("about:blank")
        page.goto(visit.link(**{"panel": "steps", **state}))
        wait_until_loaded(page)
        panel = page.locator("[role=tabpanel]:visible")
        expect(panel).to_have_count(1)
        expect(panel.locator(".panel-body > *").first).to_be_visible()
        expect(page.locator("#grid-error")).to_be_empty()
    page.goto("about:blank")
    page.goto(f"{visit.address}#expression=%E0%A4%A&text=a+b&&=&panel=recognize&size=%")
    expect(page.locator("#stage [data-row]")).to_have_text(["a", "b"])
