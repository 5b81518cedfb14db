"""`python -m conformance`: run suites, write their results, and print what differs."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks import measure
from conformance.results import RESULTS
from conformance.runners import WORKERS, RunError
from conformance.sources import NotRunError, Sources, default_cache
from conformance.suite import Suite, compare, unexplained
from conformance.suites import SUITES
from maskwright._atomic_write import create_folder, write_atomic

PACKAGES = ("python", "numpy", "torch")


def select(names: list[str]) -> list[str]:
    """The suites with these names, or whose names begin with one of them and a dot; all for none.

    Raises:
        SystemExit: If a name stands for no suite.
    """
    selected = []
    for name in names or [""]:
        matching = [s for s in SUITES if not name or s == name or s.startswith(f"{name}.")]
        if not matching:
            known = sorted({suite.partition(".")[0] for suite in SUITES})
            sys.exit(f"{name}: no such suite. Pass some of {', '.join(known)}.")
        selected += matching
    return selected


def run_suite(suite: Suite, sources: Sources) -> dict[str, Any]:
    """The result of a suite; `not_run` is the reason why it did not run, or None."""
    started = time.time()
    machine, source = measure.machine(), measure.source()  # the commit before the run
    result: dict[str, Any] = {"title": suite.title, "replaced": suite.replaced, "not_run": None}
    try:
        result |= compare(suite, suite.run(sources))
    except NotRunError as error:
        result["not_run"] = str(error)
    return {
        **result,
        "versions": {name: machine[name] for name in PACKAGES},
        "date": datetime.fromtimestamp(started, timezone.utc).isoformat(timespec="seconds"),
        **source,
        "seconds": round(time.time() - started, 1),
    }


def save(output: Path, name: str, result: dict[str, Any]) -> bool:
    """Write the result of a suite beside those of others. One that did not run replaces none that did.

    Returns:
        Whether it was written.
    """
    results = json.loads(output.read_text()) if output.exists() else {}
    if result["not_run"] and not results.get(name, {"not_run": True})["not_run"]:
        return False
    results[name] = result
    create_folder(output.parent)
    ordered = {name: results[name] for name in [*SUITES, *results] if name in results}
    write_atomic(output, json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    return True


def report(name: str, result: dict[str, Any]) -> int:
    """Print the result of a suite. The exit code is 1 if a difference has no reason."""
    if result["not_run"]:
        print(f"{name}: not run: {result['not_run']}", flush=True)
        return 0
    print(
        f"{name}: {result['run']} run, {result['original']} pass with the original, "
        f"{result['maskwright']} with maskwright, {len(result['differences'])} differ "
        f"({result['seconds']:.0f} s)",
        flush=True,
    )
    problems = unexplained(result)
    for problem in problems:
        print(f"  no reason: {problem}", flush=True)
    return int(bool(problems))


def main(arguments: list[str]) -> int:
    """Run suites, each in a process of its own, since they replace functions of libraries."""
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument("suite", nargs="*", help="names of suites; all by default")
    parser.add_argument("--suites", type=Path, metavar="DIR", help="a folder with clones")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the file of the results")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes of pytest; 2 by default"
    )
    parser.add_argument("--list", action="store_true", help="print the names of all suites")
    options = parser.parse_args(arguments)
    names = select(options.suite)
    if options.list:
        print("\n".join(names))
        return 0
    if options.workers:
        os.environ[WORKERS] = str(options.workers)
    if len(names) > 1:
        rest = [
            "--output",
            options.output,
            *(("--suites", options.suites) if options.suites else ()),
        ]
        command = [sys.executable, "-m", "conformance"]
        codes = [subprocess.run([*command, n, *rest], check=False).returncode for n in names]
        return max(codes)
    (name,) = names
    try:
        result = run_suite(SUITES[name], Sources(options.suites, default_cache()))
    except RunError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    if not save(options.output, name, result):
        print(f"{name}: the earlier result stays", flush=True)
    return report(name, result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
