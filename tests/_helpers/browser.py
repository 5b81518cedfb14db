"""A real server and a real browser for tests of pages, and the actions of a user.

Every test has a context of its own. At its end there must be no message on the console, no uncaught
error, and no request to another host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlsplit

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext

PANELS = ("steps", "generate", "compare", "code", "cost", "recognize", "lessons")
TIMEOUT = 20_000  # milliseconds
SHORT_TIMEOUT = 240  # milliseconds; with a short timeout, Playwright polls every 20
LONG_TIMEOUT = 90_000  # for Code, whose first response imports all frameworks
PROBES = Path(__file__).with_name("browser_probes.js")
STATUS_ERROR = re.compile(r"Failed to load resource: .* status of (\d+)")


def skip_or_fail(message: str) -> NoReturn:
    """Skip a module; fail on CI, where all tools are installed."""
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message, allow_module_level=True)


try:
    from playwright.sync_api import Locator, Page, sync_playwright
    from playwright.sync_api import expect as playwright_expect
except ImportError:
    skip_or_fail("Playwright is not installed. Run: pip install playwright axe-playwright-python")


class FrequentExpect:
    """Assertions of Playwright that poll every 20 ms; Playwright soon polls twice per second."""

    def __init__(self, assertions: Any) -> None:
        self._assertions = assertions

    def __getattr__(self, name: str) -> Callable[..., None]:
        def check(*args: Any, timeout: float = TIMEOUT, **options: Any) -> None:
            deadline = time.monotonic() + timeout / 1000
            once = getattr(self._assertions, name)
            while time.monotonic() < deadline:
                with contextlib.suppress(AssertionError):
                    once(*args, timeout=SHORT_TIMEOUT, **options)
                    return
            once(*args, timeout=SHORT_TIMEOUT, **options)  # raises with the actual value

        return check


if TYPE_CHECKING:
    expect = playwright_expect
else:

    def expect(actual: Any) -> FrequentExpect:
        """`playwright.sync_api.expect` with frequent polling."""
        return FrequentExpect(playwright_expect(actual))


class Chromium:
    """A browser that stays open between tests.

    Playwright leaves its event loop marked as running, so that asyncio.run fails in other tests of
    this process. The loop is marked only during tests of a page.
    """

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self._loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)

    @contextlib.contextmanager
    def running_loop(self) -> Iterator[None]:
        asyncio._set_running_loop(self._loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)


class Visit:
    """Opens the page, and records its requests and the errors on its console."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.address = address
        self.requests: list[str] = []
        self.console_errors: list[str] = []
        self.expected_statuses = {422}  # of invalid expressions
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def __call__(
        self, *, screen: tuple[int, int] = (1280, 900), context: Any = None, **state: Any
    ) -> Page:
        """Open the page with that state in its URL, and wait until it is loaded.

        The default panel is one that sends no requests by itself.
        """
        page = self.blank(screen=screen, **(context or {}))
        page.goto(self.link(**{"panel": "recognize", **state}))
        wait_until_loaded(page)
        return page

    def blank(self, *, screen: tuple[int, int] = (1280, 900), **given: Any) -> Page:
        """An empty page in a new context."""
        size = {"width": screen[0], "height": screen[1]}
        context = self._browser.new_context(viewport=size, reduced_motion="reduce", **given)
        context.set_default_timeout(TIMEOUT)
        context.add_init_script(path=PROBES)
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("console", lambda message: self._record(message.type, message.text))
        context.on("weberror", lambda event: self._record("error", str(event.error)))
        self._contexts.append(context)
        return context.new_page()

    def link(self, **state: Any) -> str:
        """The URL of that state."""
        pairs = (f"{name}={quote(json.dumps(value))}" for name, value in state.items())
        return f"{self.address}#{'&'.join(pairs)}"

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def check(self) -> None:
        """Assert that there was no error on the console and no request to another host."""
        assert self.console_errors == []
        assert self.foreign_requests() == []

    def foreign_requests(self) -> list[str]:
        """The requests to other hosts."""
        host = urlsplit(self.address).netloc
        local = (f"http://{host}/", "data:", "blob:")
        return [url for url in self.requests if not url.startswith(local)]

    def _record(self, kind: str, text: str) -> None:
        refusal = STATUS_ERROR.search(text)
        expected = refusal is not None and int(refusal[1]) in self.expected_statuses
        if kind in ("error", "warning") and not expected:
            self.console_errors.append(f"{kind}: {text}")


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", "maskwright", "explore", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        try:
            assert found is not None, line
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT if sys.platform != "win32" else signal.SIGTERM)
            server.communicate(timeout=60)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """One browser for all tests."""
    # The headless shell opens a page in two thirds of the time.
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        skip_or_fail("Chromium is not installed. Run: apt-get install chromium")
    playwright = sync_playwright().start()
    flags = ["--no-sandbox", "--disable-gpu"]
    chromium = Chromium(playwright.chromium.launch(executable_path=program, args=flags))
    yield chromium
    with chromium.running_loop():
        chromium.browser.close()
        playwright.stop()


@pytest.fixture
def visit(chromium: Chromium, address: str) -> Iterator[Visit]:
    """Opens the page in contexts that are closed after the test."""
    with chromium.running_loop():
        opened = Visit(chromium.browser, address)
        try:
            yield opened
        finally:
            opened.close()
    opened.check()


# Actions of a user ------------------------------------------------------------------------------


def wait_until_loaded(page: Page) -> None:
    """Wait for the picture and the tabs."""
    expect(page.locator("#panel-tabs [role=tab]")).to_have_count(len(PANELS))
    expect(page.locator("#stage .grid svg")).to_be_visible()


def open_panel(page: Page, name: str) -> Locator:
    """Open a panel by its tab, and wait for its content."""
    page.locator(f"#tab-{name}").click()
    return panel_of(page, name)


def panel_of(page: Page, name: str) -> Locator:
    """The open panel; waits for its content."""
    panel = page.locator(f"#panel-{name}")
    expect(panel).to_be_visible()
    timeout = LONG_TIMEOUT if name == "code" else TIMEOUT
    if name != "recognize":
        expect(panel.locator(".panel-body > *").first).to_be_visible(timeout=timeout)
    expect(panel.locator(".panel-body")).not_to_have_attribute("aria-busy", "true", timeout=timeout)
    return panel


def expression_box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Mask expression")


def section(panel: Locator, title: str) -> Locator:
    """The section of a panel with that heading."""
    return panel.locator("section", has=panel.page.get_by_role("heading", name=title, exact=True))


def visible_cells(array: Any) -> set[tuple[int, int]]:
    """The (query, key) pairs that are true."""
    return set(map(tuple, np.argwhere(array).tolist()))


def drawn_cells(place: Locator, kind: str) -> set[tuple[int, int]]:
    """The cells of a kind in a picture: seen, some, first, second or mixed."""
    return set(map(tuple, place.evaluate("(place, kind) => probes.cells(place, kind)", kind)))


def cell_center(page: Page, row: int, key: int, shape: tuple[int, int]) -> tuple[float, float]:
    """The center of a square of the mask's picture on the screen."""
    left, top, width, height = page.evaluate("probes.pictureFrame()")
    return left + (key + 0.5) * width / shape[1], top + (row + 0.5) * height / shape[0]


def table_values(table: Locator) -> list[list[float]]:
    """The numbers of a table with all digits."""
    rows = table.evaluate("(table) => probes.titles(table)")
    symbols = str.maketrans({"−": "-", "∞": "inf"})
    return [[float(text.translate(symbols)) for text in row] for row in rows]


def axe_violations(page: Page, context: str | None = None, *, is_loaded: bool = False) -> list[str]:
    """What axe reports of a page or a part of it; `is_loaded` if it has run on this page before."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        skip_or_fail("axe is not installed. Run: pip install axe-playwright-python")
    axe = Axe(axe_script="void 0") if is_loaded else Axe()
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in axe.run(page, context).response["violations"]
        for node in rule["nodes"]
    ]


def overflow(page: Page) -> int:
    """Number of pixels by which a page is wider than its window."""
    pixels: int = page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
    return max(0, pixels)
