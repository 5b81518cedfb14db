"""Code that runs in a Python process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(code: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code with these arguments and environment variables, and capture its output."""
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
