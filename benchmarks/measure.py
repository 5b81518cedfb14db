"""Timing: interleaved with the peers in the same run, best of n."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskwright._atomic_write import create_folder, write_atomic
from maskwright.engine.native import loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RESULTS = Path(__file__).parent / "results"


def best_of(rounds: int, runners: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The best time of each runner in seconds; runs are interleaved, so that noise affects all equally."""
    best = dict.fromkeys(runners, float("inf"))
    for _ in range(rounds):
        for name, run in runners.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def in_new_process(code: str) -> Any:
    """What `code` prints as JSON, run by a fresh Python: for memory, and for import time."""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def machine() -> dict[str, object]:
    """What a number was measured on."""
    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = f"{len(names)} × {names[0].split(':', 1)[1].strip()}" if names else cpu
    packages = {name: version(name) for name in ("maskwright", "numpy", "torch")}
    kernel = {"kernel": loaded().isa}  # None where it was not built
    return {"cpu": cpu, "python": platform.python_version(), **packages, **kernel}


def table(head: list[str], rows: list[list[str]]) -> str:
    """Columns in Markdown, aligned for the terminal."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def save(name: str, result: Mapping[str, object]) -> Path:
    """Write the result as JSON."""
    create_folder(RESULTS)
    path = RESULTS / f"{name}.json"
    write_atomic(path, json.dumps({"machine": machine(), **result}, indent=2) + "\n")
    return path
