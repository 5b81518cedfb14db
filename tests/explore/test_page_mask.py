"""The mask card: the editor with its suggestions and errors, presets, sliders, the simpler form."""

from __future__ import annotations

from typing import Any

import pytest

import maskwright as mw
from maskwright.errors import MaskError
from tests._helpers.browser import Page, Visit, expect, expression_box


def test_suggestions_are_selected_with_the_keyboard(visit: Visit) -> None:
    page = visit(size=8, text=None)
    box, options = expression_box(page), page.locator("#suggestions [role=option]")
    box.press("Control+a")
    box.press_sequentially("pre")
    expect(options.first).to_have_attribute("aria-selected", "true")
    expect(options.first).to_contain_text("prefix(lengths)")
    box.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    selected = options.nth(1).get_attribute("id") or "none"
    expect(box).to_have_attribute("aria-activedescendant", selected)
    box.press("ArrowUp")
    box.press("Enter")
    expect(page.get_by_role("listbox", name="Suggestions")).to_be_hidden()
    expect(box).to_have_value("prefix(3)")
    expect(page.locator("#signature code")).to_have_text("prefix(lengths)")
    box.press_sequentially("5")  # replaces the arguments of the example
    expect(box).to_have_value("prefix(5)")
    box.press("End")
    box.press_sequentially(" | caus")
    box.press("Tab")
    expect(box).to_have_value("prefix(5) | causal()")
    count = (mw.prefix(5) | mw.causal()).on(8).count()
    expect(page.locator("#facts")).to_contain_text(f"{count} of 64 cells visible")


@pytest.mark.parametrize("text", ["I like tea", "a b\nc"])
def test_every_completed_atom_is_valid(visit: Visit, text: str) -> None:
    page = visit(text=text)
    box = expression_box(page)
    for name in ("window", "padding", "documents", "graph", "tree", "chunks"):
        box.fill("")
        box.press_sequentially(name)
        with page.expect_response(lambda found: "(" in (found.request.post_data or "")) as response:
            box.press("Enter")
        assert response.value.ok, box.input_value()


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
    options = page.locator("#suggestions [role=option]")
    expect(options.first).to_have_attribute("aria-setsize", "37")
    options.nth(2).click()
    expect(box).to_have_value("causal() & causal()")


def test_errors_are_shown_and_marked(visit: Visit) -> None:
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
        assert page.evaluate("probes.markedError()") == [text[:start], text[start:stop]]
        box.fill("causal()")
        expect(error).to_be_empty()
        expect(page.locator(".is-error")).to_have_count(0)
        expect(box).not_to_have_attribute("aria-invalid", "true")
        expect(page.locator("#stage")).to_have_class("stage")


def preset(page: Page, name: str) -> None:
    """Click the chip of an atom or a recipe."""
    page.locator("#mask-card .code-chip").get_by_text(name, exact=True).dispatch_event("click")


def test_presets_replace_the_expression_and_are_undone(visit: Visit) -> None:
    page = visit(expression="everything()", text=None, size=8)
    box, toast = expression_box(page), page.locator("#toast")
    preset(page, "chunks")
    expect(box).to_have_value("chunks(4)")
    expect(toast).to_contain_text("everything() was replaced by chunks.")
    preset(page, "sinks")
    expect(box).to_have_value("window(back=2) | (keys([0, 1]) & causal())")
    toast.get_by_role("button", name="Undo").click()
    expect(box).to_have_value("chunks(4)")
    expect(toast).to_be_hidden()
    page.keyboard.press("Control+z")
    expect(box).to_have_value("everything()")


def test_presets_are_combined_on_request(visit: Visit) -> None:
    page = visit(expression="causal()", text=None, size=8)
    box, combine = expression_box(page), page.get_by_role("group", name="Combine")
    both, either = (combine.get_by_role("button", name=name) for name in ("+ and…", "+ or…"))
    both.click()
    expect(both).to_have_attribute("aria-pressed", "true")
    preset(page, "chunks")
    expect(box).to_have_value("causal() & chunks(4)")
    expect(both).to_have_attribute("aria-pressed", "false")
    either.click()
    preset(page, "keys")
    expect(box).to_have_value("causal() & chunks(4) | keys([0, 1])")
    both.click()
    preset(page, "window")
    expect(box).to_have_value("(causal() & chunks(4) | keys([0, 1])) & window(back=3)")
    negate = combine.get_by_role("button", name="Negate")
    negate.click()
    expect(box).to_have_value("~((causal() & chunks(4) | keys([0, 1])) & window(back=3))")
    negate.click()
    expect(box).to_have_value("(causal() & chunks(4) | keys([0, 1])) & window(back=3)")


def test_a_preset_keeps_the_sentences_if_it_fits_them(visit: Visit) -> None:
    page = visit(text="I like tea")
    preset(page, "padding")
    expect(expression_box(page)).to_have_value("padding(lengths=[2])")
    preset(page, "natten")  # has 16 tokens
    expect(page.locator("#size-summary")).to_have_text("16 queries × 16 keys")
    expect(expression_box(page)).to_have_value("image(height=4, width=4, radius=1, border='shift')")
    expect(page.locator("#toast")).to_contain_text("the sentences were replaced")
    page.locator("#toast").get_by_role("button", name="Undo").click()
    expect(page.locator("#text")).to_have_value("I like tea")
    expect(page.locator("#size-summary")).to_have_text("3 queries × 3 keys")
    expect(expression_box(page)).to_have_value("padding(lengths=[2])")


def test_every_preset_gives_a_valid_mask(visit: Visit) -> None:
    page = visit(expression="stride(5)", text="too few tokens")
    presets = page.locator("#mask-card .code-chip")
    assert presets.count() == 37
    texts = set()
    for chip in presets.all():
        old = expression_box(page).input_value()
        with page.expect_response("**/api/mask") as response:
            chip.dispatch_event("click")
        assert response.value.ok, chip.inner_text()
        assert not expression_box(page).input_value().startswith(f"{old} ")
        texts.add(response.value.json()["expression"])
    assert len(texts) > 30


def test_sliders_change_the_numbers(visit: Visit) -> None:
    page = visit(expression="window(back=9, ahead=2) | prefix([1])", text=None, size=64)
    box = expression_box(page)
    back, ahead = (page.get_by_role("slider", name=name) for name in ("back", "ahead"))
    expect(back).to_have_value("9")
    back.press("ArrowRight")  # another digit moves all that follows
    expect(box).to_have_value("window(back=10, ahead=2) | prefix([1])")
    ahead.press("ArrowLeft")
    expect(box).to_have_value("window(back=10, ahead=1) | prefix([1])")
    back.press("Home")
    expect(box).to_have_value("window(back=0, ahead=1) | prefix([1])")
    page.get_by_role("slider", name="lengths[0]").press("ArrowRight")
    expect(box).to_have_value("window(back=0, ahead=1) | prefix([2])")
    mask = mw.window(back=0, ahead=1) | mw.prefix([2])
    expect(page.locator("#facts")).to_contain_text(f"{mask.on(64).count()} of 4,096 cells visible")


@pytest.mark.parametrize("size", [64, 4096])
def test_the_picture_follows_a_slider_while_it_is_dragged(visit: Visit, size: int) -> None:
    page = visit(expression="window(back=3)", text=None, size=size)
    in_flight, overlaps = set[object](), list[object]()

    def start(request: Any) -> None:
        if request.url.endswith("/api/mask"):
            overlaps.extend(in_flight)
            in_flight.add(request)

    page.on("request", start)
    page.on("requestfinished", lambda request: in_flight.discard(request))
    page.evaluate("probes.countRedraws()")
    handle = page.get_by_role("slider", name="back").bounding_box()
    assert handle is not None
    left, width, middle = handle["x"], handle["width"], handle["y"] + handle["height"] / 2
    page.mouse.move(left + 5, middle)
    page.mouse.down()
    for step in range(1000):
        page.mouse.move(left + 5 + 2 * step % (width - 20), middle)
        page.evaluate("() => new Promise(requestAnimationFrame)")
        if page.evaluate("probes.redraws") >= 4:
            break
    else:
        pytest.fail("the picture does not follow")
    page.mouse.up()
    assert overlaps == []
    mask = mw.parse(expression_box(page).input_value())
    expect(page.locator("#facts")).to_contain_text(f"{mask.on(size).count():,} of")


def test_the_simpler_form_is_offered(visit: Visit) -> None:
    page = visit(expression="causal() & (causal() | nothing())", text=None, size=8)
    page.get_by_role("button", name="Use this simpler form: causal()").click()
    expect(expression_box(page)).to_have_value("causal()")
    expect(page.locator("#simpler")).to_be_empty()
