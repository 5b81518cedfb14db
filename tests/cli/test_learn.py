"""`maskwright tour --open`; tests/tour runs the chapters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.cli.conftest import run

if TYPE_CHECKING:
    from pathlib import Path


def test_the_page_of_the_tour_is_opened_in_the_browser(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/asked\n')
    browser.chmod(0o755)
    ran = run("tour", "--chapter", "9", "--open", at=tmp_path, BROWSER=f"{browser} %s")
    assert ran.code == 0, ran.err
    page, asked = tmp_path / "tour-9.html", tmp_path / "asked"
    while not (asked.exists() and asked.read_text()):  # the browser runs in the background
        time.sleep(0.05)
    assert asked.read_text() == page.as_uri()
    assert page.is_file()
