"""`make bench`: all measurements, each in its own process; `python -m benchmarks attention` for one.

Each writes benchmarks/results/NAME.json. `make docs` then renews every page that shows a figure; a page
whose file is missing is an error. `--plan` prints how long each measurement took the last time.

`python -m benchmarks gpu` compiles the Triton kernels for four GPUs, without having one.
`python -m benchmarks compare --base COMMIT` compares attention in the working tree with an earlier
commit, `python -m benchmarks compare_core --base-tree DIR` the core with an earlier checkout. No page
shows these two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from itertools import takewhile

from benchmarks import measure

MODELS = ("prefill", "training", "bias_models", "paths_models")
PATHS = ("paths", "paths_kernel")
# In the order of a whole run: the headline first.
MEASURED = (
    *("attention", "prefill", "training", *PATHS, "bias", "variants"),
    *("paths_models", "bias_models", "core", "targets", "explore", "audit"),
    *("ranks", "extrapolation", "language"),
)
COMPARED = ("compare", "compare_core")
ON_REQUEST = (*COMPARED, "gpu")  # run only where they are named
WITH_OPTIONS = (
    *("attention", "bias", "variants", *PATHS, *MODELS, "audit", "extrapolation", "language"),
    *COMPARED,
)


def plan(names: tuple[str, ...]) -> str:
    """How long each measurement took the last time, which its file says."""
    rows, total = [], 0.0
    for name in names:
        path = measure.RESULTS / f"{name}.json"
        content = json.loads(path.read_text()) if path.exists() else {}
        seconds = content.get("measured", {}).get("seconds")
        total += seconds or 0.0
        rows.append([name, "no record" if seconds is None else f"{seconds / 60:.1f} min"])
    rows.append(["all", f"{total / 60:.0f} min"])
    return measure.table(["measurement", "last duration"], rows)


def run_all(names: tuple[str, ...]) -> int:
    """Each in a process of its own, since threads, compiled code and memory of one slow others down."""
    print(plan(names), flush=True)
    failed = []
    for name in names:
        print(f"\n── {name} ──", flush=True)
        if subprocess.run([sys.executable, "-m", "benchmarks", name], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return int(bool(failed))


def main(args: list[str]) -> int:
    """Run what is named, or all; options go to the measurement that takes them."""
    names = tuple(takewhile(lambda word: word in (*MEASURED, *ON_REQUEST), args))
    options = args[len(names) :]
    if options == ["--plan"]:
        print(plan(names or MEASURED))
        return 0
    if options and not (len(names) == 1 and names[0] in WITH_OPTIONS):
        if options[0] in ("-h", "--help"):
            print(
                f"{__doc__}\npython -m benchmarks [{' | '.join((*MEASURED, *ON_REQUEST))}] [--help]"
            )
            return 0
        print(f"{options[0]}: name one measurement that takes it, of {', '.join(WITH_OPTIONS)}")
        return 2
    if len(names) != 1:
        return run_all(names or MEASURED)
    measure.source()  # the commit before the measurement, whatever happens during it
    run = import_module(f"benchmarks.{names[0]}").run
    return (run(options) if names[0] in WITH_OPTIONS else run()) or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
