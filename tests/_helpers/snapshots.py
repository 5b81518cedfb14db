"""Snapshots of rendered pictures, to compare with and to look at.

Run the tests with MASKWRIGHT_WRITE_SNAPSHOTS=1 to regenerate them, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "draw" / "snapshots"


def check(name: str, text: str) -> None:
    """Compares a text with the file of that name, or writes the file.

    Args:
        name: The file's name with its ending, such as `causal.txt`.
        text: The output of the renderer.
    """
    file = FOLDER / name
    if os.environ.get("MASKWRIGHT_WRITE_SNAPSHOTS") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")
    assert file.exists(), f"no {name}; write it with MASKWRIGHT_WRITE_SNAPSHOTS=1"
    assert text == file.read_bytes().decode("utf-8")
