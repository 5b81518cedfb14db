"""Compare the speed of attention in the working tree with that of an earlier commit.

Both versions are measured in one run. Each runs in a worker process of its own, with the package
and the C kernel of its own source tree, and the two take turns. A ratio is base seconds / new
seconds: above 1 the working tree is faster. In every cell the outputs (and gradients) of both
versions are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measure import save, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("compare_worker.py")
NATIVE = Path("src", "maskwright", "engine", "native")
VERSIONS = BASE, NEW = ("base", "new")

DTYPES = ("float32", "bfloat16")
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}  # relative to the largest absolute value
LENGTHS = (512, 2_048, 4_096, 8_192)  # 8,192 is measured forward only
HEADS = {512: 8, 2_048: 8, 4_096: 4, 8_192: 2}  # fewer at long lengths, to limit the run time
TINY = 64
QUICK_PATTERNS = ("causal", "window 128", "documents", "decode", "tiny", "new mask: causal")

REPEAT_BELOW = 0.97  # cells with a lower ratio are measured again
LIST_BELOW = 0.93  # cells with a lower ratio are listed in the summary
REPEAT_FACTOR = 3  # times the rounds and seconds of the first pass
MAX_OTHER_LOAD = 0.1  # cores that other processes take from the workers; above, a cell is disturbed
MAX_SPREAD = 0.05  # between the ratio of the best and the median ratio of the rounds
MIN_TIMING_SECONDS = 0.005  # shorter calls are timed several at a time
NUM_PREPARATIONS = 4  # of a short cell, since its speed depends on where the tensors lie in memory
MAX_TURN_SECONDS = 0.02  # below this, a turn has a warm-up call and several timings
SPIN_COUNT = "10000"
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_THRESHOLD_": str(2**30)}


@dataclass(frozen=True)
class Cell:
    """One measurement. `mask` is an expression of public names of maskwright."""

    pattern: str
    mask: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    dtype: str = "float32"
    backward: bool = False
    threads: int = 1
    new_mask: bool = False  # construct the mask in every call

    @property
    def length(self) -> str:
        """The sequence length, or query × key length where they differ."""
        same = self.q_len == self.kv_len
        return f"{self.kv_len}" if same else f"{self.q_len} × {self.kv_len}"

    @property
    def direction(self) -> str:
        """Forward, or forward and backward."""
        return "forward + backward" if self.backward else "forward"


@dataclass
class Measured:
    """The timings of a cell."""

    cell: Cell
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(VERSIONS, math.inf))
    round_ratios: list[float] = field(default_factory=list)
    first_ratio: float = math.nan  # of the first pass alone
    difference: float = 0.0
    calls: int = 1
    is_disturbed: bool = False  # other processes took CPU time from the last measurement
    is_confirmed: bool = False  # measured again for longer, undisturbed
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Base seconds / new seconds, each the best of all rounds."""
        return self.seconds[BASE] / self.seconds[NEW]

    @property
    def is_uncertain(self) -> bool:
        """Whether the ratio is low, or could be due to noise."""
        gap = abs(math.log(self.ratio / statistics.median(self.round_ratios)))
        return self.ratio < REPEAT_BELOW or gap > MAX_SPREAD

    @property
    def agrees(self) -> bool:
        """Whether the outputs of both versions are equal within the tolerance."""
        return self.difference <= TOLERANCE[self.cell.dtype]

    def to_json(self) -> dict[str, Any]:
        """The cell and its timings as JSON types."""
        found: dict[str, Any] = {**asdict(self.cell), "direction": self.cell.direction}
        if self.failed:
            return {**found, "failed": self.failed}
        return {
            **found,
            "seconds": self.seconds,
            "ratio": self.ratio,
            "first_ratio": self.first_ratio,
            "median_ratio": statistics.median(self.round_ratios),
            "rounds": len(self.round_ratios),
            "disturbed": self.is_disturbed,
            "calls_per_timing": self.calls,
            "difference": self.difference if math.isfinite(self.difference) else None,
            "agrees": self.agrees,
        }


# ── cells ─────────────────────────────────────────────────────────────────────────────────────


def random_lengths(total: int, count: int) -> list[int]:
    """Returns `count` random positive lengths with the given sum."""
    cuts = sorted(random.Random(0).sample(range(1, total), count - 1))
    return [stop - start for start, stop in zip([0, *cuts], [*cuts, total], strict=True)]


def padded_lengths(length: int, batch: int) -> list[int]:
    """Returns the lengths of a padded batch: a quarter to all of `length`."""
    source = random.Random(0)
    return [length, *(source.randint(length // 4, length) for _ in range(batch - 1))]


def shapes() -> list[Cell]:
    """Returns all patterns and sizes, as cells of float32, forward, one thread."""
    found: list[Cell] = []

    def add(pattern: str, mask: str, q_len: int, kv_len: int | None = None, **sizes: Any) -> None:
        heads = sizes.pop("heads", HEADS.get(q_len, 8))
        sizes = {"batch": 1, "kv_heads": heads, "head_dim": 64, **sizes}
        found.append(Cell(pattern, mask, heads=heads, q_len=q_len, kv_len=kv_len or q_len, **sizes))

    for length in LENGTHS:
        documents = f"documents(lengths=[{random_lengths(length, max(4, length // 512))}])"
        padding = f"padding(lengths={padded_lengths(length, 4)})"
        per_head = [
            *("causal()", "window(back=255)"),
            *(f"causal() & {documents}", "causal() & chunks(256)"),
        ]
        add("causal", "causal()", length)
        add("full", "everything()", length)
        add("window 256", "window(back=255)", length)
        add("documents", f"causal() & {documents}", length)
        add("per head", f"by_head([{', '.join(per_head)}])", length, heads=4)
        if length == LENGTHS[-1]:
            continue
        add("window 64", "window(back=63)", length)
        add("window 128", "window(back=127)", length)
        heads = max(2, HEADS[length] // 2)
        add("causal, padding", f"causal() & {padding}", length, batch=4, heads=heads)
        add("prefix LM", f"causal() | prefix(lengths=[{length // 4}])", length)
        add("GQA causal", "causal()", length, heads=8, kv_heads=2)
        add("dilated", f"window(back={min(length, 1_024) - 1}) & stride(4)", length)
    for mask, pattern in (("causal()", "causal"), ("window(back=255)", "window 256")):
        add(f"{pattern}, head_dim 128", mask, 2_048, heads=4, head_dim=128)
    for kv_len in (512, 4_096):
        for batch in (1, 8):
            add("decode" if batch == 1 else "decode, batch 8", "causal()", 1, kv_len, batch=batch)
    add("chunked prefill", "causal()", 256, 4_096)
    add("tiny", "causal()", TINY, batch=2, heads=4)
    for kv_len in (512, 2_048):
        padding = f"padding(lengths={padded_lengths(kv_len, 4)})"
        add("cross-attention, padding", padding, 512, kv_len, batch=4)
    documents = f"documents(lengths=[{random_lengths(512, 4)}])"
    padding = f"padding(lengths={padded_lengths(512, 4)})"
    add("new mask: causal", "causal()", 512, new_mask=True)
    add("new mask: window 128", "window(back=127)", 512, new_mask=True)
    add("new mask: documents", f"causal() & {documents}", 512, new_mask=True)
    add("new mask: padding", f"causal() & {padding}", 512, batch=4, heads=4, new_mask=True)
    return found


def cells(
    threads: Sequence[int],
    dtypes: Sequence[str],
    lengths: Sequence[int] | None = None,
    patterns: Sequence[str] | None = None,
    *,
    quick: bool = False,
    forward_only: bool = False,
) -> list[Cell]:
    """Returns the selected cells; `lengths` selects by the number of keys."""
    found = []
    for count in threads:
        for dtype in dtypes:
            for shape in shapes():
                if quick and not (shape.pattern in QUICK_PATTERNS and shape.kv_len <= LENGTHS[0]):
                    continue
                if lengths and shape.kv_len not in lengths:
                    continue
                if patterns and shape.pattern not in patterns:
                    continue
                no_backward = shape.q_len == 1 or shape.kv_len == LENGTHS[-1] or forward_only
                for backward in (False,) if no_backward else (False, True):
                    chosen = {"threads": count, "dtype": dtype, "backward": backward}
                    found.append(Cell(**{**asdict(shape), **chosen}))
    return found


# ── source trees ──────────────────────────────────────────────────────────────────────────────


def git(tree: Path, *arguments: str) -> str | None:
    """Returns the output of a git command in `tree`, or None where it fails."""
    command = ["git", "-C", str(tree), *arguments]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def describe(tree: Path) -> dict[str, Any]:
    """Returns the commit of a source tree, and whether its package has uncommitted changes."""
    changes = git(tree, "status", "--porcelain", "--", "src", "setup.py")
    return {
        "commit": git(tree, "rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A temporary git worktree of a commit."""
    if git(ROOT, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") is None:
        raise SystemExit(
            f"compare: unknown commit {commit!r}. Pass a commit, branch or tag of {ROOT}."
        )
    with tempfile.TemporaryDirectory(prefix="maskwright-compare-") as folder:
        tree = Path(folder, "base")
        if git(ROOT, "worktree", "add", "--detach", str(tree), commit) is None:
            raise SystemExit(f"compare: `git worktree add` failed for {commit!r}.")
        try:
            yield tree
        finally:
            git(ROOT, "worktree", "remove", "--force", str(tree))


def build_kernel(tree: Path) -> None:
    """Build the C kernel in place, unless there is one that is newer than its sources."""
    native = tree / NATIVE
    sources = [path for ending in ("c", "h") for path in native.rglob(f"*.{ending}")]
    newest = max(path.stat().st_mtime for path in [*sources, tree / "setup.py"])
    if any(path.stat().st_mtime > newest for path in native.glob("_kernel*.so")):
        return
    print(f"building the kernel of {tree}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as build:
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        done = subprocess.run(
            [*command, "--build-temp", build],
            cwd=tree,
            env={**os.environ, "MASKWRIGHT_BUILD": "required"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"compare: cannot build the kernel of {tree}:\n{done.stderr[-2_000:]}")


# ── workers ───────────────────────────────────────────────────────────────────────────────────


class WorkerError(RuntimeError):
    """A worker process reports an error, or has ended."""


class Worker:
    """A process that runs the attention of one source tree."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree.resolve()
        self.cpu_seconds = 0.0  # as of the last reply
        environment = {
            # After a parallel region OpenMP threads spin for about 10 ms by default, which would
            # slow the other worker down. This count is about 0.5 ms: calls in a row are as fast
            # as by default, and the worker waits until its threads sleep before it replies.
            "GOMP_SPINCOUNT": SPIN_COUNT,
            # By default glibc may return the memory of outputs to the system and fault it in again,
            # or not, depending on the process: 0.3 to 1.2 ms of system time in calls of 6 ms.
            **KEEP_MEMORY,
            **os.environ,
            "PYTHONPATH": str(self.tree / "src"),
            "PYTHONHASHSEED": "0",
        }
        environment.pop("MASKWRIGHT_KERNEL", None)  # each version loads its own
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            cwd=self.tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request, and wait for its reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SystemExit(
                f"compare: the worker of {self.tree} ended with exit code {self._process.wait()}."
            )
        reply: dict[str, Any] = json.loads(line)
        self.cpu_seconds = reply.pop("cpu_seconds")
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def check(self) -> dict[str, Any]:
        """Check that package and kernel are those of the tree; returns their paths."""
        reply = self.request("hello")
        source = self.tree / "src"
        for path in [reply["package"], *reply["kernels"]]:
            if not Path(path).resolve().is_relative_to(source):
                raise SystemExit(f"compare: the worker of {self.tree} has imported {path}.")
        return reply

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def start_workers(trees: dict[str, Path]) -> Iterator[dict[str, Worker]]:
    """Start one worker process per version."""
    with ExitStack() as stack:
        workers = {}
        for version, tree in trees.items():
            workers[version] = Worker(tree)
            stack.callback(workers[version].close)
        yield workers


# ── measurement ───────────────────────────────────────────────────────────────────────────────


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def busy_seconds() -> float | None:
    """Returns the CPU seconds of all processes since boot, or None where they are not known."""
    path = Path("/proc/stat")
    if not path.exists():
        return None
    counters = path.read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, counters)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class OtherLoad:
    """The cores that are in use by processes other than the workers and this one."""

    def __init__(self, workers: dict[str, Worker]) -> None:
        self._workers = workers
        self._start = self._seconds()

    def _seconds(self) -> tuple[float, float]:
        busy = busy_seconds()
        own = time.process_time() + sum(worker.cpu_seconds for worker in self._workers.values())
        return time.perf_counter(), math.nan if busy is None else busy - own

    def disturbs(self, threads: int) -> bool:
        """Whether, since the start, they took cores that a worker with `threads` threads needs."""
        (begin, before), (end, after) = self._start, self._seconds()
        free = max(num_cores() - threads, 0)
        return (after - before) / (end - begin) > free + MAX_OTHER_LOAD


def difference(folder: Path) -> float:
    """Returns the largest difference of the saved outputs, relative to the largest value."""
    largest = 0.0
    with np.load(folder / "base.npz") as base, np.load(folder / "new.npz") as new:
        for name in base.files:
            gap = float(np.abs(base[name] - new[name]).max())
            gap /= max(float(np.abs(base[name]).max()), 1e-30)
            largest = max(largest, gap if math.isfinite(gap) else math.inf)
    return largest


def measure(
    found: Measured,
    workers: dict[str, Worker],
    min_rounds: int,
    min_seconds: float,
    num_preparations: int = NUM_PREPARATIONS,
) -> None:
    """Measure a cell in both workers, which take turns, and add the timings to `found`."""
    cell = asdict(found.cell)
    estimates = []
    with tempfile.TemporaryDirectory() as folder:
        for version, worker in workers.items():
            outputs = str(Path(folder, f"{version}.npz"))
            try:
                reply = worker.request("prepare", cell=cell, outputs=outputs)
            except WorkerError as error:
                found.failed[version] = str(error)
            else:
                estimates.append(reply["seconds"])
        if found.failed:
            return
        found.difference = max(found.difference, difference(Path(folder)))
    shortest = min(estimates)
    found.calls = max(1, math.ceil(MIN_TIMING_SECONDS / max(shortest, 1e-6)))
    timing = found.calls * shortest
    is_short = timing < MAX_TURN_SECONDS
    turn = {
        "warm_up": math.ceil(found.calls / 5) if is_short else 0,
        "calls": found.calls,
        "repeats": max(1, int(MAX_TURN_SECONDS / timing)) if is_short else 1,
    }
    if found.is_disturbed:
        found.round_ratios.clear()
    load = OtherLoad(workers)
    if not is_short:
        num_preparations = 1
    for number in range(num_preparations):
        if number:
            for worker in workers.values():
                worker.request("prepare", cell=cell)
        rounds, seconds = math.ceil(min_rounds / num_preparations), min_seconds / num_preparations
        take_turns(found, workers, turn, rounds, seconds)
    found.is_disturbed = load.disturbs(found.cell.threads)


def take_turns(
    found: Measured,
    workers: dict[str, Worker],
    turn: dict[str, int],
    min_rounds: int,
    min_seconds: float,
) -> None:
    """Run the prepared cell in turns; the order alternates from round to round."""
    order = list(workers)
    start, rounds = time.perf_counter(), 0
    while rounds < min_rounds or time.perf_counter() - start < min_seconds:
        took = {version: workers[version].request("run", **turn)["seconds"] for version in order}
        for version, seconds in took.items():
            found.seconds[version] = min(found.seconds[version], seconds)
        found.round_ratios.append(took[BASE] / took[NEW])
        order.reverse()
        rounds += 1


def geometric_mean(ratios: Sequence[float]) -> float:
    """Returns the geometric mean, or NaN of none."""
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def summarize(results: Sequence[Measured]) -> dict[str, Any]:
    """Returns the statistics of all ratios."""
    done = [found for found in results if not found.failed]
    ratios = [found.ratio for found in done]
    if not ratios:
        return {"cells": 0, "failed": len(results)}
    median = statistics.median(ratios)
    quiet = [found.ratio for found in done if not found.is_disturbed]
    return {
        "cells": len(ratios),
        "failed": len(results) - len(done),
        "differing": sum(not found.agrees for found in done),
        "geometric_mean": geometric_mean(ratios),
        "geometric_mean_first_pass": geometric_mean([found.first_ratio for found in done]),
        "geometric_mean_undisturbed": geometric_mean(quiet) if quiet else None,
        "median": median,
        "median_absolute_deviation": statistics.median(abs(r - median) for r in ratios),
        "minimum": min(ratios),
        "maximum": max(ratios),
        "disturbed": sum(found.is_disturbed for found in done),
        f"below_{LIST_BELOW}": sum(ratio < LIST_BELOW for ratio in ratios),
    }


def row(found: Measured) -> list[str]:
    """Returns the row of a cell in the table."""
    cell = found.cell
    words = [cell.pattern, cell.length, cell.dtype, cell.direction, str(cell.threads)]
    if found.failed:
        return [*words, *("failed" if version in found.failed else "" for version in VERSIONS), ""]
    times = [f"{found.seconds[version] * 1e3:.3f}" for version in VERSIONS]
    marks = ("*" if found.is_disturbed else "") + ("" if found.agrees else " (outputs differ)")
    return [*words, *times, f"{found.ratio:.3f}{marks}"]


HEAD = ["pattern", "length", "dtype", "direction", "threads", "base ms", "new ms", "ratio"]


def report(results: Sequence[Measured]) -> str:
    """Returns the table of all cells and the summary."""
    lines = [table(HEAD, [row(found) for found in results]), ""]
    summary = summarize(results)
    if summary["cells"]:
        quiet = summary["geometric_mean_undisturbed"]
        others = "" if quiet is None else f"; geometric mean of the others {quiet:.3f}"
        lines += [
            f"ratio = base / new; above 1 the working tree is faster ({summary['cells']} cells)",
            f"geometric mean {summary['geometric_mean']:.3f}, minimum {summary['minimum']:.3f}, "
            f"maximum {summary['maximum']:.3f}, median {summary['median']:.3f} "
            f"± {summary['median_absolute_deviation']:.3f} (median absolute deviation)",
            f"cells disturbed by other processes (marked *): {summary['disturbed']}{others}",
        ]
    done = sorted((found for found in results if not found.failed), key=lambda f: f.ratio)
    slow = [row(found) for found in done if found.ratio < LIST_BELOW]
    lines += [f"cells below {LIST_BELOW}: {len(slow)}"]
    lines += ["", table(HEAD, slow)] if slow else []
    for found in results:
        if found.failed:
            lines += [f"failed: {' '.join(row(found)[:5])}: {found.failed}"]
        elif not found.agrees:
            gap = f"{found.difference:.1e}"
            lines += [f"outputs differ by {gap}: {' '.join(row(found)[:5])}"]
    return "\n".join(lines)


# ── command ───────────────────────────────────────────────────────────────────────────────────


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare", description=__doc__)
    base = parser.add_mutually_exclusive_group(required=True)
    base.add_argument(
        "--base", metavar="COMMIT", help="commit to compare with, checked out in /tmp"
    )
    base.add_argument(
        "--base-tree", type=Path, metavar="PATH", help="existing checkout of the base"
    )
    lengths = sorted({shape.kv_len for shape in shapes()})
    patterns = list(dict.fromkeys(shape.pattern for shape in shapes()))
    default_threads = [1, 2] if num_cores() > 1 else [1]
    parser.add_argument("--threads", type=int, nargs="+", default=default_threads)
    parser.add_argument("--lengths", type=int, nargs="+", choices=lengths, help="number of keys")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES)
    parser.add_argument("--patterns", nargs="+", choices=patterns)
    parser.add_argument("--forward-only", action="store_true", help="leave the backward out")
    parser.add_argument("--quick", action="store_true", help="a few short cells in float32")
    parser.add_argument("--minimum-runs", type=int, default=5, help="rounds per cell (default: 5)")
    parser.add_argument(
        "--minimum-seconds", type=float, help="per cell (default: 0.8, with --quick 0.3)"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="maximum number of passes that repeat cells with a low ratio or a disturbed measurement "
        "(default: 3)",
    )
    parser.add_argument("--name", default="compare", help="of the JSON file (default: compare)")
    options = parser.parse_args(arguments)
    if min(options.threads) < 1 or options.minimum_runs < 1:
        parser.error("--threads and --minimum-runs must be at least 1")
    options.dtypes = options.dtypes or (DTYPES[:1] if options.quick else DTYPES)
    if options.minimum_seconds is None:
        options.minimum_seconds = 0.3 if options.quick else 0.8
    options.cells = cells(
        options.threads,
        options.dtypes,
        options.lengths,
        options.patterns,
        quick=options.quick,
        forward_only=options.forward_only,
    )
    if not options.cells:
        parser.error("no cell has these patterns and lengths")
    return options


def compare(trees: dict[str, Path], options: argparse.Namespace, result: dict[str, Any]) -> int:
    """Measure all cells, print the table, and save the JSON; returns the exit code."""
    begin = time.perf_counter()
    results: list[Measured] = []

    def keep() -> Path:
        result["seconds"] = time.perf_counter() - begin
        result["summary"] = summarize(results)
        result["cells"] = [found.to_json() for found in results]
        return save(options.name, result)

    def progress(found: Measured, note: str) -> None:
        print(f"{note}  {'  '.join(row(found))}", file=sys.stderr, flush=True)

    rounds, seconds = options.minimum_runs, options.minimum_seconds
    with start_workers(trees) as workers:
        result["workers"] = {version: worker.check() for version, worker in workers.items()}
        for number, cell in enumerate(options.cells, 1):
            found = Measured(cell)
            measure(found, workers, rounds, seconds)
            if not found.failed:
                found.first_ratio = found.ratio
            results.append(found)
            progress(found, f"{number}/{len(options.cells)}")
            keep()
    for _ in range(options.repeats):
        done = [found for found in results if not found.failed]
        again = [f for f in done if f.is_disturbed or (f.is_uncertain and not f.is_confirmed)]
        if not again:
            break
        # New processes, since where memory lies affects the speed of a process as a whole.
        with start_workers({version: trees[version] for version in (NEW, BASE)}) as workers:
            for number, found in enumerate(again, 1):
                is_long = found.is_uncertain
                factor = REPEAT_FACTOR if is_long else 1
                more = factor * rounds, factor * seconds, factor * NUM_PREPARATIONS
                measure(found, workers, *more)
                found.is_confirmed = is_long and not found.is_disturbed
                progress(found, f"again {number}/{len(again)}")
        keep()
    path = keep()
    print(f"\n{report(results)}\n\nsaved to {path} after {result['seconds']:.0f} s")
    return int(any(found.failed or not found.agrees for found in results))


def run(arguments: Sequence[str] = ()) -> int:
    """Run the comparison; returns 1 where a cell fails or the outputs of a cell differ."""
    options = parse_options(arguments)
    with ExitStack() as stack:
        base_tree = options.base_tree or stack.enter_context(checkout(options.base))
        trees = {BASE: Path(base_tree).resolve(), NEW: ROOT}
        for tree in trees.values():
            build_kernel(tree)
        result: dict[str, Any] = {
            "command": " ".join(["python -m benchmarks compare", *arguments]),
            **{version: describe(tree) for version, tree in trees.items()},
            "load_average": list(os.getloadavg()),
            "environment": {
                "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", SPIN_COUNT),
                **KEEP_MEMORY,
            },
        }
        return compare(trees, options, result)
