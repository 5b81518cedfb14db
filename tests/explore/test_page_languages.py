"""English and Chinese, light and dark."""

from __future__ import annotations

import re

import pytest

from tests._helpers.browser import PANELS, Visit, cell_center, expect, open_panel

CHINESE = re.compile("[一-鿿]")
PARAMETER = re.compile(r"\{(\w+)\}")
MESSAGES = "async () => (await import('/static/i18n.js')).MESSAGES"


def test_every_message_exists_in_both_languages(visit: Visit) -> None:
    messages = visit(text="a b").evaluate(MESSAGES)
    assert messages["en"].keys() == messages["zh"].keys()
    assert len(messages["en"]) > 200
    for key, english in messages["en"].items():
        chinese = messages["zh"][key]
        assert set(PARAMETER.findall(english)) == set(PARAMETER.findall(chinese)), key
        assert english.strip()
        assert chinese.strip()
        assert not CHINESE.search(english), key


def test_the_language_is_changed(visit: Visit) -> None:
    page = visit(text="a b c", expression="causal()", query=0, key=2, panel="cost")
    root, tabs = page.locator("html"), page.locator("#panel-tabs [role=tab]")
    summary, why = page.locator("#size-summary"), page.locator("#why")
    expect(root).to_have_attribute("lang", "en")
    expect(why).to_contain_text("query 0 does not attend to key 2")
    page.get_by_role("button", name="中文").click()
    expect(root).to_have_attribute("lang", "zh-Hans")
    expect(page.get_by_role("textbox", name="掩码表达式")).to_have_value("causal()")
    for place in (summary, why):
        expect(place).to_have_text(CHINESE)
    expect(tabs).to_have_text([CHINESE] * len(PANELS))
    keys = set(page.evaluate(MESSAGES)["en"])
    for name in PANELS:
        if name != "code":
            expect(open_panel(page, name).locator("p").first).to_have_text(CHINESE)
            shown = page.locator("[data-t]:visible").all_inner_texts()
            assert not keys & set(shown)  # a key instead of its message
    page.get_by_role("button", name="EN", exact=True).click()
    expect(tabs.first).to_have_text("Steps")
    expect(summary).to_have_text("3 queries × 3 keys")
    expect(why).to_contain_text("query 0 does not attend to key 2")


def test_a_chinese_browser_starts_in_chinese(visit: Visit) -> None:
    page = visit(text="我喜欢茶", expression="causal()", context={"locale": "zh-CN"})
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    page.mouse.move(*cell_center(page, 0, 3, (4, 4)))
    expect(page.locator("#why")).to_have_text(CHINESE)


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_colours_follow_the_system_and_the_selected_theme(
    visit: Visit, scheme: str, other: str
) -> None:
    page = visit(text=None, size=200, context={"color_scheme": scheme})
    root, theme = page.locator("html"), page.get_by_role("combobox", name="Theme")
    picture = "document.querySelector('#stage canvas').toDataURL()"
    expect(root).to_have_attribute("data-theme", scheme)
    colours = page.evaluate(BACKGROUND), page.evaluate(picture)
    assert (colours[0] > 128) == (scheme == "light")
    theme.select_option(other)
    expect(root).to_have_attribute("data-theme", other)
    assert (page.evaluate(BACKGROUND) > 128) == (other == "light")
    assert page.evaluate(picture) != colours[1]  # the canvas is painted again
    theme.select_option("auto")
    expect(root).to_have_attribute("data-theme", scheme)
    assert page.evaluate(picture) == colours[1]
    page.emulate_media(color_scheme=other)  # type: ignore[arg-type]
    expect(root).to_have_attribute("data-theme", other)


# The green channel of the background.
BACKGROUND = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[1])"
