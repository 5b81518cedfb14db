"""The mask card: the box with its suggestions and errors, chips, sliders, the simpler form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.errors import MaskError
from tests.explore.browser import expect, expression_box

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.explore.browser import Visit


def test_suggestions_are_chosen_by_keyboard(visit: Visit) -> None:
    page = visit(size=8, text=None)
    box, options = expression_box(page), page.locator("#suggestions [role=option]")
    box.press("Control+a")
    box.press_sequentially("pre")
    expect(page.get_by_role("listbox", name="Suggestions")).to_be_visible()
    expect(options.first).to_have_attribute("aria-selected", "true")
    expect(options.first).to_contain_text("prefix(lengths)")
    count = options.count()
    assert count > 1
    box.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    chosen = options.nth(1).get_attribute("id")
    assert chosen is not None
    expect(box).to_have_attribute("aria-activedescendant", chosen)
    box.press("ArrowUp")
    box.press("Enter")
    expect(page.get_by_role("listbox", name="Suggestions")).to_be_hidden()
    expect(box).to_have_value("prefix()")
    expect(page.locator("#signature code")).to_have_text("prefix(lengths)")
    box.press_sequentially("3")  # the caret is between the brackets
    expect(box).to_have_value("prefix(3)")
    box.press("End")
    box.press_sequentially(" | caus")
    box.press("Tab")
    expect(box).to_have_value("prefix(3) | causal()")
    expect(box).to_be_focused()
    expect(page.locator("#facts")).to_contain_text(
        f"{(mw.prefix(3) | mw.causal()).on(8).count()} of 64 cells seen"
    )


def test_escape_closes_the_suggestions_and_ctrl_space_opens_all(visit: Visit) -> None:
    page = visit(expression="causal()")
    box, listbox = expression_box(page), page.get_by_role("listbox", name="Suggestions")
    box.press("End")
    box.press_sequentially(" & win")
    expect(listbox).to_be_visible()
    box.press("Escape")
    expect(listbox).to_be_hidden()
    expect(box).to_have_value("causal() & win")
    expect(box).to_be_focused()
    for _ in "win":
        box.press("Backspace")
    box.press("Control+Space")
    expect(listbox).to_be_visible()
    expect(page.locator("#suggestions [role=option]").first).to_have_attribute("aria-setsize", "37")
    page.locator("#suggestions [role=option]").nth(2).click()
    expect(box).to_have_value("causal() & causal()")


def test_errors_are_said_and_marked_where_they_are(visit: Visit) -> None:
    page = visit(expression="causal()", text=None, size=8)
    box, error = expression_box(page), page.locator("#expression-error")
    for text in (
        "causal() & wndow(back=2)",
        "causal() & (window(back=2)",
        "window(back=2) | window(back=-3)",
        "causal() & queries('🍵🍵') & wndow(back=2)",
        "causal() & 3",
    ):
        with pytest.raises(MaskError) as caught:
            mw.parse(text)
        start, stop = caught.value.at  # type: ignore[attr-defined]
        box.fill(text)
        expect(error).to_have_text(str(caught.value))
        expect(box).to_have_attribute("aria-invalid", "true")
        expect(page.locator("#stage")).to_have_class("stage stale")
        marked = page.locator("#expression-back .is-wrong").all_inner_texts()
        assert "".join(marked) == text[start:stop]
        assert _letters_before_the_mark(page) == text[:start]
        box.fill("causal()")
        expect(error).to_be_empty()
        expect(page.locator(".is-wrong")).to_have_count(0)
        expect(box).not_to_have_attribute("aria-invalid", "true")
        expect(page.locator("#stage")).to_have_class("stage")


def _letters_before_the_mark(page: Page) -> str:
    """What stands to the left of the mark, in the text that lies behind the box."""
    left: str = page.evaluate(
        """() => {
          const range = document.createRange();
          range.setStart(document.getElementById("expression-back"), 0);
          range.setEndBefore(document.querySelector("#expression-back .is-wrong"));
          return range.toString();
        }"""
    )
    return left


def test_chips_join_atoms_and_recipes(visit: Visit) -> None:
    page = visit(expression="causal()", text=None, size=8)
    box, atoms = expression_box(page), page.get_by_role("group", name="Atoms", exact=True)
    atoms.get_by_role("button", name="chunks").click()
    expect(box).to_have_value("causal() & chunks(4)")
    page.get_by_role("button", name="| or").click()
    atoms.get_by_role("button", name="keys").click()
    expect(box).to_have_value("causal() & chunks(4) | keys([0, 1])")
    page.get_by_role("button", name="& and").click()
    atoms.get_by_role("button", name="window").click()
    expect(box).to_have_value("(causal() & chunks(4) | keys([0, 1])) & window(back=3)")
    negate = page.get_by_role("button", name="~ not")
    negate.click()
    expect(box).to_have_value("~((causal() & chunks(4) | keys([0, 1])) & window(back=3))")
    negate.click()
    expect(box).to_have_value("(causal() & chunks(4) | keys([0, 1])) & window(back=3)")
    page.get_by_role("button", name="replace").click()
    page.get_by_text("More atoms, and recipes").click()
    page.get_by_role("group", name="Recipes").get_by_role("button", name="sinks").click()
    expect(box).to_have_value("window(back=2) | (keys([0, 1]) & causal())")
    expect(page.locator("#expression-error")).to_be_empty()


def test_a_recipe_of_its_own_size_brings_it_along(visit: Visit) -> None:
    page = visit(text="a b c")
    page.get_by_text("More atoms, and recipes").click()
    page.get_by_role("group", name="Recipes").get_by_role("button", name="natten").click()
    expect(page.locator("#frame-says")).to_have_text("16 queries × 16 keys")
    expect(expression_box(page)).to_have_value("image(height=4, width=4, radius=1, border='shift')")


def test_every_chip_gives_a_mask_that_can_be_shown(visit: Visit) -> None:
    page = visit(expression="chunks(2)", text="too few tokens")
    page.get_by_role("button", name="replace").click()
    page.get_by_text("More atoms, and recipes").click()
    chips = page.locator("#atoms .chip, #more-atoms .chip, #recipes .chip")
    assert chips.count() == 37
    said = set()
    for chip in chips.all():
        with page.expect_response("**/api/mask") as asked:
            chip.dispatch_event("click")  # without the wait for a chip that keeps still
        assert asked.value.ok, chip.inner_text()
        said.add(asked.value.json()["said"])
    assert len(said) > 30


def test_sliders_change_the_numbers(visit: Visit) -> None:
    page = visit(expression="window(back=9, ahead=2) | prefix([1])", text=None, size=64)
    box = expression_box(page)
    back, ahead = (page.get_by_role("slider", name=name) for name in ("back", "ahead"))
    expect(back).to_have_value("9")
    back.press("ArrowRight")  # one digit more moves all that follows
    expect(box).to_have_value("window(back=10, ahead=2) | prefix([1])")
    ahead.press("ArrowLeft")
    expect(box).to_have_value("window(back=10, ahead=1) | prefix([1])")
    back.press("Home")
    expect(box).to_have_value("window(back=0, ahead=1) | prefix([1])")
    page.get_by_role("slider", name="lengths[0]").press("ArrowRight")
    expect(box).to_have_value("window(back=0, ahead=1) | prefix([2])")
    mask = mw.window(back=0, ahead=1) | mw.prefix([2])
    expect(page.locator("#facts")).to_contain_text(f"{mask.on(64).count()} of 4,096 cells seen")


def test_a_simpler_form_is_offered_and_taken(visit: Visit) -> None:
    page = visit(expression="causal() & (causal() | nothing())", text=None, size=8)
    page.get_by_role("button", name="Use this simpler form: causal()").click()
    expect(expression_box(page)).to_have_value("causal()")
    expect(page.locator("#simpler")).to_be_empty()
