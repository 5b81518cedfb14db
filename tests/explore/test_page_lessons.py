"""The lessons: a path from the first to the last, each of which sets the page as it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.explore.lessons import lessons
from tests.explore.browser import expect, expression_box, panel_of

if TYPE_CHECKING:
    from tests.explore.browser import Visit

LESSONS = lessons()


def test_all_lessons_are_read_in_order_by_next(visit: Visit) -> None:
    page = visit(panel="lessons", lesson=None)
    panel = panel_of(page, "lessons")
    following = panel.get_by_role("button", name="Next")
    expect(panel.get_by_role("button", name="Previous")).to_be_disabled()
    for index, lesson in enumerate(LESSONS):
        title = f"{index + 1}. {lesson['title']['en']}"
        expect(panel.get_by_role("heading", name=title, exact=True)).to_be_visible()
        for paragraph in lesson["text"]["en"]:
            expect(panel.get_by_text(paragraph, exact=True)).to_be_visible()
        expect(panel.locator(".look")).to_contain_text(lesson["look"]["en"])
        if lesson is not LESSONS[-1]:
            following.click()
    expect(following).to_be_disabled()
    panel.locator("nav").get_by_role("button", name=LESSONS[2]["title"]["en"]).click()
    expect(panel.locator("article h3")).to_have_text(f"3. {LESSONS[2]['title']['en']}")


def test_all_lessons_are_shown_on_the_page_by_next(visit: Visit) -> None:
    page = visit(panel="lessons", lesson=None)
    panel_of(page, "lessons").get_by_role("button", name="Show me").click()
    bar = page.locator(".lesson-bar")
    for index, lesson in enumerate(LESSONS):
        expect(bar).to_contain_text(f"Lesson {index + 1} of {len(LESSONS)}")
        expect(bar).to_contain_text(lesson["look"]["en"])
        state = lesson["state"]
        expect(expression_box(page)).to_have_value(state["expression"])
        name = state["panel"]
        expect(page.locator(f"#tab-{name}")).to_have_attribute("aria-selected", "true")
        panel = panel_of(page, name)
        expect(panel.locator(".old")).to_have_count(0)
        if state["text"] is not None:
            expect(page.locator("#text")).to_have_value(state["text"])
        else:
            keys = state["keys"] or state["size"]
            expect(page.locator("#frame-says")).to_contain_text(
                f"{state['size']} queries × {keys} keys"
            )
        weights = {
            "causal-by-hand": (2, ["0.2186", "0.4864", "0.2950"]),
            "minus-infinity": (0, ["0.0900", "0.2447", "hidden 0.0000", "0.6652"]),
        }.get(lesson["id"])
        if weights is not None:
            rows = panel.get_by_role("table", name="weights (").locator("tbody tr")
            expect(rows.nth(weights[0]).locator("td")).to_have_text(weights[1])
        expect(page.locator("#panels .error, #expression-error:not(:empty)")).to_have_count(0)
        if lesson is not LESSONS[-1]:
            bar.get_by_role("button", name="Next").click()
    expect(bar.get_by_role("button", name="Next")).to_have_count(0)
    bar.get_by_role("button", name="Leave").click()
    expect(bar).to_be_hidden()


def test_the_button_on_top_leads_to_the_lessons(visit: Visit) -> None:
    page = visit(panel="cost", text="a b", lesson="padding")
    page.locator("#lessons-link").click()
    panel = panel_of(page, "lessons")
    expect(panel.locator("article h3")).to_have_text("4. Padding in a batch")
    expect(page.locator("#tab-lessons")).to_be_focused()
