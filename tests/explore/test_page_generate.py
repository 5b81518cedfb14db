"""The generate panel: each row from the tokens so far, beside the same row of the one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import maskwright as mw
from maskwright.draw.walkthrough import generation
from tests.explore.browser import expect, numbers_of, panel_of, settled

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.explore.browser import Visit

TOKENS = ["how", "are", "you", "today"]
GENERATE = {"panel": "generate", "text": " ".join(TOKENS), "seed": 2, "row": 0}


def rows_so_far(panel: Locator) -> Locator:
    return panel.get_by_role("table", name="Rows computed so far")


def test_every_row_is_marked_and_equal_under_a_causal_mask(visit: Visit) -> None:
    page = visit(**GENERATE, expression="causal()")
    panel = panel_of(page, "generate")
    tokens = panel.get_by_role("list", name="Tokens so far").get_by_role("listitem")
    wanted = generation(TOKENS, mw.causal(), seed=2)
    for index, row in enumerate(wanted):
        expect(panel.locator(".tokens-so-far [aria-current=step]")).to_have_text(TOKENS[index])
        expect(tokens.locator("xpath=self::*[@class='later']")).to_have_count(3 - index)
        lines = rows_so_far(panel).locator("tbody tr")
        expect(lines).to_have_count(index + 1)
        expect(lines.nth(index).locator("td.lit")).to_have_count(index + 1)
        expect(rows_so_far(panel).locator("td.lit")).to_have_count(index + 1)
        output = panel.get_by_role("table", name="Output of this row")
        np.testing.assert_allclose(numbers_of(output), [row.alone, row.output], atol=1e-12)
        expect(panel.locator(".verdict")).to_have_text("equal")
        if index < 3:
            panel.get_by_role("button", name="Next").click()
    expect(panel.get_by_role("button", name="Next")).to_be_disabled()
    weights = np.array([row.weights for row in wanted])
    np.testing.assert_allclose(numbers_of(rows_so_far(panel)), weights, atol=1e-12)


def test_a_mask_that_looks_ahead_is_not_equal_but_for_the_last_row(visit: Visit) -> None:
    page = visit(**GENERATE, expression="everything()")
    panel = panel_of(page, "generate")
    wanted = [row.equal for row in generation(TOKENS, mw.everything(), seed=2)]
    assert wanted == [False, False, False, True]
    for equal in wanted:
        expect(panel.locator(".verdict")).to_have_text("equal" if equal else "not equal")
        if not equal:
            expect(panel.locator(".bars")).to_contain_text("(later)")
            panel.get_by_role("button", name="Next").click()


def test_it_plays_by_itself_and_stops_at_the_end(visit: Visit) -> None:
    page = visit.blank()
    page.clock.install()
    page.goto(visit.link(**GENERATE, expression="causal()"))
    settled(page)
    panel = panel_of(page, "generate")
    panel.get_by_role("button", name="Play").click()
    expect(panel.get_by_role("button", name="Pause")).to_be_visible()
    for count in (2, 3, 4):
        page.clock.run_for(1_400)
        expect(rows_so_far(panel).locator("tbody tr")).to_have_count(count)
    expect(panel.get_by_role("button", name="Play")).to_be_visible()
