"""The steps panel: the numbers of attention are those of the library, stage by stage."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw.walkthrough import scaling
from tests._helpers.browser import (
    Locator,
    Visit,
    expect,
    expression_box,
    panel_of,
    table_values,
    wait_until_loaded,
)

STEPS = {"panel": "steps", "scores": None, "steps_view": "steps", "step": None}
SCORES = [[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]]


def stage(panel: Locator, name: str) -> Locator:
    """The table of a stage."""
    return panel.get_by_role("table", name=re.compile(rf"^{name} \(", re.IGNORECASE))


def strip(panel: Locator) -> Locator:
    return panel.get_by_role("list", name="Stages of the computation")


@pytest.mark.parametrize(
    ("expression", "options"),
    [
        ("causal()", {"seed": 3}),
        ("causal()", {"seed": 1, "width": 5, "head_size": 4, "scaled": False, "fill": -1e9}),
        ("everything()", {"rows_too": True, "batch": 1}),
        ("window(back=1) & ~queries([0])", {"fill": 0}),
        ("causal()", {"softcap": 2, "bias": "alibi([0.5])", "sink": 1}),
        ("causal()", {"sink": 0}),
    ],
)
def test_all_numbers_are_those_of_the_library(
    visit: Visit, expression: str, options: dict[str, Any]
) -> None:
    tokens = [["I", "like", "green", "tea"], ["you", "do", "<PAD>", "<PAD>"]]
    on = (mw.parse(expression) & mw.padding(lengths=[4, 2])).on(4, batch=2)
    batch = options.get("batch", 0)
    given = {"batch": 0, **options}
    if "bias" in given:
        given["bias"] = mw.bias.parse(given["bias"])
    steps = mw.walkthrough(tokens[batch], on, **given).steps
    page = visit(**STEPS, expression=expression, text="I like green tea\nyou do", **options)
    panel = panel_of(page, "steps")
    assert {"masked", "weights", "output"} < {step.name for step in steps}
    for step in steps:
        table = stage(panel, step.name)
        expect(table).to_have_count(1)
        np.testing.assert_allclose(table_values(table), step.values, atol=1e-12)
        if step.hidden is not None:
            assert table.locator("td.masked").count() == int(np.sum(step.hidden))
    expect(strip(panel).get_by_role("button")).to_have_count(len(steps))


def test_scores_are_entered(visit: Visit) -> None:
    panel = panel_of(visit(**STEPS, expression="causal()", text="I like tea"), "steps")
    panel.get_by_role("switch", name="Enter scores").click()
    tokens = ["I", "like", "tea"]
    for row, line in zip(tokens, SCORES, strict=True):
        for column, value in zip(tokens, line, strict=True):
            name = f"score of query {row} and key {column}"
            box = panel.get_by_role("spinbutton", name=name, exact=True)
            box.fill(str(value))
            box.press("Tab")
    weights = stage(panel, "weights").locator("tbody tr")
    expect(weights.nth(2).locator("td")).to_have_text(["0.2186", "0.4864", "0.2950"])
    expect(stage(panel, "masked").locator("td.masked")).to_have_count(3)
    panel.get_by_role("switch", name="Enter scores").click()
    expect(stage(panel, "output")).to_be_visible()


def test_next_and_play_go_through_the_stages(visit: Visit) -> None:
    page = visit.blank()
    page.clock.install()
    page.goto(visit.link(**STEPS, expression="causal()", text="I like tea"))
    wait_until_loaded(page)
    panel = panel_of(page, "steps")
    current = strip(panel).locator("[aria-current=step]")
    button = {
        name: panel.get_by_role("button", name=name)
        for name in ("Next", "Previous", "Play", "All stages")
    }
    expect(current).to_have_count(0)
    for name in ("X", "Q"):
        button["Next"].click()
        expect(current).to_contain_text(name)
    expect(panel.locator(".place")).to_have_text("2 of 9")
    stage(panel, "Q").locator("tbody td").first.hover()
    expect(stage(panel, "X").locator("td.highlight")).to_have_count(3)  # the row it depends on
    button["Previous"].click()
    expect(current).to_contain_text("X")
    button["Play"].click()
    for name in ("Q", "K", "V", "scores", "scaled", "masked", "weights", "output"):
        page.clock.run_for(2_400)
        expect(current).to_contain_text(name)
    expect(button["Play"]).to_be_visible()
    expect(button["Next"]).to_be_disabled()
    button["All stages"].click()
    expect(current).to_have_count(0)


def test_three_masks_are_compared(visit: Visit) -> None:
    page = visit(**{**STEPS, "steps_view": "masks"}, expression="causal()", text="a b c <PAD>")
    panel = panel_of(page, "steps")
    for name, mask in {
        "No mask": mw.everything(),
        "Padding mask": mw.padding(lengths=[3]),
        "Causal mask": mw.causal(),
    }.items():
        weights = mw.walkthrough(["a", "b", "c", "<PAD>"], mask.on(4)).steps[-2].values
        table = panel.get_by_role("table", name=name, exact=True)
        np.testing.assert_allclose(table_values(table), weights, atol=1e-12)


def test_the_effect_of_scaling_is_shown(visit: Visit) -> None:
    page = visit(**{**STEPS, "steps_view": "scaling"}, expression="causal()", text="a b c", seed=5)
    rows = panel_of(page, "steps").locator("table.scaling tbody tr")
    expected = scaling((1, 4, 16, 64, 256), seed=5)
    expect(rows).to_have_count(len(expected))
    for row, found in zip(rows.all(), expected, strict=True):
        expect(row.locator("th")).to_have_text(str(found.head_size))
        expect(row.locator(".value")).to_have_text([f"{value:.2f}" for value in found[1:]])


def test_errors_wait_until_the_user_stops_typing(visit: Visit) -> None:
    page = visit(**STEPS, expression="causal()", text="I like tea")
    panel_of(page, "steps")
    page.evaluate("probes.recordErrors()")
    expression_box(page).press_sequentially(" & wndow", delay=60)
    expect(page.locator("#panel-steps .error")).to_be_visible()
    # The editor shows the error first, and nobody shows one of a part of the text.
    assert page.evaluate("probes.errors")[0] == ["expression-error", "causal() & wndow"]
