"""English and Chinese, light and dark: all words in both, and colours that follow the choice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.explore.browser import PANELS, expect, middle_of, open_panel

if TYPE_CHECKING:
    from tests.explore.browser import Visit

CHINESE = re.compile("[一-鿿]")
WORDS = "async () => (await import('/static/words.js')).WORDS"


def test_every_word_is_there_in_both_languages(visit: Visit) -> None:
    words = visit(text="a b").evaluate(WORDS)
    assert set(words) == {"en", "zh"}
    assert words["en"].keys() == words["zh"].keys()
    assert len(words["en"]) > 200
    places = re.compile(r"\{(\w+)\}")
    for key, english in words["en"].items():
        chinese = words["zh"][key]
        assert set(places.findall(english)) == set(places.findall(chinese)), key
        assert english.strip()
        assert chinese.strip()
        assert not CHINESE.search(english), key


def test_the_page_changes_its_language_at_once_and_back(visit: Visit) -> None:
    page = visit(text="a b c", expression="causal()", query=0, key=2, panel="cost")
    expect(page.locator("html")).to_have_attribute("lang", "en")
    expect(page.locator("#why")).to_contain_text("query 0 does not attend to key 2")
    page.get_by_role("button", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    expect(page.get_by_role("textbox", name="掩码表达式")).to_have_value("causal()")
    expect(page.locator("#frame-says")).to_have_text("3 个查询 × 3 个键")
    expect(page.locator("#why")).to_have_text(CHINESE)
    expect(page.locator("#panel-tabs [role=tab]")).to_have_text([CHINESE] * len(PANELS))
    keys = set(page.evaluate(WORDS)["en"])
    for name in (name for name in PANELS if name != "code"):  # which axe sees in Chinese
        panel = open_panel(page, name)
        expect(panel.locator("p").first).to_have_text(CHINESE)
        shown = page.locator("[data-t]:visible").all_inner_texts()
        assert not keys & set(shown) - {"all"}  # a key in place of its word
    page.get_by_role("button", name="EN", exact=True).click()
    expect(page.locator("#panel-tabs [role=tab]").first).to_have_text("Steps")
    expect(page.locator("#frame-says")).to_have_text("3 queries × 3 keys")
    expect(page.locator("#why")).to_contain_text("query 0 does not attend to key 2")


def test_a_chinese_browser_starts_in_chinese(visit: Visit) -> None:
    page = visit(text="我喜欢茶", expression="causal()", context={"locale": "zh-CN"})
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    page.mouse.move(*middle_of(page, 0, 3, (4, 4)))
    expect(page.locator("#why")).to_have_text(CHINESE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_then_the_choice(visit: Visit, scheme: str) -> None:
    other = {"light": "dark", "dark": "light"}[scheme]
    page = visit(text="a b", context={"color_scheme": scheme})
    ground = "getComputedStyle(document.body).backgroundColor"
    expect(page.locator("html")).to_have_attribute("data-theme", scheme)
    first = _brightness(page.evaluate(ground))
    assert (first > 128) == (scheme == "light")
    page.get_by_role("combobox", name="Theme").select_option(other)
    expect(page.locator("html")).to_have_attribute("data-theme", other)
    assert (_brightness(page.evaluate(ground)) > 128) == (other == "light")
    page.get_by_role("combobox", name="Theme").select_option("auto")
    expect(page.locator("html")).to_have_attribute("data-theme", scheme)
    page.emulate_media(color_scheme=other)  # type: ignore[arg-type]
    expect(page.locator("html")).to_have_attribute("data-theme", other)


def test_a_large_picture_is_painted_again_in_the_other_theme(visit: Visit) -> None:
    page = visit(text=None, size=200, expression="causal()", theme="light")
    picture = "document.querySelector('#stage canvas').toDataURL()"
    light = page.evaluate(picture)
    assert page.evaluate(picture) == light
    page.get_by_role("combobox", name="Theme").select_option("dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate(picture) != light


def _brightness(colour: str) -> float:
    red, green, blue = map(float, re.findall(r"[\d.]+", colour)[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue
