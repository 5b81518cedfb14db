"""The panels compare, generate, code and cost: their numbers and texts are those of the library."""

from __future__ import annotations

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw.walkthrough import generation
from maskwright.errors import MaskError
from tests._helpers.browser import (
    Locator,
    Visit,
    drawn_cells,
    expect,
    panel_of,
    section,
    table_values,
    visible_cells,
    wait_until_loaded,
)

# Compare ---------------------------------------------------------------------------------------

FIRST = "causal() & window(back=2)"


def test_differing_cells_of_two_other_masks_are_marked(visit: Visit) -> None:
    others = ["causal()", "window(back=1, ahead=1)"]
    page = visit(panel="compare", expression=FIRST, text=None, size=7, others=[])
    panel = panel_of(page, "compare")
    panel.get_by_role("textbox", name="Other mask").fill(others[0])
    panel.get_by_role("textbox", name="Second mask").fill(others[1])
    expect(section(panel, "Other mask 2").locator(".cell-frame")).to_be_visible()
    first = mw.parse(FIRST).on(7)
    cells = first.dense()[0, 0]
    assert drawn_cells(section(panel, "This mask"), "seen") == visible_cells(cells)
    for number, text in enumerate(others, 1):
        shown, second = section(panel, f"Other mask {number}"), mw.parse(text).on(7)
        expect(shown.locator("code")).to_have_text(text)
        other = second.dense()[0, 0]
        for kind, differing in (
            ("seen", cells & other),
            ("first", cells & ~other),
            ("second", other & ~cells),
        ):
            assert drawn_cells(shown, kind) == visible_cells(differing)
        counts = f"{(cells & ~other).sum()} cells visible only in this mask, "
        expect(shown).to_contain_text(f"{counts}{(other & ~cells).sum()} only in the other.")
        expect(shown.locator(".prose")).to_have_text(repr(first.equals(second)))
    expect(panel.locator(".legend li")).to_have_count(4)


def test_an_error_in_one_field_does_not_affect_the_other(visit: Visit) -> None:
    others = ["wndow(back=1)", "causal()"]
    page = visit(panel="compare", expression=FIRST, text="a b c d", others=others)
    panel = panel_of(page, "compare")
    box = panel.get_by_role("textbox", name="Other mask")
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(panel.locator(".error")).to_contain_text("wndow")
    expect(section(panel, "Other mask 1").locator("code")).to_have_text("causal()")
    box.fill("window(back=1)")
    expect(panel.locator(".error")).to_have_count(0)
    expect(section(panel, "Other mask 2").locator("code")).to_have_text("causal()")


def test_the_selected_head_is_compared(visit: Visit) -> None:
    text = "by_head([causal(), everything()])"
    page = visit(panel="compare", expression=text, text=None, size=4, head=1, others=["causal()"])
    other = section(panel_of(page, "compare"), "Other mask 1")
    expect(other.locator(".cell-frame")).to_be_visible()
    assert drawn_cells(other, "first") == visible_cells((~mw.causal()).on(4).dense()[0, 0])


# Generate --------------------------------------------------------------------------------------

TOKENS = ["how", "are", "you", "today"]
GENERATE = {"panel": "generate", "text": " ".join(TOKENS), "seed": 2, "row": 0}


def computed_rows(panel: Locator) -> Locator:
    return panel.get_by_role("table", name="Rows computed so far")


@pytest.mark.parametrize("text", ["causal()", "everything()"])
def test_every_row_is_compared_with_one_pass(visit: Visit, text: str) -> None:
    panel = panel_of(visit(**GENERATE, expression=text), "generate")
    rows = generation(TOKENS, mw.parse(text), seed=2)
    assert [row.equal for row in rows] == [text == "causal()"] * 3 + [True]
    for index, row in enumerate(rows):
        expect(panel.locator(".tokens-so-far [aria-current=step]")).to_have_text(TOKENS[index])
        expect(panel.locator(".tokens-so-far .later")).to_have_count(3 - index)
        lines = computed_rows(panel).locator("tbody tr")
        expect(lines).to_have_count(index + 1)
        expect(lines.nth(index).locator("td:not(.highlight)")).to_have_count(0)
        output = panel.get_by_role("table", name="Output of this row")
        np.testing.assert_allclose(table_values(output), [row.alone, row.output], atol=1e-12)
        expect(panel.locator(".verdict")).to_have_text("equal" if row.equal else "not equal")
        expect(panel.locator(".bars li:has-text('(later)')")).to_have_count(
            0 if row.equal else 3 - index
        )
        if index < 3:
            panel.get_by_role("button", name="Next").click()
    expect(panel.get_by_role("button", name="Next")).to_be_disabled()
    weights = np.array([row.weights for row in rows])
    np.testing.assert_allclose(table_values(computed_rows(panel)), weights, atol=1e-12)


def test_play_stops_at_the_end(visit: Visit) -> None:
    page = visit.blank()
    page.clock.install()
    page.goto(visit.link(**GENERATE, expression="causal()"))
    wait_until_loaded(page)
    panel = panel_of(page, "generate")
    panel.get_by_role("button", name="Play").click()
    expect(panel.get_by_role("button", name="Pause")).to_be_visible()
    for count in (2, 3, 4):
        page.clock.run_for(1_400)
        expect(computed_rows(panel).locator("tbody tr")).to_have_count(count)
    expect(panel.get_by_role("button", name="Play")).to_be_visible()


# Code ------------------------------------------------------------------------------------------

POLARITY = {
    "True keeps": "True keeps the key: the query attends to it",
    "True masks": "True masks the key",
    "0 keeps, -inf masks": "added to the scores: 0 keeps, −∞ masks",
}


def card(panel: Locator, name: str) -> Locator:
    heading = panel.page.locator("h3 > span:first-child").get_by_text(name, exact=True)
    return panel.locator("section.target").filter(has=heading)


def test_the_code_of_every_target_is_that_of_the_library(visit: Visit) -> None:
    text = "causal() | keys([2])"
    page = visit(panel="code", expression=text, text=None, size=5)
    panel = panel_of(page, "code")
    targets = mw.capabilities()
    expect(panel.get_by_text(f"{len(targets)} of {len(targets)} targets")).to_be_visible()
    refused = 0
    for name, target in targets.items():
        shown = card(panel, name)
        polarity = POLARITY.get(target.polarity, target.polarity)
        assert shown.locator(".polarity").inner_text() == polarity
        try:
            code = mw.explain_lowering(mw.parse(text).on(5), name)
        except (MaskError, ImportError) as error:
            refused += 1
            if target.num_masks == 1:
                expect(shown.locator(".refusal")).to_have_text(str(error))
            expect(panel.get_by_role("button", name=f"Copy: {name}")).to_have_count(0)
        else:
            assert shown.locator("pre").text_content() == code
    assert 0 < refused < len(targets)
    expect(card(panel, "torch.transformer").locator(".refusal")).to_contain_text("3 masks")


def test_code_is_copied_and_targets_are_filtered(visit: Visit) -> None:
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    page = visit(panel="code", expression="causal()", text=None, size=5, context=allowed)
    panel = panel_of(page, "code")
    panel.get_by_role("searchbox", name="Find a target").fill("sdpa")
    expect(card(panel, "torch.sdpa")).to_be_visible()
    expect(card(panel, "numpy")).to_be_hidden()
    copy = panel.get_by_role("button", name="Copy: torch.sdpa")
    copy.click()
    expect(copy).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == mw.explain_lowering(mw.causal().on(5), "torch.sdpa")


# Cost ------------------------------------------------------------------------------------------

CASES = {"causal()": 1003, "window(back=255) | keys(range(4))": 16_384, "~causal()": 5}


def percent(share: float) -> str:
    text = f"{100 * share:.{3 if 0 < share < 0.01 else 1}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}%"


def with_shares(counts: list[int]) -> list[str]:
    return [f"{count:,} ({percent(count / sum(counts))})" for count in counts]


def test_the_numbers_are_those_of_the_library(visit: Visit) -> None:
    page = visit(panel="cost", expression="nothing()", text=None, size=9)
    for text, size in CASES.items():
        page.goto(visit.link(panel="cost", expression=text, text=None, size=size))
        on = mw.parse(text).on(size)
        count, tiles = on.count(), on.tiles(128).counts()
        panel, values = panel_of(page, "cost"), ".legend .value"
        expect(section(panel, "Cells").locator(values)).to_have_text(
            with_shares([count, size * size - count])
        )
        expect(section(panel, "Tiles").locator(values)).to_have_text(
            with_shares([tiles[name] for name in ("empty", "partial", "full")])
        )
        memory = section(panel, "Memory of the mask")
        expect(memory).to_contain_text(f"{on.spans.intervals():,} intervals")
        choice = mw.explain_backend((1, 1, size, 64), mask=on)
        work, shown = choice.work, section(panel, "Attention on this machine")
        expect(shown.locator("dd").first).to_contain_text(choice.backend)
        expect(shown).to_contain_text(choice.reason)
        share = percent(work.tiles_visited / work.tiles)
        expect(shown).to_contain_text(f"{work.tiles_visited:,} of {work.tiles:,} ({share})")
        expect(shown).to_contain_text(f"{work.cells_computed:,}, {work.cells_visible:,}")


def test_memory_has_binary_units(visit: Visit) -> None:
    page = visit(panel="cost", expression="causal()", text=None, size=2048)
    memory = section(panel_of(page, "cost"), "Memory of the mask")
    # 2048² booleans, as many float32, and 2 + 1 numbers of 8 bytes per row
    expect(memory.locator(".value")).to_have_text(["4 MiB", "16 MiB", "48 KiB"])
    expect(memory).to_contain_text("85 times less")


def test_a_mask_with_too_many_intervals_is_not_counted(visit: Visit) -> None:
    visit.expected_statuses.add(413)
    view = {"row": 0, "rows": 64, "key": 0, "keys": 64}
    page = visit(panel="cost", expression="stride(2)", text=None, size=1_048_576, view=view)
    expect(page.locator("#panel-cost .error")).to_contain_text("intervals")
    expect(page.locator("#facts")).to_contain_text("too many intervals")
