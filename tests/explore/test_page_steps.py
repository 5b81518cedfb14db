"""The steps panel: every number of attention as the library computes it, one stage at a time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw.walkthrough import scaling
from tests.explore.browser import expect, numbers_of, panel_of, settled

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.explore.browser import Visit

STEPS = {"panel": "steps", "scores": None, "steps_view": "steps", "step": None}
BY_HAND = [[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]]


def stage(panel: Locator, name: str) -> Locator:
    """The table of one stage, which is named by its letter or word and its shape."""
    return panel.get_by_role("table", name=re.compile(rf"^{name} \(", re.IGNORECASE))


@pytest.mark.parametrize(
    ("expression", "more"),
    [
        ("causal()", {"seed": 3}),
        ("causal()", {"seed": 1, "width": 5, "head_size": 4, "scaled": False, "fill": -1e9}),
        ("everything()", {"rows_too": True, "batch": 1}),
        ("window(back=1) & ~queries([0])", {"fill": 0}),
    ],
)
def test_all_numbers_are_those_of_the_library(
    visit: Visit, expression: str, more: dict[str, Any]
) -> None:
    lines = [["I", "like", "green", "tea"], ["you", "do", "<PAD>", "<PAD>"]]
    keep = mw.padding(keep=[[token != "<PAD>" for token in line] for line in lines])
    given = {name: value for name, value in more.items() if name != "batch"}
    batch = more.get("batch", 0)
    on = (mw.parse(expression) & keep).on(4, batch=2)
    walk = mw.walkthrough(lines[batch], on, batch=batch, **given)
    page = visit(**STEPS, expression=expression, text="I like green tea\nyou do", **more)
    panel = panel_of(page, "steps")
    names = [step.name for step in walk.steps]
    assert [name for name in names if name != "scaled"][-4:] == [
        "scores",
        "masked",
        "weights",
        "output",
    ]
    for step in walk.steps:
        table = stage(panel, step.name)
        expect(table).to_have_count(1)
        np.testing.assert_allclose(numbers_of(table), step.values, atol=1e-12)
        if step.hidden is not None:
            assert table.locator("td.hid").count() == int(np.sum(step.hidden))
    expect(
        panel.get_by_role("list", name="Stages of the calculation").get_by_role("button")
    ).to_have_count(len(names))


def test_own_scores_are_typed_and_give_the_weights_by_hand(visit: Visit) -> None:
    page = visit(**STEPS, expression="causal()", text="I like tea")
    panel = panel_of(page, "steps")
    panel.get_by_role("switch", name="Type my own scores").click()
    tokens = ["I", "like", "tea"]
    for row, line in zip(tokens, BY_HAND, strict=True):
        for column, value in zip(tokens, line, strict=True):
            box = panel.get_by_role(
                "spinbutton", name=f"score of query {row} and key {column}", exact=True
            )
            box.fill(str(value))
            box.press("Tab")
    weights = stage(panel, "weights").locator("tbody tr")
    expect(weights.nth(2).locator("td")).to_have_text(["0.2186", "0.4864", "0.2950"])
    expect(weights.nth(1).locator("td").nth(0)).to_have_text("0.4256")
    expect(weights.nth(0).locator("td").nth(0)).to_have_text("1.0000")
    expect(stage(panel, "masked").locator("td.hid")).to_have_count(3)
    panel.get_by_role("switch", name="Type my own scores").click()
    expect(stage(panel, "output")).to_be_visible()


def test_next_and_play_go_through_the_stages(visit: Visit) -> None:
    page = visit.blank()
    page.clock.install()
    page.goto(visit.link(**STEPS, expression="causal()", text="I like tea"))
    settled(page)
    panel = panel_of(page, "steps")
    strip = panel.get_by_role("list", name="Stages of the calculation").locator(
        "[aria-current=step]"
    )
    expect(strip).to_have_count(0)
    panel.get_by_role("button", name="Next").click()
    expect(strip).to_contain_text("X")
    panel.get_by_role("button", name="Next").click()
    expect(strip).to_contain_text("Q")
    expect(panel.locator(".place")).to_have_text("2 of 9")
    stage(panel, "Q").locator("tbody td").first.hover()
    expect(stage(panel, "X").locator("td.lit")).to_have_count(3)  # the row that it is made of
    panel.get_by_role("button", name="Previous").click()
    expect(strip).to_contain_text("X")
    panel.get_by_role("button", name="Play").click()
    for name in ("Q", "K", "V", "scores", "scaled", "masked", "weights", "output"):
        page.clock.run_for(2_400)
        expect(strip).to_contain_text(name)
    expect(panel.get_by_role("button", name="Play")).to_be_visible()
    expect(panel.get_by_role("button", name="Next")).to_be_disabled()
    panel.get_by_role("button", name="All at once").click()
    expect(strip).to_have_count(0)


def test_three_masks_stand_side_by_side(visit: Visit) -> None:
    page = visit(**{**STEPS, "steps_view": "masks"}, expression="causal()", text="a b c <PAD>")
    panel = panel_of(page, "steps")
    masks = {
        "No mask": mw.everything(),
        "Padding mask": mw.padding(lengths=[3]),
        "Look-ahead mask": mw.causal(),
    }
    for name, mask in masks.items():
        walk = mw.walkthrough(["a", "b", "c", "<PAD>"], mask.on(4))
        table = panel.get_by_role("table", name=name, exact=True)
        np.testing.assert_allclose(numbers_of(table), walk.steps[-2].values, atol=1e-12)


def test_why_scores_are_scaled_is_shown_by_numbers(visit: Visit) -> None:
    page = visit(**{**STEPS, "steps_view": "scaling"}, expression="causal()", text="a b c", seed=5)
    rows = panel_of(page, "steps").locator("table.scaling tbody tr")
    wanted = scaling((1, 4, 16, 64, 256), seed=5)
    expect(rows).to_have_count(len(wanted))
    for row, found in zip(rows.all(), wanted, strict=True):
        expect(row.locator("th")).to_have_text(str(found.head_size))
        expect(row.locator(".value")).to_have_text([f"{value:.2f}" for value in found[1:]])


def test_more_tokens_than_fit_on_a_page_are_refused_in_words(visit: Visit) -> None:
    visit.refusals.add(413)
    page = visit(**STEPS, expression="causal()", text=None, size=33)
    expect(page.locator("#panel-steps .error")).to_contain_text("33 tokens, more than the 32")
