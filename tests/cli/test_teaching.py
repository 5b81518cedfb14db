"""Verbs for who wants to look around, as a person calls them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Here


def test_a_chapter_that_is_not_there(here: Here) -> None:
    ran = here("tour", "--chapter", "99")
    assert (ran.code, ran.out) == (2, "")
    assert "no chapter 99" in ran.err


def test_explore_names_its_extra() -> None:
    code = (
        "import sys; sys.modules['starlette'] = None\n"
        "from maskwright.__main__ import main\n"
        "sys.argv = ['maskwright', 'explore']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'maskwright[explore]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
