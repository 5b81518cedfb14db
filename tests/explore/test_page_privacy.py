"""All requests go to the server of the page, and nothing is stored in the browser."""

from __future__ import annotations

from urllib.parse import urlsplit

from tests._helpers.browser import PANELS, Visit, expect, open_panel


def test_all_requests_go_to_the_server(visit: Visit) -> None:
    page = visit(text="my secret sentence", expression="causal()", others=["window(back=1)"])
    for name in (name for name in PANELS if name != "code"):
        open_panel(page, name)
    with page.expect_download():
        page.get_by_role("button", name="Download as SVG").click()
    paths = {urlsplit(url).path for url in visit.requests}
    for name in ("mask", "tokens", "steps", "generate", "compare", "cost", "picture"):
        assert f"/api/{name}" in paths
    assert not any("secret" in url for url in visit.requests)  # only in bodies
    assert page.evaluate("probes.stored()") == [0] * 5


def test_requests_to_other_hosts_are_blocked_and_recorded(visit: Visit) -> None:
    page = visit(text="a b")
    request = "fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'blocked')"
    assert page.evaluate(request) == "blocked"
    with page.expect_event("requestfailed") as failed:
        page.evaluate("() => { new Image().src = 'http://127.0.0.1:9/pixel.png'; }")
    assert failed.value.failure == "csp"
    assert visit.foreign_requests() == [failed.value.url]
    assert len(visit.console_errors) >= 2
    assert all("Content Security Policy" in error for error in visit.console_errors)
    visit.requests.clear()
    visit.console_errors.clear()


def test_markup_in_tokens_and_expressions_is_text(visit: Visit) -> None:
    evil = "<img/src=x/onerror=alert(1)> <script>alert(1)</script>"
    page = visit(text=evil, expression="causal()", panel="generate", others=[evil])
    for name in ("generate", "steps", "compare"):
        open_panel(page, name)
    page.locator("#expression").fill(evil)
    expect(page.locator("#expression-error")).not_to_be_empty()
    assert page.locator("main img, main script").count() == 0
    scripts = page.evaluate("[...document.scripts].map((script) => script.src)")
    assert scripts == [f"{visit.address}static/main.js"]
