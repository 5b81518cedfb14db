"""pip install with one line that tells what it is at, and how long it has been at it.

    python scripts/install.py ARGUMENTS OF PIP ...

On a terminal the line is written anew all the time; elsewhere it is told once, in the end. What pip
says is shown only if it fails.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = 76
# Python compiles what it imports by itself, and of PyTorch that is a small part.
QUICKLY = ("--disable-pip-version-check", "--no-compile")
TOLD = ("Collecting", "Downloading", "Processing", "Preparing", "Building", "Installing")


def install(arguments: Sequence[str]) -> int:
    """Run pip, and give its exit code."""
    command = [sys.executable, "-m", "pip", "install", *QUICKLY, *arguments]
    started, said = time.monotonic(), [""]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        listener = threading.Thread(target=said.extend, args=(pip.stdout,))
        listener.start()
        while listener.is_alive():
            listener.join(0.25)
            show(time.monotonic() - started, said)
    clear()
    if pip.returncode:
        print("".join(said), end="", file=sys.stderr)
    else:
        print(f"  done in {time.monotonic() - started:.0f} s", flush=True)
    return pip.returncode


def show(seconds: float, said: Sequence[str]) -> None:
    """The last thing worth telling, where somebody looks."""
    if sys.stdout.isatty():
        doing = next((line for line in reversed(said) if line.lstrip().startswith(TOLD)), "")
        line = f"{seconds:4.0f} s  {' '.join(doing.split())}"
        print(f"\r\x1b[K{line:.{COLUMNS}}", end="", flush=True)


def clear() -> None:
    """Remove the line."""
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")


if __name__ == "__main__":
    sys.exit(install(sys.argv[1:]))
