"""Verbs for who wants to look around, as a person calls them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Here

WITHOUT = "import sys; sys.modules.update(dict.fromkeys({names!r}))\n"
MAIN = "sys.argv[0] = 'maskwright'; from maskwright.__main__ import main; main()"


def run_without(
    names: list[str], *words: str, at: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command line where some packages are missing."""
    command = [sys.executable, "-c", WITHOUT.format(names=names) + MAIN, *words]
    whole = {**os.environ, **environment}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=at, env=whole, timeout=120
    )


def test_a_chapter_that_is_not_there(here: Here, tmp_path: Path) -> None:
    ran = here("tour", "--chapter", "99")
    assert (ran.code, ran.out) == (2, "")
    assert "no chapter 99" in ran.err
    assert not list(tmp_path.iterdir())


def test_a_chapter_in_chinese_leaves_no_file(here: Here, tmp_path: Path) -> None:
    ran = here("tour", "--chapter", "3", "--lang", "zh")
    assert ran.code == 0
    assert "── 3. 问一问：这一格为什么看不到 ──" in ran.out
    assert "│ print(bound.why(0, 2))" in ran.out
    assert not list(tmp_path.iterdir())


def test_the_tour_without_frameworks_says_what_is_missing_and_leaves_a_page(
    tmp_path: Path,
) -> None:
    names = ["torch", "jax", "keras", "tokenizers", "safetensors"]
    done = run_without(names, "tour", at=tmp_path, FORCE_COLOR="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "pip install 'maskwright[torch]'" in done.stdout
    assert [f"── {number}. " in done.stdout for number in range(1, 10)] == [True] * 9
    assert done.stdout.splitlines()[-1].endswith(str(tmp_path / "tour.html"))
    assert "</html>" in (tmp_path / "tour.html").read_text()


def test_the_page_is_opened_in_the_browser_of_the_person(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/asked\n')
    browser.chmod(0o755)
    page = tmp_path / "page.html"
    words = ("tour", "--chapter", "9", "--open", "--out", str(page))
    done = run_without([], *words, BROWSER=f"{browser} %s")
    assert done.returncode == 0, done.stderr
    for _ in range(100):  # it is not waited for
        if (tmp_path / "asked").exists() and (tmp_path / "asked").read_text():
            break
        time.sleep(0.05)
    assert (tmp_path / "asked").read_text() == page.as_uri()
    assert page.is_file()


def test_explore_names_its_extra() -> None:
    done = run_without(["starlette"], "explore")
    assert done.returncode == 2
    assert "pip install 'maskwright[explore]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
