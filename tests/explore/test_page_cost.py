"""The cost panel: cells, tiles, memory, and the backend and work of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import maskwright as mw
from tests.explore.browser import expect, panel_of

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.explore.browser import Visit


def block(panel: Locator, title: str) -> Locator:
    return panel.locator("section", has=panel.page.get_by_role("heading", name=title, exact=True))


def shares(counts: list[int]) -> list[str]:
    whole = sum(counts)
    return [f"{count:,} ({_percent(count / whole)})" for count in counts]


def _percent(share: float) -> str:
    text = f"{100 * share:.{3 if 0 < share < 0.01 else 1}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}%"


CASES = {"causal()": 1003, "window(back=255) | keys(range(4))": 16_384, "~causal()": 5}


def test_the_numbers_are_those_of_the_library(visit: Visit) -> None:
    """On one page, whose link is changed, as in the address bar."""
    page = visit(panel="cost", expression="nothing()", text=None, size=9)
    for text, size in CASES.items():
        page.goto(visit.link(panel="cost", expression=text, text=None, size=size))
        on = mw.parse(text).on(size)
        count, cells = on.count(), size * size
        panel = panel_of(page, "cost")
        values = ".legend .value"
        expect(block(panel, "Cells")).to_contain_text(f"{count:,} of {cells:,} cells may be seen.")
        expect(block(panel, "Cells").locator(values)).to_have_text(shares([count, cells - count]))
        tiles = on.tiles(128).counts()
        expect(block(panel, "Tiles").locator(values)).to_have_text(
            shares([tiles[name] for name in ("empty", "partial", "full")])
        )
        memory = block(panel, "Memory of the mask")
        expect(memory).to_contain_text(f"Held as {on.spans.intervals():,} intervals of keys.")
        choice = mw.explain_backend((1, 1, size, 64), mask=on)
        work, shown = choice.work, block(panel, "Attention on this machine")
        expect(shown.locator("dd").first).to_contain_text(choice.backend)
        expect(shown).to_contain_text(choice.reason)
        share = _percent(work.tiles_visited / work.tiles)
        expect(shown).to_contain_text(f"{work.tiles_visited:,} of {work.tiles:,} ({share})")
        expect(shown).to_contain_text(
            f"{work.cells_computed:,}, {work.cells_visible:,} of them visible"
        )


def test_memory_is_said_in_binary_units(visit: Visit) -> None:
    page = visit(panel="cost", expression="causal()", text=None, size=2048)
    memory = block(panel_of(page, "cost"), "Memory of the mask")
    # 2048² booleans, four times that as floats, and 2 + 1 numbers of 8 bytes a row
    expect(memory.locator(".value")).to_have_text(["4 MiB", "16 MiB", "48 KiB"])
    expect(memory).to_contain_text("85 times less")


def test_what_is_too_large_to_count_says_so(visit: Visit) -> None:
    visit.refusals.add(413)
    page = visit(
        panel="cost",
        expression="stride(2)",
        text=None,
        size=1_048_576,
        view={"row": 0, "rows": 64, "key": 0, "keys": 64},
    )
    expect(page.locator("#panel-cost .error")).to_contain_text("intervals")
    expect(page.locator("#facts")).to_contain_text("too many different ones to count")
