"""Code that runs in a Python process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


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


def limit_memory(num_bytes: int = 2**28) -> None:
    """Refuse this process more new data than that."""
    import resource  # not on Windows

    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
