"""pip install with a one-line progress display.

    python scripts/install.py PIP_ARGUMENTS ...

On a terminal the line shows the current step and the elapsed time; elsewhere only the total time is
printed. The output of pip is shown only if pip fails.
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
# Python compiles modules on import; compiling all of PyTorch beforehand would take longer.
OPTIONS = ("--disable-pip-version-check", "--no-compile")
STEPS = ("Collecting", "Downloading", "Processing", "Preparing", "Building", "Installing")


def install(arguments: Sequence[str]) -> int:
    """Run pip and return its exit code."""
    command = [sys.executable, "-m", "pip", "install", *OPTIONS, *arguments]
    started, lines = time.monotonic(), [""]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        reader = threading.Thread(target=lines.extend, args=(pip.stdout,))
        reader.start()
        while reader.is_alive():
            reader.join(0.25)
            show_progress(time.monotonic() - started, lines)
    clear_line()
    if pip.returncode:
        print("".join(lines), end="", file=sys.stderr)
    else:
        print(f"  done in {time.monotonic() - started:.0f} s", flush=True)
    return pip.returncode


def show_progress(seconds: float, lines: Sequence[str]) -> None:
    """Print the elapsed time and the current step, on a terminal."""
    if sys.stdout.isatty():
        step = next((line for line in reversed(lines) if line.lstrip().startswith(STEPS)), "")
        line = f"{seconds:4.0f} s  {' '.join(step.split())}"
        print(f"\r\x1b[K{line:.{COLUMNS}}", end="", flush=True)


def clear_line() -> None:
    """Erase the progress line."""
    if sys.stdout.isatty():
        print("\r\x1b[K", end="")


if __name__ == "__main__":
    sys.exit(install(sys.argv[1:]))
