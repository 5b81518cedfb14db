"""The picture: its cells and counts are the library's, and pointing at a cell says why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

import maskwright as mw
from tests.explore.browser import cells_of, expect, expression_box, middle_of

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.explore.browser import Visit

MIXED = "causal() & (window(back=2) | keys([0]))"
MILLION = 1_048_576


def picture(page: Page) -> Locator:
    return page.get_by_role("application")


def test_the_cells_and_counts_are_those_of_the_library(visit: Visit) -> None:
    page = visit(expression="nothing()", text=None, size=9)
    page.get_by_text("The picture in words").click()
    facts = page.locator("#facts")
    for text, warnings in {
        MIXED: [],
        "~causal()": ["1 query sees nothing", "1 key is never seen"],
        "queries([1, 3])": ["7 queries see nothing"],
        "keys([1, 3])": ["7 keys are never seen"],
        "stride(3) | chunks(4)": [],
    }.items():
        on = mw.parse(text).on(9)
        expression_box(page).fill(text)
        expect(facts).to_contain_text(f"{on.count()} of 81 cells seen")
        expect(facts).to_contain_text(f"density {100 * on.density:.3g}%")
        expect(facts.locator(".fact-warning")).to_have_text([f"⚠ {each}" for each in warnings])
        expect(page.locator("#description")).to_contain_text(text)
        seen = set(map(tuple, np.argwhere(on.dense()[0, 0]).tolist()))
        assert cells_of(page.locator("#stage"), "seen") == seen


def test_pointing_at_a_cell_says_why(visit: Visit) -> None:
    on = mw.parse(MIXED).on(6)
    page = visit(expression=MIXED, text=None, size=6)
    why = page.locator("#why")
    idle = why.inner_text()
    for query, key in ((1, 3), (5, 0), (5, 2), (4, 3)):
        page.mouse.move(*middle_of(page, query, key, (6, 6)))
        expect(why).to_have_text(on.why(query, key).text())
        seen = on.why(query, key).visible
        expect(why).to_have_class(f"why {'is-seen' if seen else 'is-hidden'}")
        expect(page.locator("#stage .ring")).to_have_count(1)
    page.mouse.move(2, 2)
    expect(why).to_have_text(idle)
    page.mouse.click(*middle_of(page, 5, 2, (6, 6)))
    page.mouse.move(2, 2)
    expect(why).to_have_text(on.why(5, 2).text())


def test_a_tap_says_why(visit: Visit) -> None:
    touch = {"has_touch": True, "is_mobile": True}
    page = visit(screen=(360, 740), context=touch, expression=MIXED, text="a b c d e f")
    for query, key in ((2, 4), (5, 0)):
        page.touchscreen.tap(*middle_of(page, query, key, (6, 6)))
        expect(page.locator("#why")).to_have_text(mw.parse(MIXED).on(6).why(query, key).text())


def test_arrow_keys_walk_over_the_cells(visit: Visit) -> None:
    on = mw.parse(MIXED).on(6)
    page = visit(expression=MIXED, text=None, size=6)
    picture(page).focus()
    row, key = -1, 0
    for name, down, right in (("Down", 1, 0), ("Right", 0, 1), ("Right", 0, 1), ("Down", 1, 0)):
        page.keyboard.press(f"Arrow{name}")
        row, key = row + down, key + right
        expect(page.locator("#why")).to_have_text(on.why(row, key).text())
    for _ in range(3):
        page.keyboard.press("ArrowUp")  # it stops at the edge
    expect(page.locator("#why")).to_have_text(on.why(0, 2).text())
    expect(page).to_have_url(re.compile("query=0.*key=2"))
    expect(picture(page)).to_be_focused()


def test_heads_and_batch_rows_are_tabs(visit: Visit) -> None:
    text = "by_head([causal(), window(back=1), everything()])"
    page = visit(expression=text, text="a b c d\ne f", panel="recognise")
    on = (mw.parse(text) & mw.padding(lengths=[4, 2])).on(4, batch=2)
    cells = on.dense()
    heads, rows = (page.get_by_role("tablist", name=name) for name in ("Head", "Batch row"))
    expect(heads.get_by_role("tab")).to_have_text(["head 0", "head 1", "head 2"])
    expect(rows.get_by_role("tab")).to_have_text(["batch 0", "batch 1"])

    def shows(batch: int, head: int) -> None:
        expect(page.locator("#stage [data-row]")).to_have_text(
            ["a", "b", "c", "d"] if batch == 0 else ["e", "f", "<PAD>", "<PAD>"]
        )
        for tabs, chosen in ((heads, head), (rows, batch)):
            expect(tabs.get_by_role("tab").nth(chosen)).to_have_attribute("aria-selected", "true")
        wanted = set(map(tuple, np.argwhere(cells[batch, head]).tolist()))
        expect(page.locator("#stage")).to_be_visible()
        assert cells_of(page.locator("#stage"), "seen") == wanted

    shows(0, 0)
    with page.expect_response("**/api/mask"):
        rows.get_by_role("tab", name="batch 1").click()
    shows(1, 0)
    with page.expect_response("**/api/mask"):
        heads.get_by_role("tab", name="head 0").press("ArrowRight")
    page.mouse.move(*middle_of(page, 3, 0, (4, 4)))
    expect(page.locator("#why")).to_have_text(on.why(3, 0, 1, 1).text())
    shows(1, 1)
    expect(heads.get_by_role("tab", name="head 1")).to_be_focused()


def test_zoom_goes_from_a_million_tokens_to_cells(visit: Visit) -> None:
    on = mw.causal().on(MILLION)
    page = visit(expression="causal()", text=None, size=MILLION)
    expect(page.locator("#stage canvas")).to_be_visible()
    expect(page.locator("#legend")).to_contain_text("A sign is 8,192 × 8,192 cells.")
    expect(page.locator("#facts")).to_contain_text(f"{on.count():,} of {MILLION**2:,} cells seen")
    page.mouse.move(*middle_of(page, 64, 64, (128, 128)))
    why = page.locator("#why")
    expect(why).to_contain_text("Queries 524,288–532,479 × keys 524,288–532,479: 50.2% seen")
    page.mouse.move(*middle_of(page, 100, 3, (128, 128)))
    expect(why).to_contain_text("100% seen")
    page.mouse.move(2, 2)

    page.get_by_role("button", name="Zoom in").click()
    expect(page.locator("#legend")).to_contain_text("A sign is 4,096 × 4,096 cells.")
    expect(page.locator("#overview")).to_contain_text("Queries 262,144 to 786,431")
    picture(page).press("+")
    expect(page.locator("#legend")).to_contain_text("A sign is 2,048 × 2,048 cells.")
    picture(page).press("-")
    expect(page.locator("#legend")).to_contain_text("A sign is 4,096 × 4,096 cells.")
    picture(page).press("Shift+ArrowDown")
    expect(page.locator("#overview")).to_contain_text("Queries 327,680 to 851,967")
    page.get_by_role("button", name="all", exact=True).click()
    expect(page.locator("#overview")).to_be_empty()
    expect(page.get_by_role("button", name="Zoom out")).to_be_disabled()


def test_the_closest_view_shows_cells_that_can_be_dragged(visit: Visit) -> None:
    view = {"row": MILLION - 16, "rows": 16, "key": MILLION - 16, "keys": 16}
    page = visit(expression="causal()", text=None, size=MILLION, view=view)
    lower = {(row, key) for row in range(16) for key in range(row + 1)}
    assert cells_of(page.locator("#stage"), "seen") == lower
    page.get_by_role("button", name="Zoom in").click()
    expect(page.get_by_role("button", name="Zoom in")).to_be_disabled()
    expect(page.locator("#overview")).to_contain_text("Queries 1,048,564 to 1,048,571")
    x, y = middle_of(page, 1, 1, (8, 8))
    step = middle_of(page, 1, 2, (8, 8))[0] - x
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 3 * step, y, steps=6)
    page.mouse.up()
    expect(page.locator("#overview")).to_contain_text("keys 1,048,561 to 1,048,568")
    page.mouse.move(*middle_of(page, 0, 4, (8, 8)))
    expect(page.locator("#why")).to_have_text(
        mw.causal().on(MILLION).why(MILLION - 12, MILLION - 11).text()
    )


def test_the_wheel_zooms_about_the_pointer(visit: Visit) -> None:
    page = visit(expression="causal()", text=None, size=4096)
    page.mouse.move(*middle_of(page, 0, 0, (128, 128)))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    expect(page.locator("#overview")).to_contain_text("Queries 0 to 3,275, keys 0 to 3,275")
