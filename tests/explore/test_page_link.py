"""The state lives in the link: another browser shows the same, and strange links do no harm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.explore.browser import expect, expression_box, middle_of, open_panel, panel_of, settled

if TYPE_CHECKING:
    from tests.explore.browser import Visit


def test_a_second_browser_shows_what_the_first_one_did(visit: Visit) -> None:
    page = visit(text="x")
    page.get_by_role("textbox", name="One sentence a line").fill("I like tea & = 100%\nyou 🍵")
    page.get_by_role("button", name="left", exact=True).click()
    expression_box(page).fill("causal() | keys([1])")
    page.get_by_role("tab", name="batch 1").click()
    expect(page.locator("#stage [data-row]")).to_have_text(["<PAD>"] * 4 + ["you", "🍵"])
    page.mouse.click(*middle_of(page, 2, 4, (6, 6)))
    page.get_by_role("combobox", name="Theme").select_option("dark")
    page.get_by_role("button", name="中文").click()
    panel = open_panel(page, "compare")
    panel.get_by_role("textbox").first.fill("window(back=1)")
    expect(page).to_have_url(re.compile("others=.*panel=compare|panel=compare.*others="))
    expect(page).to_have_url(re.compile("query=2.*key=4"))

    second = visit.blank()
    second.goto(page.url)
    for each in (page, second):
        expect(each.locator("#expression")).to_have_value("causal() | keys([1])")
        expect(each.locator("#text")).to_have_value("I like tea & = 100%\nyou 🍵")
        expect(each.locator("#stage [data-row]")).to_have_text(["<PAD>"] * 4 + ["you", "🍵"])
        expect(each.locator("#tab-compare")).to_have_attribute("aria-selected", "true")
        expect(each.locator("#panel-compare input").first).to_have_value("window(back=1)")
        expect(each.locator("#batch-1")).to_have_attribute("aria-selected", "true")
        expect(each.locator("html")).to_have_attribute("data-theme", "dark")
        expect(each.locator("html")).to_have_attribute("lang", "zh-Hans")
        expect(each.locator("#stage .ring")).to_have_count(1)
    expect(second.locator("#why")).to_have_text(page.locator("#why").inner_text())
    expect(second.locator("#why")).to_have_class(re.compile("is-seen|is-hidden"))
    assert second.url == page.url


def test_the_link_is_copied(visit: Visit) -> None:
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    page = visit(text="a b", expression="window(back=1)", context=allowed)
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#said")).to_have_text("The link is in the clipboard.")
    copied = page.evaluate("navigator.clipboard.readText()")
    other = visit.blank()
    other.goto(copied)
    expect(expression_box(other)).to_have_value("window(back=1)")


def test_the_panels_keep_their_state_in_the_link_too(visit: Visit) -> None:
    page = visit(panel="steps", text="a b c", expression="causal()", scores=None, step=None)
    panel = panel_of(page, "steps")
    panel.get_by_role("spinbutton", name="Seed").fill("7")
    panel.get_by_role("switch", name="Divide by √hs").click()
    panel.get_by_role("combobox", name="Hidden scores become").select_option("0")
    panel.get_by_role("button", name="Next").click()
    expect(page).to_have_url(re.compile("step=0"))
    page.reload()
    panel = panel_of(page, "steps")
    expect(panel.get_by_role("spinbutton", name="Seed")).to_have_value("7")
    expect(panel.get_by_role("switch", name="Divide by √hs")).not_to_be_checked()
    expect(panel.get_by_role("combobox", name="Hidden scores become")).to_have_value("0")
    expect(panel.locator(".place")).to_have_text("1 of 8")


def test_going_back_in_the_address_bar_shows_the_former_state(visit: Visit) -> None:
    page = visit(text="a b c", expression="causal()")
    page.goto(visit.link(text="a b", expression="everything()", panel="recognise"))
    expect(page.locator("#frame-says")).to_have_text("2 queries × 2 keys")
    expect(expression_box(page)).to_have_value("everything()")
    page.go_back()
    expect(page.locator("#frame-says")).to_have_text("3 queries × 3 keys")
    expect(expression_box(page)).to_have_value("causal()")


STRANGE: list[dict[str, object]] = [
    {"size": -5, "batch": 999, "head": "x", "view": {"row": 0}},
    {"expression": ["causal()"], "text": 5, "query": 10**9, "key": "a", "fill": {}},
    {"panel": "<img src=x onerror=alert(1)>", "lang": "xx", "theme": "pink", "others": [1]},
    {"scores": {"a": 1}, "step": "x", "row": [], "steps_view": 5, "lesson": "nowhere"},
    {"__proto__": {"a": 1}, "constructor": 5, "toString": "x", "tokens": [["evil"]]},
]


def test_strange_links_leave_the_page_whole(visit: Visit) -> None:
    page = visit.blank()
    for strange in STRANGE:
        page.goto("about:blank")
        page.goto(visit.link(**{"panel": "steps", **strange}))
        settled(page)
        panel = page.locator("[role=tabpanel]:visible")
        expect(panel).to_have_count(1)
        expect(panel.locator(".panel-body > *").first).to_be_visible()
        expect(page.locator("#grid-error")).to_be_empty()


def test_broken_escapes_in_a_link_are_passed_over(visit: Visit) -> None:
    page = visit.blank()
    page.goto(f"{visit.address}#expression=%E0%A4%A&text=a+b&&=&panel=recognise&size=%")
    expect(page.locator("#stage [data-row]")).to_have_text(["a", "b"])
