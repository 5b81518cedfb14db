"""The code panel: the library's own snippet for every target, or its reason for refusing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.errors import MaskError
from tests.explore.browser import expect, panel_of

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.explore.browser import Visit

POLARITY = {
    "True keeps": "True keeps: the query may see the key",
    "True drops": "True drops: the key is hidden",
    "0 keeps, -inf hides": "added to the scores: 0 keeps, −∞ hides",
}


def card(panel: Locator, name: str) -> Locator:
    return panel.locator("section.target").filter(
        has=panel.page.locator("h3 > span:first-child").get_by_text(name, exact=True)
    )


def test_every_target_shows_what_the_library_says(visit: Visit) -> None:
    on = (mw.causal() & mw.window(back=2)).on(5)
    page = visit(panel="code", expression="causal() & window(back=2)", text=None, size=5)
    panel = panel_of(page, "code")
    targets = mw.capabilities()
    expect(panel.locator("section.target")).to_have_count(len(targets))
    expect(panel.get_by_text(f"{len(targets)} of {len(targets)} targets")).to_be_visible()
    refused = 0
    for name, target in targets.items():
        shown = card(panel, name)
        expect(shown).to_have_count(1)
        said = POLARITY.get(target.polarity, target.polarity)
        assert shown.locator(".polarity").inner_text() == said
        try:
            code = mw.explain_lowering(on, name)
        except (MaskError, ImportError):
            refused += 1
            expect(shown.locator(".verdict")).to_have_text("refused")
            expect(shown.locator(".refusal")).not_to_be_empty()
        else:
            assert shown.locator("pre").text_content() == code
    assert 0 < refused < len(targets)
    expect(card(panel, "torch.transformer").locator(".refusal")).to_contain_text("3 masks at once")


def test_a_refusal_gives_its_reason(visit: Visit) -> None:
    text = "causal() | keys([2])"
    page = visit(panel="code", expression=text, text=None, size=5)
    panel = panel_of(page, "code")
    with pytest.raises(MaskError) as caught:
        mw.explain_lowering(mw.parse(text).on(5), "flash.varlen")
    expect(card(panel, "flash.varlen").locator(".refusal")).to_have_text(str(caught.value))
    expect(panel.get_by_role("button", name="Copy: flash.varlen")).to_have_count(0)


def test_the_code_is_copied_and_targets_are_found_by_name(visit: Visit) -> None:
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
