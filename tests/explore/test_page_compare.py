"""The compare panel: two or three masks side by side, the cells marked in which they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import maskwright as mw
from tests.explore.browser import cells_of, expect, panel_of

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.explore.browser import Visit

FIRST = "causal() & window(back=2)"


def block(panel: Locator, title: str) -> Locator:
    heading = panel.page.get_by_role("heading", name=title, exact=True)
    return panel.locator("section", has=heading)


def cells(array: np.ndarray) -> set[tuple[int, int]]:
    return set(map(tuple, np.argwhere(array).tolist()))


def test_differing_cells_of_two_other_masks_are_marked(visit: Visit) -> None:
    others = ["causal()", "window(back=1, ahead=1)"]
    page = visit(panel="compare", expression=FIRST, text=None, size=7, others=[])
    panel = panel_of(page, "compare")
    panel.get_by_role("textbox", name="Other mask").fill(others[0])
    panel.get_by_role("textbox", name="One more").fill(others[1])
    expect(block(panel, "Other mask 2")).to_be_visible()
    first = mw.parse(FIRST).on(7).dense()[0, 0]
    assert cells_of(block(panel, "This mask"), "seen") == cells(first)
    for number, text in enumerate(others, 1):
        shown = block(panel, f"Other mask {number}")
        expect(shown.locator("code")).to_have_text(text)
        other = mw.parse(text).on(7).dense()[0, 0]
        expect(shown.locator(".cell-frame")).to_be_visible()
        assert cells_of(shown, "seen") == cells(first & other)
        assert cells_of(shown, "first") == cells(first & ~other)
        assert cells_of(shown, "second") == cells(other & ~first)
        only_first, only_second = int((first & ~other).sum()), int((other & ~first).sum())
        expect(shown).to_contain_text(
            f"{only_first} cells only this mask lets through, {only_second} only the other."
        )
        said = repr(mw.parse(FIRST).on(7).equals(mw.parse(text).on(7)))
        expect(shown.locator(".says")).to_have_text(said)
    for entry in ("both see it", "only this mask", "only the other", "neither"):
        expect(panel.locator(".legend")).to_contain_text(entry)


def test_equal_masks_are_said_to_be_equal(visit: Visit) -> None:
    page = visit(panel="compare", expression="window(back=None)", text=None, size=7, others=[])
    panel = panel_of(page, "compare")
    panel.get_by_role("button", name="causal()", exact=True).click()
    expect(block(panel, "Other mask 1").locator(".verdict")).to_have_text("equal")
    expect(panel.get_by_role("textbox", name="Other mask")).to_have_value("causal()")


def test_a_fault_in_one_box_leaves_the_other(visit: Visit) -> None:
    page = visit(
        panel="compare", expression=FIRST, text="a b c d", others=["wndow(back=1)", "causal()"]
    )
    panel = panel_of(page, "compare")
    box = panel.get_by_role("textbox", name="Other mask")
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(panel.locator(".error")).to_contain_text("There is no atom wndow.")
    expect(block(panel, "Other mask 1").locator("code")).to_have_text("causal()")
    box.fill("window(back=1)")
    expect(panel.locator(".error")).to_have_count(0)
    expect(block(panel, "Other mask 2").locator("code")).to_have_text("causal()")


def test_the_chosen_head_is_compared(visit: Visit) -> None:
    text = "by_head([causal(), everything()])"
    page = visit(panel="compare", expression=text, text=None, size=4, head=1, others=["causal()"])
    panel = panel_of(page, "compare")
    expect(block(panel, "Other mask 1").locator(".cell-frame")).to_be_visible()
    upper = {(row, key) for row in range(4) for key in range(row + 1, 4)}
    assert cells_of(block(panel, "Other mask 1"), "first") == upper
