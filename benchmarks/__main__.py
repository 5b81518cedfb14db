"""`make bench`: all measurements, one after the other; `python -m benchmarks attention` for one.

`python -m benchmarks compare --base COMMIT` compares attention in the working tree with an earlier
commit, `python -m benchmarks compare_core --base-tree DIR` the core with an earlier checkout.
`python -m benchmarks extrapolation` evaluates models on longer contexts than those of training.
`python -m benchmarks gpu` compiles the Triton kernels for four GPUs, without having one.
`python -m benchmarks report` measures nothing: it writes docs/performance.md and its picture.
"""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import takewhile

MODELS = ("prefill", "bias_models", "paths_models", "training", "audit")
PATHS = ("paths", "paths_kernel")
MEASURED = ("core", "targets", "attention", "bias", "variants", *PATHS, *MODELS, "explore")
COMPARED = ("compare", "compare_core")
ON_REQUEST = (*COMPARED, "extrapolation", "gpu", "report")  # run only where they are named
WITH_OPTIONS = ("attention", "bias", "variants", *PATHS, *MODELS, "extrapolation", *COMPARED)


def main(given: list[str]) -> int:
    """Run what is named, or all; options go to the one that takes them."""
    names = list(takewhile(lambda word: word in (*MEASURED, *ON_REQUEST), given))
    options = given[len(names) :]
    if options and not (len(names) == 1 and names[0] in WITH_OPTIONS):
        if options[0] in ("-h", "--help"):
            print(f"python -m benchmarks [{' | '.join((*MEASURED, *ON_REQUEST))}] [--help]")
            return 0
        print(f"{options[0]}: name one measurement that takes it, of {', '.join(WITH_OPTIONS)}")
        return 2
    failed = 0
    for name in names or MEASURED:
        run = import_module(f"benchmarks.{name}").run
        failed |= (run(options) if name in WITH_OPTIONS else run()) or 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
