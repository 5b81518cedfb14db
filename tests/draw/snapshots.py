"""What a renderer wrote, kept as files to compare with and to look at.

Run the tests with MASKWRIGHT_WRITE_SNAPSHOTS=1 to write them anew, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "snapshots"


def check(name: str, text: str) -> None:
    """Compare a text with the file of that name, or write the file when asked to.

    Args:
        name: The file's name with its ending, such as `causal.txt`.
        text: What the renderer wrote.
    """
    file = FOLDER / name
    if os.environ.get("MASKWRIGHT_WRITE_SNAPSHOTS") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")
    assert file.exists(), f"{name} is not there; write it with MASKWRIGHT_WRITE_SNAPSHOTS=1"
    assert text == file.read_bytes().decode("utf-8")
