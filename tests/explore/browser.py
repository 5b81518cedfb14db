"""A real server and a real browser for tests of the page, and what a reader does in it.

Every test has a context of its own, and at its end the page must have been quiet: nothing on the
console, no error that nobody caught, no request to anywhere but the server.
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
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, Locator, Playwright

PANELS = ("steps", "generate", "compare", "code", "cost", "recognise", "lessons")
PATIENCE = 20_000  # milliseconds
OFTEN = 240  # milliseconds: of so few, Playwright looks every 20
LONG_PATIENCE = 90_000  # for Code, whose first answer imports all frameworks
REFUSAL = re.compile(r"Failed to load resource: .* status of (\d+)")  # the browser's own words


def lacking(message: str) -> NoReturn:
    """Skip, but on CI, where everything has to be there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message, allow_module_level=True)


try:
    from playwright.sync_api import Page, sync_playwright
    from playwright.sync_api import expect as expect_rarely
except ImportError:
    lacking("Playwright is not installed. Run: pip install playwright axe-playwright-python")


class Expecting:
    """What is expected of a page, looked at every 20 ms until it is so.

    Playwright itself soon looks only twice a second, unless it is given little time.
    """

    def __init__(self, about: Any) -> None:
        self._about = about

    def __getattr__(self, name: str) -> Callable[..., None]:
        def look(*wanted: Any, timeout: float = PATIENCE, **more: Any) -> None:
            until = time.monotonic() + timeout / 1000
            check = getattr(self._about, name)
            while time.monotonic() < until:
                with contextlib.suppress(AssertionError):
                    check(*wanted, timeout=OFTEN, **more)
                    return
            check(*wanted, timeout=OFTEN, **more)  # and say what is there instead

        return look


if TYPE_CHECKING:
    expect = expect_rarely
else:

    def expect(place: Any) -> Expecting:
        """What `playwright.sync_api.expect` does, only sooner."""
        return Expecting(expect_rarely(place))


class Chromium:
    """A browser that stays open from test to test.

    Playwright leaves its event loop marked as running, and asyncio.run of another test in this
    process would refuse to start. So the mark is there only while a test of the page runs.
    """

    def __init__(self, playwright: Playwright, browser: Browser) -> None:
        self.playwright = playwright
        self.browser = browser
        self._loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        asyncio._set_running_loop(self._loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)


class Visit:
    """Opens the page, and remembers what it asked for and what it complained about."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.address = address
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.refusals = {422}  # wrong expressions; a test may add others that it brings about
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def __call__(
        self, *, screen: tuple[int, int] = (1280, 900), context: Any = None, **state: Any
    ) -> Page:
        """The page with that state in its link, once its picture is there.

        Where no panel is named, one is open that asks nothing by itself.
        """
        page = self.blank(screen=screen, **(context or {}))
        page.goto(self.link(**{"panel": "recognise", **state}))
        settled(page)
        return page

    def blank(self, *, screen: tuple[int, int] = (1280, 900), **given: Any) -> Page:
        """An empty page in a new context."""
        size = {"width": screen[0], "height": screen[1]}
        context = self._browser.new_context(viewport=size, reduced_motion="reduce", **given)
        context.set_default_timeout(PATIENCE)
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("console", lambda said: self._hear(said.type, said.text))
        context.on("weberror", lambda raised: self._hear("error", str(raised.error)))
        self._contexts.append(context)
        return context.new_page()

    def link(self, **state: Any) -> str:
        """The address that shows that state."""
        named = (f"{name}={quote(json.dumps(value))}" for name, value in state.items())
        return f"{self.address}#{'&'.join(named)}"

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def check(self) -> None:
        """The page was quiet, and spoke to its server alone."""
        complaints, strangers = self.complaints, self.strangers()
        assert not complaints, f"The page complained: {complaints}"
        assert not strangers, f"The page asked elsewhere: {strangers}"

    def strangers(self) -> list[str]:
        """The requests that went elsewhere."""
        home = urlsplit(self.address).netloc
        parts = [(url, urlsplit(url)) for url in self.requests]
        return [
            url
            for url, part in parts
            if part.scheme not in ("data", "blob") and (part.scheme, part.netloc) != ("http", home)
        ]

    def _hear(self, kind: str, text: str) -> None:
        refusal = REFUSAL.search(text)
        expected = refusal is not None and int(refusal[1]) in self.refusals
        if kind in ("error", "warning") and not expected:
            self.complaints.append(f"{kind}: {text}")


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Where a server of its own process listens, with workers as they are."""
    command = [sys.executable, "-m", "maskwright", "explore", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", said)
        try:
            assert found is not None, said
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT if sys.platform != "win32" else signal.SIGTERM)
            server.communicate(timeout=60)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """One browser for all tests."""
    # Where both are there, the one that has no windows: it opens a page in two thirds of the time.
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        lacking("There is no Chromium. Run: apt-get install chromium")
    playwright = sync_playwright().start()
    flags = ["--no-sandbox", "--disable-gpu"]
    try:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
    except BaseException:
        playwright.stop()
        raise
    chromium = Chromium(playwright, browser)
    yield chromium
    with chromium.at_work():
        browser.close()
        playwright.stop()


@pytest.fixture
def visit(chromium: Chromium, address: str) -> Iterator[Visit]:
    """Opens the page in contexts that are closed after the test."""
    with chromium.at_work():
        opened = Visit(chromium.browser, address)
        try:
            yield opened
        finally:
            opened.close()
    opened.check()


# What a reader does ------------------------------------------------------------------------------


def settled(page: Page) -> None:
    """Wait until the page shows its picture and its tabs."""
    expect(page.locator("#panel-tabs [role=tab]")).to_have_count(len(PANELS))
    expect(page.locator("#stage .grid svg")).to_be_visible()


def open_panel(page: Page, name: str) -> Locator:
    """Open a panel by its tab, and wait until it shows an answer."""
    page.locator(f"#tab-{name}").click()
    return panel_of(page, name)


def panel_of(page: Page, name: str) -> Locator:
    """The open panel, once it shows an answer."""
    panel = page.locator(f"#panel-{name}")
    expect(panel).to_be_visible()
    patience = LONG_PATIENCE if name == "code" else PATIENCE
    if name != "recognise":
        expect(panel.locator(".panel-body > *").first).to_be_visible(timeout=patience)
    expect(panel.locator(".panel-body")).not_to_have_attribute(
        "aria-busy", "true", timeout=patience
    )
    return panel


def expression_box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Mask expression")


def cells_of(place: Locator, look: str) -> set[tuple[int, int]]:
    """The cells that a picture draws in that look: seen, some, first, second or mixed."""
    return {
        (row, column)
        for row, first, count in place.evaluate(_READ_CELLS, look)
        for column in range(first, first + count)
    }


# Each run of cells is drawn as a rectangle: M x y h width v height …
_READ_CELLS = """(place, look) => {
  const frame = place.querySelector(".cell-frame");
  const [left, top] = ["x", "y"].map((name) => Number(frame.getAttribute(name)));
  const paths = [...place.querySelectorAll(`path.kind-${look}`)].map((path) => path.getAttribute("d"));
  const runs = [...paths.join("").matchAll(/M([\\d.]+) ([\\d.]+)h([\\d.]+)v([\\d.]+)/g)];
  return runs.map((run) => {
    const [x, y, width, height] = run.slice(1).map(Number);
    return [(y - top) / height, (x - left) / height, width / height].map(Math.round);
  });
}"""


def middle_of(page: Page, row: int, key: int, shape: tuple[int, int]) -> tuple[float, float]:
    """Where a sign of the mask's picture lies on the screen."""
    left, top, width, height = page.evaluate(_FRAME)
    return left + (key + 0.5) * width / shape[1], top + (row + 0.5) * height / shape[0]


# In one go, since the picture may be drawn again at any time.
_FRAME = """() => {
  const frame = document.querySelector("#stage .cell-frame");
  frame.scrollIntoView({ block: "center", behavior: "instant" });
  const { left, top, width, height } = frame.getBoundingClientRect();
  return [left, top, width, height];
}"""


def numbers_of(table: Locator) -> list[list[float]]:
    """The numbers of a table, as exactly as its cells know them."""
    rows = table.evaluate(
        "(table) => [...table.querySelectorAll('tbody tr')].map("
        "(row) => [...row.querySelectorAll('td')].map((cell) => cell.title))"
    )
    return [[_number(text) for text in row] for row in rows]


def _number(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))
