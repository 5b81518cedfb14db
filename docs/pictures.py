"""Make the pictures of README and docs: `python -m docs.pictures`.

Masks are drawn by the library itself; the explorer is photographed in Chromium, as it is.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import maskwright as mw

IMAGES = Path(__file__).parent / "images"
CHROMIUM = shutil.which("chromium-headless-shell") or "/usr/bin/chromium"
TOKENS = ["The", "cat", "sat", "on", "the", "mat"]


class Shot(NamedTuple):
    """A photograph of the explorer: what is typed, and the window."""

    text: str
    language: str
    width: int = 1280
    height: int = 860
    dark: bool = False


ENGLISH = "The cat sat on the mat and slept\nI like green tea"
SHOTS = {  # the Chinese one needs a font that has the letters, such as Debian's fonts-wqy-zenhei
    "explorer": Shot(ENGLISH, "en"),
    "explorer-dark": Shot("我喜欢喝绿茶\n你好吗", "zh", dark=True),
    "explorer-narrow": Shot(ENGLISH, "en", width=360, height=780),
}


def drawings() -> dict[Path, str]:
    """The pictures that the library draws, by file."""
    padded = mw.causal() & mw.padding(lengths=[4, 6])
    made: dict[str, Any] = {
        "padded": mw.picture(padded.on(6), tokens=TOKENS),
        "sinks": mw.picture(mw.recipes.sinks(64, sinks=8).on(256)),
        "difference": mw.picture((mw.causal().on(12), mw.window(back=4).on(12))),
        "weights": mw.picture(mw.walkthrough("I like tea", mw.causal(), seed=2)),
    }
    return {IMAGES / f"{name}.svg": text + "\n" for name, text in made.items()}


def photograph() -> None:
    """The explorer's page, light and dark, wide and narrow."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "maskwright", "explore", "--no-open", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for name, shot in SHOTS.items():
                page = browser.new_page(
                    viewport={"width": shot.width, "height": shot.height},
                    color_scheme="dark" if shot.dark else "light",
                    reduced_motion="reduce",
                )
                page.goto(f"{found[0]}#lang={shot.language}")
                page.fill("#text", shot.text)
                page.locator("#text").blur()
                page.wait_for_timeout(1500)  # the answers to what was typed
                page.wait_for_load_state("networkidle")
                page.screenshot(path=IMAGES / f"{name}.png")
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for path, text in drawings().items():
        path.write_text(text)
    photograph()
