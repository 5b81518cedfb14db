"""Compare the speed of the core in the working tree with that of an earlier commit.

    python -m benchmarks compare_core --base-tree DIR

Both versions are measured in one run, each in a worker process with its own source tree, and take
turns. Times are CPU seconds, the best of all rounds. A ratio is base / new: above 1 the working
tree is faster.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import save, table

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent

WORKER = r"""
import json, sys, time
import numpy as np
import maskwright as mw
tokens = int(sys.argv[1])
cuts = np.sort(np.random.default_rng(0).choice(np.arange(1, tokens), 499, replace=False))
lengths = np.diff(np.concatenate([[0], cuts, [tokens]])).tolist()
padded = np.random.default_rng(0).random((4, 4096)) < 0.9
masks = {
    "causal": mw.causal,
    "window": lambda: mw.window(back=4095),
    "causal, window, documents": (
        lambda: mw.causal() & mw.window(back=4095) & mw.documents(lengths=[lengths])
    ),
    "window or keys": lambda: mw.window(back=1023) | mw.keys([0, 1, 2, 3]),
    "chunks": lambda: mw.causal() & mw.chunks(8192),
}
small = {
    "causal": mw.causal,
    "causal, padding": lambda: mw.causal() & mw.padding(lengths=[41, 64]),
    "keep flags": lambda: mw.padding(keep=padded),
    "documents": lambda: mw.causal() & mw.documents(lengths=[[20, 30, 14]]),
    "stride": lambda: mw.causal() & mw.stride(8),
    "tree": lambda: mw.tree([-1, 0, 0, 1, 1, 2, 2, 3]),
    "transposed": lambda: mw.padding(lengths=[41, 64]) & mw.padding(lengths=[41, 64]).T,
}
size = {"keep flags": 4096, "tree": 8}
def spans(make):
    return lambda: make().on(tokens).spans
def tiles(make):
    bound = make().on(tokens)
    bound.spans
    return lambda: bound.tiles(128)
def bind(name, make):
    return lambda: make().on(size.get(name, 64)).spans
def dense(name, make):
    return lambda: make().on(size.get(name, 64)).dense()
cells = {f"spans: {name}": spans(make) for name, make in masks.items()}
cells |= {f"tiles: {name}": tiles(make) for name, make in masks.items()}
cells |= {f"bind small: {name}": bind(name, make) for name, make in small.items()}
cells |= {f"dense small: {name}": dense(name, make) for name, make in small.items() if name != "keep flags"}
cells["construct: causal & padding"] = small["causal, padding"]
cells["simplify"] = lambda: mw.simplify(mw.causal() & mw.window(back=7) & mw.everything())
cells["parse"] = lambda: mw.parse("causal() & padding(lengths=[3, 4]) | keys([0, 1])")
cells["stride of 16,384"] = lambda: (mw.causal() & mw.stride(128)).on(16384).spans
cells["transposed tree"] = lambda: mw.tree([-1, *range(4095)]).T.on(4096).spans
print(json.dumps(list(cells)), flush=True)
calls = {}
for line in sys.stdin:
    name = json.loads(line)
    call = cells[name]
    if name not in calls:
        start = time.process_time(); call(); call()
        calls[name] = max(1, int(0.02 / max(1e-7, (time.process_time() - start) / 2)))
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        for _ in range(calls[name]):
            call()
        best = min(best, (time.process_time() - start) / calls[name])
    print(json.dumps(best), flush=True)
"""


def run(given: Sequence[str]) -> int:
    """Measures both trees, prints a table, and saves it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare_core")
    parser.add_argument("--base-tree", required=True, help="a checkout of the earlier commit")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=2**20, help="of the large masks")
    options = parser.parse_args(given)
    trees = {"base": Path(options.base_tree), "new": ROOT}
    workers = {name: _start(tree, options.tokens) for name, tree in trees.items()}
    names = [json.loads(worker.stdout.readline()) for worker in workers.values()]
    cells = [cell for cell in names[0] if cell in names[1]]
    best = {cell: dict.fromkeys(workers, math.inf) for cell in cells}
    for turn in range(options.rounds):
        for cell in cells:
            order = list(workers) if turn % 2 else list(workers)[::-1]
            for name in order:
                worker = workers[name]
                worker.stdin.write(json.dumps(cell) + "\n")
                worker.stdin.flush()
                best[cell][name] = min(best[cell][name], json.loads(worker.stdout.readline()))
    for worker in workers.values():
        worker.communicate()
    ratios = {cell: times["base"] / times["new"] for cell, times in best.items()}
    rows = [
        [cell, f"{1e6 * best[cell]['base']:.1f}", f"{1e6 * best[cell]['new']:.1f}", f"{ratio:.3f}"]
        for cell, ratio in ratios.items()
    ]
    mean = statistics.geometric_mean(ratios.values())
    print(table(["cell", "base µs", "new µs", "base / new"], rows))
    print(f"geometric mean {mean:.3f} of {len(rows)} cells")
    save(
        "compare_core",
        {"tokens": options.tokens, "geometric_mean": mean, "seconds": best, "ratios": ratios},
    )
    return 0


def _start(tree: Path, tokens: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tokens)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"},
    )
