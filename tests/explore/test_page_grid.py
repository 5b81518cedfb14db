"""The picture of the mask: cells and counts, the reason of a cell, zoom, and downloads."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import maskwright as mw
from tests._helpers.browser import (
    Locator,
    Page,
    Visit,
    cell_center,
    drawn_cells,
    expect,
    expression_box,
    visible_cells,
)

MIXED = "causal() & (window(back=2) | keys([0]))"
MILLION = 1_048_576


def picture(page: Page) -> Locator:
    return page.get_by_role("application")


def test_the_cells_and_counts_are_those_of_the_library(visit: Visit) -> None:
    page = visit(expression="nothing()", text=None, size=9)
    page.get_by_text("Text description").click()
    facts = page.locator("#facts")
    for text, warnings in {
        MIXED: [],
        "~causal()": ["1 query attends to nothing", "no query attends to 1 key"],
        "queries([1, 3])": ["7 queries attend to nothing"],
        "keys([1, 3])": ["no query attends to 7 keys"],
        "stride(3) | chunks(4)": [],
    }.items():
        on = mw.parse(text).on(9)
        expression_box(page).fill(text)
        expect(facts).to_contain_text(f"{on.count()} of 81 cells visible")
        expect(facts).to_contain_text(f"density {100 * on.density:.3g}%")
        expect(facts.locator(".fact-warning")).to_have_text([f"⚠ {each}" for each in warnings])
        expect(page.locator("#description")).to_contain_text(text)
        assert drawn_cells(page.locator("#stage"), "seen") == visible_cells(on.dense()[0, 0])


def test_the_reason_of_the_cell_under_the_pointer_is_shown(visit: Visit) -> None:
    on = mw.parse(MIXED).on(6)
    page = visit(expression=MIXED, text=None, size=6)
    why = page.locator("#why")
    idle = why.inner_text()
    for query, key in ((1, 3), (5, 0), (5, 2), (4, 3)):
        page.mouse.move(*cell_center(page, query, key, (6, 6)))
        reason = on.why(query, key)
        expect(why).to_have_text(reason.text())
        expect(why).to_have_class(f"why {'is-seen' if reason.visible else 'is-hidden'}")
        expect(page.locator("#stage .ring")).to_have_count(1)
    page.mouse.move(2, 2)
    expect(why).to_have_text(idle)
    page.mouse.click(*cell_center(page, 5, 2, (6, 6)))
    page.mouse.move(2, 2)
    expect(why).to_have_text(on.why(5, 2).text())


def test_a_tap_shows_the_reason(visit: Visit) -> None:
    touch = {"has_touch": True, "is_mobile": True}
    page = visit(screen=(390, 740), context=touch, expression=MIXED, text="a b c d e f")
    for query, key in ((2, 4), (5, 0)):
        page.touchscreen.tap(*cell_center(page, query, key, (6, 6)))
        expect(page.locator("#why")).to_have_text(mw.parse(MIXED).on(6).why(query, key).text())


def test_arrow_keys_select_a_cell_and_escape_deselects_it(visit: Visit) -> None:
    on = mw.parse(MIXED).on(6)
    page = visit(expression=MIXED, text=None, size=6)
    picture(page).focus()
    row, key = -1, 0
    for name, down, right in (("Down", 1, 0), ("Right", 0, 1), ("Right", 0, 1), ("Down", 1, 0)):
        page.keyboard.press(f"Arrow{name}")
        row, key = row + down, key + right
        expect(page.locator("#why")).to_have_text(on.why(row, key).text())
    for _ in range(3):
        page.keyboard.press("ArrowUp")  # stops at the edge
    expect(page).to_have_url(re.compile("query=0.*key=2"))
    expect(picture(page)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#stage .ring")).to_have_count(0)
    expect(page).not_to_have_url(re.compile("query="))


def test_sequences_and_heads_are_tabs(visit: Visit) -> None:
    text = "by_head([causal(), window(back=1), everything()])"
    page = visit(expression=text, text="a b c d\ne f", panel="recognize")
    on = (mw.parse(text) & mw.padding(lengths=[4, 2])).on(4, batch=2)
    cells = on.dense()
    heads, rows = (page.get_by_role("tablist", name=name) for name in ("Head", "Sequence"))
    expect(heads.get_by_role("tab")).to_have_text(["head 0", "head 1", "head 2"])
    expect(rows.get_by_role("tab")).to_have_text(["batch 0", "batch 1"])

    def check(batch: int, head: int) -> None:
        tokens = ["e", "f", "<PAD>", "<PAD>"] if batch else ["a", "b", "c", "d"]
        expect(page.locator("#stage [data-row]")).to_have_text(tokens)
        for tabs, selected in ((heads, head), (rows, batch)):
            tab = tabs.get_by_role("tab").nth(selected)
            expect(tab).to_have_attribute("aria-selected", "true")
        assert drawn_cells(page.locator("#stage"), "seen") == visible_cells(cells[batch, head])

    check(0, 0)
    with page.expect_response("**/api/mask"):
        rows.get_by_role("tab", name="batch 1").click()
    check(1, 0)
    with page.expect_response("**/api/mask"):
        heads.get_by_role("tab", name="head 0").press("ArrowRight")
    page.mouse.move(*cell_center(page, 3, 0, (4, 4)))
    expect(page.locator("#why")).to_have_text(on.why(3, 0, 1, 1).text())
    check(1, 1)
    expect(heads.get_by_role("tab", name="head 1")).to_be_focused()


def test_a_million_tokens_are_zoomed(visit: Visit) -> None:
    page = visit(expression="causal()", text=None, size=MILLION)
    legend, overview, why = (page.locator(name) for name in ("#legend", "#overview", "#why"))
    expect(page.locator("#stage canvas")).to_be_visible()
    expect(legend).to_contain_text("1 square = 8,192 × 8,192 cells")
    count = mw.causal().on(MILLION).count()
    expect(page.locator("#facts")).to_contain_text(f"{count:,} of {MILLION**2:,} cells visible")
    page.mouse.move(*cell_center(page, 64, 64, (128, 128)))
    expect(why).to_contain_text("Queries 524,288–532,479 × keys 524,288–532,479: 50.2% visible")
    page.mouse.move(2, 2)

    page.get_by_role("button", name="Zoom in").click()
    expect(legend).to_contain_text("1 square = 4,096 × 4,096 cells")
    expect(overview).to_contain_text("Queries 262,144 to 786,431")
    for key, size in (("+", "2,048"), ("-", "4,096")):
        picture(page).press(key)
        expect(legend).to_contain_text(f"1 square = {size} × {size} cells")
    picture(page).press("Shift+ArrowDown")
    expect(overview).to_contain_text("Queries 327,680 to 851,967")
    page.get_by_role("button", name="Fit", exact=True).click()
    expect(overview).to_be_empty()
    expect(page.get_by_role("button", name="Zoom out")).to_be_disabled()


def test_the_closest_view_is_dragged(visit: Visit) -> None:
    view = {"row": MILLION - 16, "rows": 16, "key": MILLION - 16, "keys": 16}
    page = visit(expression="causal()", text=None, size=MILLION, view=view)
    lower = visible_cells(mw.causal().on(16).dense()[0, 0])
    assert drawn_cells(page.locator("#stage"), "seen") == lower
    page.get_by_role("button", name="Zoom in").click()
    expect(page.locator("#overview")).to_contain_text("Queries 1,048,564 to 1,048,571")
    x, y = cell_center(page, 1, 1, (8, 8))
    step = cell_center(page, 1, 2, (8, 8))[0] - x
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 3 * step, y, steps=6)
    page.mouse.up()
    expect(page.locator("#overview")).to_contain_text("keys 1,048,561 to 1,048,568")
    page.mouse.move(*cell_center(page, 0, 4, (8, 8)))
    reason = mw.causal().on(MILLION).why(MILLION - 12, MILLION - 11).text()
    expect(page.locator("#why")).to_have_text(reason)


def test_the_wheel_zooms_at_the_pointer(visit: Visit) -> None:
    page = visit(expression="causal()", text=None, size=4096)
    page.mouse.move(*cell_center(page, 0, 0, (128, 128)))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    expect(page.locator("#overview")).to_contain_text("Queries 0 to 3,275, keys 0 to 3,275")


def test_the_picture_is_downloaded_in_the_current_theme(visit: Visit) -> None:
    page = visit(expression="causal() & window(back=2)", text="I like <tea> & you", theme="light")

    def download(name: str) -> bytes:
        with page.expect_download() as started:
            page.get_by_role("button", name=f"Download as {name.upper()}").click()
        assert started.value.suggested_filename == f"mask.{name}"
        return Path(started.value.path()).read_bytes()

    light = {name: download(name) for name in ("svg", "png")}
    text = "".join(ElementTree.fromstring(light["svg"]).itertext())
    assert all(part in text for part in ("like", "<tea>", "causal() & window(back=2)"))
    assert light["png"].startswith(b"\x89PNG\r\n\x1a\n")
    page.get_by_role("combobox", name="Theme").select_option("dark")
    assert all(download(name) != data for name, data in light.items())
    expect(page.locator("#grid-error")).to_be_empty()
