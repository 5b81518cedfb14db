"""The tokens card: sentences become tokens, lines a batch, and <PAD> comes and goes by click."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import maskwright as mw
from tests.explore.browser import cells_of, expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.explore.browser import Visit


def sentence(page: Page, number: int = 1) -> Locator:
    return page.get_by_role("group", name=f"Sentence {number}", exact=True)


def tokens(page: Page, number: int = 1) -> Locator:
    return sentence(page, number).locator(".token")


def test_a_sentence_becomes_tokens_and_they_name_the_rows(visit: Visit) -> None:
    page = visit(text="one")
    for text, found in {
        "The cat  sat": ["The", "cat", "sat"],
        "我喜欢茶": ["我", "喜", "欢", "茶"],
        "a 👩‍👩‍👧 é <PAD> b": ["a", "👩‍👩‍👧", "é", "<PAD>", "b"],
    }.items():
        page.get_by_role("textbox", name="One sentence a line").fill(text)
        expect(tokens(page)).to_have_text(found)
        expect(page.locator("#stage [data-row]")).to_have_text(found)
        expect(page.locator("#stage [data-column]")).to_have_text(found)
        expect(page.locator("#frame-says")).to_have_text(
            f"{len(found)} queries × {len(found)} keys"
        )


def test_several_lines_are_a_batch_filled_up_at_the_chosen_side(visit: Visit) -> None:
    page = visit(text="x", expression="causal()")
    page.get_by_role("textbox", name="One sentence a line").fill("I like green tea\n\nyou do")
    expect(tokens(page, 1)).to_have_text(["I", "like", "green", "tea"])
    expect(tokens(page, 2)).to_have_text(["you", "do", "<PAD>", "<PAD>"])
    expect(page.locator("#frame-says")).to_have_text("4 queries × 4 keys, batch 2")
    page.get_by_role("tab", name="batch 1").click()
    expect(page.locator("#stage [data-row]")).to_have_text(["you", "do", "<PAD>", "<PAD>"])
    keep = mw.padding(keep=[[1, 1, 1, 1], [1, 1, 0, 0]])
    seen = (mw.causal() & keep).on(4, batch=2).dense()[1, 0]
    assert cells_of(page.locator("#stage"), "seen") == set(map(tuple, np.argwhere(seen).tolist()))

    page.get_by_role("button", name="left", exact=True).click()
    expect(tokens(page, 2)).to_have_text(["<PAD>", "<PAD>", "you", "do"])
    expect(page.locator("#stage [data-row]")).to_have_text(["<PAD>", "<PAD>", "you", "do"])


def test_padding_is_added_left_and_right_and_removed_by_click(visit: Visit) -> None:
    page = visit(text="I like tea")
    page.get_by_role("button", name="Add <PAD> to the right of sentence 1").click()
    expect(tokens(page)).to_have_text(["I", "like", "tea", "<PAD>"])
    page.get_by_role("button", name="Add <PAD> to the left of sentence 1").click()
    expect(tokens(page)).to_have_text(["<PAD>", "I", "like", "tea", "<PAD>"])
    expect(page.locator("#text")).to_have_value("<PAD> I like tea <PAD>")
    expect(page.locator("#frame-says")).to_have_text("5 queries × 5 keys")
    page.get_by_role("button", name="Remove this <PAD>").first.click()
    expect(tokens(page)).to_have_text(["I", "like", "tea", "<PAD>"])
    page.get_by_role("button", name="Remove this <PAD>").click()
    expect(tokens(page)).to_have_text(["I", "like", "tea"])
    expect(page.get_by_role("button", name="Remove this <PAD>")).to_have_count(0)


def test_only_the_padding_that_was_added_can_be_removed(visit: Visit) -> None:
    page = visit(text="a b c d\ne <PAD>", side="left")
    expect(tokens(page, 2)).to_have_text(["<PAD>", "<PAD>", "e", "<PAD>"])
    remove = sentence(page, 2).get_by_role("button", name="Remove this <PAD>")
    expect(remove).to_have_count(1)
    remove.click()
    expect(tokens(page, 2)).to_have_text(["<PAD>", "<PAD>", "<PAD>", "e"])
    expect(page.locator("#text")).to_have_value("a b c d\ne")


def test_padding_is_hidden_by_a_switch(visit: Visit) -> None:
    page = visit(text="a b <PAD>", expression="everything()")
    expect(page.locator("#facts")).to_contain_text("6 of 9 cells seen")
    expect(page.locator("#facts")).to_contain_text("1 key is never seen")
    page.get_by_role("switch", name="Hide padding").click()
    expect(page.locator("#facts")).to_contain_text("9 of 9 cells seen")
    expect(page.locator("#facts")).not_to_contain_text("never seen")


def test_without_tokens_the_sizes_count(visit: Visit) -> None:
    page = visit(text="a b", expression="causal()")
    page.get_by_role("button", name="Only a size").click()
    page.get_by_label("Queries").fill("6")
    expect(page.locator("#frame-says")).to_have_text("6 queries × 6 keys")
    page.get_by_text("More sizes").click()
    page.get_by_label("Keys", exact=True).fill("10")
    page.get_by_label("Batch rows").fill("2")
    page.get_by_label("Heads").fill("3")
    expect(page.locator("#frame-says")).to_have_text("6 queries × 10 keys, batch 2, 3 heads")
    page.get_by_label("First query's position").fill("1")
    count = mw.causal().on(6, 10, 2, 3, q_start=1).count()
    expect(page.locator("#facts")).to_contain_text(f"{count} of 360 cells seen")
    page.get_by_label("Queries").fill("0")
    expect(page.locator("#tokens-error")).to_have_text("Give a whole number from 1 to 1,048,576.")
    expect(page.get_by_label("Queries")).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Sentences").click()
    expect(tokens(page)).to_have_text(["a", "b"])
    expect(page.locator("#frame-says")).to_have_text("2 queries × 2 keys")


def test_an_empty_text_says_so_and_too_long_a_text_is_refused(visit: Visit) -> None:
    visit.refusals.add(413)
    page = visit(text="a")
    box = page.get_by_role("textbox", name="One sentence a line")
    box.fill("")
    expect(page.locator("#sentences")).to_have_text(
        "There is no token yet. Write a sentence above."
    )
    box.fill("a " * 300)
    expect(page.locator("#tokens-error")).to_contain_text("256")
