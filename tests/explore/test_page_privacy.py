"""Nothing leaves this machine: every request of the page goes to its own server, and nothing is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.explore.browser import PANELS, expect, open_panel

if TYPE_CHECKING:
    from tests.explore.browser import Visit


def test_all_requests_of_all_panels_go_to_the_server_itself(visit: Visit) -> None:
    page = visit(text="my secret sentence", expression="causal()", others=["window(back=1)"])
    for name in (name for name in PANELS if name != "code"):  # whose own tests look at it too
        open_panel(page, name)
    with page.expect_download():
        page.get_by_role("button", name="Download as SVG").click()
    asked = {urlsplit(url).path for url in visit.requests}
    for name in ("mask", "tokens", "steps", "generate", "compare", "cost", "picture"):
        assert f"/api/{name}" in asked
    assert visit.strangers() == []
    assert {urlsplit(url).netloc for url in visit.requests if url.startswith("http")} == {
        urlsplit(visit.address).netloc
    }
    assert not any("secret" in url for url in visit.requests)  # only in bodies, never in addresses
    kept = page.evaluate(
        "async () => [localStorage.length, sessionStorage.length, document.cookie, "
        "(await indexedDB.databases()).length, (await caches.keys()).length]"
    )
    assert kept == [0, 0, "", 0, 0]


def test_a_request_elsewhere_is_noticed_and_not_let_out(visit: Visit) -> None:
    page = visit(text="a b")
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'out', () => 'kept')") == "kept"
    with page.expect_event("requestfailed") as stopped:
        page.evaluate("() => { new Image().src = 'http://127.0.0.1:9/pixel.png'; }")
    assert stopped.value.failure == "csp"
    assert visit.strangers() == [stopped.value.url]
    assert len(visit.complaints) >= 2
    assert all("Content Security Policy" in complaint for complaint in visit.complaints)
    visit.requests.clear()
    visit.complaints.clear()


def test_markup_in_tokens_and_masks_stays_text(visit: Visit) -> None:
    evil = "<img/src=x/onerror=alert(1)> <script>alert(1)</script>"
    page = visit(text=evil, expression="causal()", panel="generate", others=[evil])
    expect(page.locator("#stage [data-row]").first).to_be_visible()
    for name in ("generate", "steps", "compare"):
        open_panel(page, name)
    page.locator("#expression").fill(evil)
    expect(page.locator("#expression-error")).not_to_be_empty()
    assert page.locator("main img, main script").count() == 0
    assert json.loads(page.evaluate("JSON.stringify([...document.scripts].map((s) => s.src))")) == [
        f"{visit.address}static/main.js"
    ]
