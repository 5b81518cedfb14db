"""Make the pictures of README and docs: `python -m docs.pictures`.

Masks are drawn by the library itself; the explorer is photographed in Chromium, as it is.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import maskwright as mw
from maskwright._atomic_write import create_folder, write_atomic

IMAGES = Path(__file__).parent / "images"
CHROMIUM = shutil.which("chromium-headless-shell") or "/usr/bin/chromium"
TOKENS = ["The", "cat", "sat", "on", "the", "mat"]


# Two documents of 9 and 7 tokens in one row, a window of 4, and the first token of each as a sink.
PACKED = (mw.window(back=3) | mw.keys([0, 9]) & mw.causal()) & mw.documents(lengths=[[9, 7]])


LABELS_ZH = {"query": "查询", "key": "键", "visible": "可见", "masked": "屏蔽"}


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
    for suffix, lang in (("", "en"), ("-zh", "zh")):
        made[f"packed{suffix}"] = with_reason(PACKED.on(16), query=10, key=8, lang=lang)
    return {IMAGES / f"{name}.svg": text + "\n" for name, text in made.items()}


def with_reason(bound: mw.BoundMask, query: int, key: int, lang: str) -> str:
    """A mask with one cell marked, and the reason for that cell beside it, as SVG."""
    grid = mw.picture(bound)
    assert isinstance(grid, str)
    width, height = (int(x) for x in re.findall(r'(?:width|height)="(\d+)"', grid)[:2])
    left, top = (int(x) for x in re.findall(r"translate\((\d+) (\d+)\)", grid)[0])
    side = float(re.findall(r'<rect width="([\d.]+)"[^>]*class="k0"', grid)[0]) / bound.shape[3]
    x, y = left + key * side, top + query * side
    why = bound.why(query, key).text(lang)
    colon, semicolon, columns = ("：", "；", 28) if lang == "zh" else (": ", "; ", 44)
    reason, _, terms = why.partition(colon)
    lines = [*textwrap.wrap(reason + colon, columns), ""]
    for term in terms.split(semicolon):
        lines += [*textwrap.wrap(term, columns), ""]
    for english, chinese in LABELS_ZH.items() if lang == "zh" else ():
        grid = grid.replace(f">{english}</text>", f">{chinese}</text>")
    text = "".join(
        f'<text x="{width + 16}" y="{y + 5 + 21 * n:g}">{escape(line)}</text>'
        for n, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 350}" height="{height}" '
        f'viewBox="0 0 {width + 350} {height}" role="img" aria-label="{escape(why)}" '
        'font-family="system-ui,sans-serif" font-size="14" fill="#1b1f24">'
        "<style>@media (prefers-color-scheme:dark){#page{fill:#0f1419}#reason{fill:#e6edf3}}</style>"
        f'<rect id="page" width="100%" height="100%" rx="6" fill="#fff"/>{grid}'
        f'<rect x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}" fill="none" stroke="#d9480f" '
        f'stroke-width="3"/><path d="M{x + side:g} {y + side / 2:g}H{width + 8}" stroke="#d9480f" '
        f'stroke-width="1.5"/><g id="reason">{text}</g></svg>'
    )


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
                write_atomic(IMAGES / f"{name}.png", page.screenshot())
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    create_folder(IMAGES)
    for path, text in drawings().items():
        write_atomic(path, text)
    photograph()
