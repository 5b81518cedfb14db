"""The lessons: read in order, and shown on the page."""

from __future__ import annotations

from maskwright.explore.page_data import lessons
from tests._helpers.browser import Visit, expect, expression_box, panel_of

LESSONS = lessons()
WEIGHTS = {  # of one row
    "causal-by-hand": (2, ["0.2186", "0.4864", "0.2950"]),
    "minus-infinity": (0, ["0.0900", "0.2447", "masked 0.0000", "0.6652"]),
}


def test_all_lessons_are_read_in_order(visit: Visit) -> None:
    panel = panel_of(visit(panel="lessons", lesson=None), "lessons")
    following = panel.get_by_role("button", name="Next")
    for index, lesson in enumerate(LESSONS, 1):
        expect(panel.locator("article h3")).to_have_text(f"{index}. {lesson['title']['en']}")
        for paragraph in lesson["text"]["en"]:
            expect(panel.get_by_text(paragraph, exact=True)).to_be_visible()
        expect(panel.locator(".look")).to_contain_text(lesson["look"]["en"])
        if lesson is not LESSONS[-1]:
            following.click()
    expect(following).to_be_disabled()
    panel.locator("nav").get_by_role("button", name=LESSONS[2]["title"]["en"]).click()
    expect(panel.locator("article h3")).to_have_text(f"3. {LESSONS[2]['title']['en']}")


def test_all_lessons_are_shown_on_the_page(visit: Visit) -> None:
    page = visit(panel="lessons", lesson=None, text="my own text")
    panel_of(page, "lessons").get_by_role("button", name="Show me").click()
    page.locator("#toast").get_by_role("button", name="Undo").click()
    expect(page.locator("#text")).to_have_value("my own text")
    panel_of(page, "lessons").get_by_role("button", name="Show me").click()
    expect(page.locator("#tab-steps")).to_be_focused()
    bar = page.locator(".lesson-bar")
    for index, lesson in enumerate(LESSONS, 1):
        expect(bar).to_contain_text(f"Lesson {index} of {len(LESSONS)}")
        expect(bar).to_contain_text(lesson["look"]["en"])
        state = lesson["state"]
        expect(expression_box(page)).to_have_value(state["expression"])
        panel = panel_of(page, state["panel"])
        expect(panel.locator(".stale")).to_have_count(0)
        if state["text"] is not None:
            expect(page.locator("#text")).to_have_value(state["text"])
        else:
            size = f"{state['size']} queries × {state['keys'] or state['size']} keys"
            expect(page.locator("#size-summary")).to_contain_text(size)
        if lesson["id"] in WEIGHTS:
            row, values = WEIGHTS[lesson["id"]]
            rows = panel.get_by_role("table", name="weights (").locator("tbody tr")
            expect(rows.nth(row).locator("td")).to_have_text(values)
        expect(page.locator("#panels .error, #expression-error:not(:empty)")).to_have_count(0)
        if lesson is not LESSONS[-1]:
            bar.get_by_role("button", name="Next").click()
            expect(bar.locator(":focus")).to_have_count(1)
    expect(bar.get_by_role("button", name="Next")).to_have_count(0)
    bar.get_by_role("button", name="Close").click()
    expect(bar).to_be_hidden()


def test_the_button_in_the_header_opens_the_lessons(visit: Visit) -> None:
    page = visit(panel="cost", text="a b", lesson="padding")
    page.locator("#lessons-link").click()
    heading = panel_of(page, "lessons").locator("article h3")
    expect(heading).to_have_text("4. Padding in a batch")
    expect(page.locator("#tab-lessons")).to_be_focused()
