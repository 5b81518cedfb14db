"""Timing, and the JSON files of results: each says when, where and from which commit it was measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import maskwright
from maskwright._atomic_write import create_folder, write_atomic
from maskwright.engine.native.kernel import loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("maskwright", "numpy", "torch", "transformers")
CPU_FIELDS = ("cpu family", "model", "stepping")  # of /proc/cpuinfo; many names tell no model
# Parts of measurements, comparisons with another commit, and runs on a GPU: no page shows them.
NOT_SHOWN = ("*-part.json", "compare*.json", "attention-cuda.json")
STARTED = time.time(), os.getloadavg()  # a process runs one measurement


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


@cache
def machine() -> dict[str, object]:
    """The processor, the versions, and the instruction set of the C kernel (None: not built)."""
    return {
        "cpu": _cpu(),
        "kernel": loaded().isa,
        "isas": list(loaded().isas),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _cpu() -> str:
    """The number of logical CPUs, and the model."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return f"{os.cpu_count()} × {platform.processor() or platform.machine()}"
    fields = [line.partition(":")[::2] for line in info.read_text().splitlines()]
    values = {name.strip(): value.strip() for name, value in fields}
    count = sum(name.strip() == "processor" for name, _ in fields)
    model = ", ".join(f"{name} {values[name]}" for name in CPU_FIELDS if name in values)
    return f"{count} × {values.get('model name', platform.machine())} ({model})"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def source() -> dict[str, object]:
    """The commit of the measured package, and whether its files are those of the commit."""
    folder = Path(maskwright.__file__).parent

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True)
        except FileNotFoundError:
            return None
        return None if done.returncode else done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    return {"commit": commit, "clean": None if commit is None else not git("status", "-s", ".")}


def circumstances() -> dict[str, object]:
    """When and from which source it was measured, how long it took, and the load of the machine."""
    start, load = STARTED
    return {
        "date": datetime.fromtimestamp(start, timezone.utc).isoformat(timespec="seconds"),
        **source(),
        "seconds": time.time() - start,
        "load_average": {"start": load, "end": os.getloadavg()},
    }


def table(head: list[str], rows: list[list[str]]) -> str:
    """Columns in Markdown, aligned for the terminal."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def results() -> list[Path]:
    """The files of all results that pages show."""
    files = sorted(RESULTS.glob("*.json"))
    return [path for path in files if not any(path.match(pattern) for pattern in NOT_SHOWN)]


def save(name: str, result: Mapping[str, object]) -> Path:
    """Write the result as JSON."""
    create_folder(RESULTS)
    path = RESULTS / f"{name}.json"
    content = {"machine": machine(), "measured": circumstances(), **result}
    write_atomic(path, json.dumps(content, indent=2) + "\n")
    return path
