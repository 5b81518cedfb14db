"""The tokens card: sentences, the batch, padding, and a length without sentences."""

from __future__ import annotations

import maskwright as mw
from tests._helpers.browser import Locator, Page, Visit, drawn_cells, expect, visible_cells


def text_box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="One sentence per line")


def expect_tokens(page: Page, *sentences: list[str]) -> None:
    for number, tokens in enumerate(sentences, 1):
        sentence = page.get_by_role("group", name=f"Sentence {number}", exact=True)
        expect(sentence.locator(".token")).to_have_text(tokens)


def expect_size(page: Page, text: str) -> None:
    expect(page.locator("#size-summary")).to_have_text(text)


def test_sentences_are_split_into_tokens(visit: Visit) -> None:
    page = visit(text="one")
    for text, tokens in {
        "The cat  sat": ["The", "cat", "sat"],
        "我喜欢茶": ["我", "喜", "欢", "茶"],
        "我 喜欢 喝 茶": ["我", "喜欢", "喝", "茶"],
        "a 👩‍👩‍👧 é <PAD> b": ["a", "👩‍👩‍👧", "é", "<PAD>", "b"],
    }.items():
        text_box(page).fill(text)
        expect_tokens(page, tokens)
        expect(page.locator("#stage [data-row]")).to_have_text(tokens)
        expect(page.locator("#stage [data-column]")).to_have_text(tokens)
        expect_size(page, f"{len(tokens)} queries × {len(tokens)} keys")


def test_several_lines_are_a_padded_batch(visit: Visit) -> None:
    page = visit(text="x", expression="causal()")
    text_box(page).fill("I like green tea\n\nyou do")
    padded = ["you", "do", "<PAD>", "<PAD>"]
    expect_tokens(page, ["I", "like", "green", "tea"], padded)
    expect_size(page, "4 queries × 4 keys, batch 2")
    page.get_by_role("tab", name="batch 1").click()
    expect(page.locator("#stage [data-row]")).to_have_text(padded)
    seen = (mw.causal() & mw.padding(lengths=[4, 2])).on(4, batch=2).dense()[1, 0]
    assert drawn_cells(page.locator("#stage"), "seen") == visible_cells(seen)

    page.get_by_role("button", name="left", exact=True).click()
    expect_tokens(page, ["I", "like", "green", "tea"], padded[2:] + padded[:2])
    expect(page.locator("#stage [data-row]")).to_have_text(padded[2:] + padded[:2])


def test_padding_is_added_and_removed(visit: Visit) -> None:
    page = visit(text="I like tea")
    page.get_by_role("button", name="Add <PAD> to the right of sentence 1").click()
    expect_tokens(page, ["I", "like", "tea", "<PAD>"])
    page.get_by_role("button", name="Add <PAD> to the left of sentence 1").click()
    expect_tokens(page, ["<PAD>", "I", "like", "tea", "<PAD>"])
    expect(text_box(page)).to_have_value("<PAD> I like tea <PAD>")
    remove = page.get_by_role("button", name="Remove this <PAD>")
    remove.first.click()
    expect_tokens(page, ["I", "like", "tea", "<PAD>"])
    remove.click()
    expect_tokens(page, ["I", "like", "tea"])
    expect(remove).to_have_count(0)


def test_only_padding_of_the_text_is_removed(visit: Visit) -> None:
    page = visit(text="a b c d\ne <PAD>", side="left")
    expect_tokens(page, ["a", "b", "c", "d"], ["<PAD>", "<PAD>", "e", "<PAD>"])
    remove = page.get_by_role("button", name="Remove this <PAD>")
    remove.click()  # the only one
    expect_tokens(page, ["a", "b", "c", "d"], ["<PAD>", "<PAD>", "<PAD>", "e"])
    expect(text_box(page)).to_have_value("a b c d\ne")


def test_padding_is_masked_by_a_switch(visit: Visit) -> None:
    page = visit(text="a b <PAD>", expression="everything()")
    expect(page.locator("#facts")).to_contain_text("6 of 9 cells visible")
    page.get_by_role("switch", name="Mask padding").click()
    expect(page.locator("#facts")).to_contain_text("9 of 9 cells visible")


def test_a_length_is_used_without_sentences(visit: Visit) -> None:
    page = visit(text="a b", expression="causal()")
    page.get_by_role("button", name="Length only").click()
    page.get_by_label("Queries").fill("6")
    expect_size(page, "6 queries × 6 keys")
    page.get_by_text("More sizes").click()
    for label, value in (("Keys", "10"), ("Batch size", "2"), ("Heads", "3")):
        page.get_by_label(label, exact=True).fill(value)
    expect_size(page, "6 queries × 10 keys, batch 2, 3 heads")
    page.get_by_label("First query's position").fill("1")
    count = mw.causal().on(6, 10, 2, 3, q_start=1).count()
    expect(page.locator("#facts")).to_contain_text(f"{count} of 360 cells visible")
    page.get_by_label("Queries").fill("0")
    expect(page.locator("#tokens-error")).to_contain_text("from 1 to 1,048,576")
    expect(page.get_by_label("Queries")).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Sentences").click()
    expect_tokens(page, ["a", "b"])
    expect_size(page, "2 queries × 2 keys")


def test_an_empty_or_too_long_text_is_reported(visit: Visit) -> None:
    visit.expected_statuses.add(413)
    page = visit(text="a")
    text_box(page).fill("")
    expect(page.locator("#sentences .note")).to_be_visible()
    text_box(page).fill("a " * 300)
    expect(page.locator("#tokens-error")).to_contain_text("256")
